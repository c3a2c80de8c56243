# scenario: rust-rdkafka-tests: rust-rdkafka's integration tests that pass on Apache Kafka 4.4.0 pass on Klamm
# tier: all
# limit: 600
# needs: rust-rdkafka
# against: klamm 4.4.0
# broker: num.partitions=3 node.id=0 process.roles=broker,controller controller.listener.names=CONTROLLER
# broker: listeners=PLAINTEXT://127.0.0.1:$PORT,CONTROLLER://127.0.0.1:$CONTROLLER controller.quorum.voters=0@127.0.0.1:$CONTROLLER
# broker: advertised.listeners=PLAINTEXT://127.0.0.1:$PORT
# shows: rust-rdkafka: suite
#
# clients/python/suites.py says how they are compared. The tests want a broker of node id 0 that gives topics three partitions,
# and one that nothing else has written to. One wants port 9092, too: it fails on both.
import os, pathlib, re, subprocess
from harness import BOOTSTRAP
from suites import FAILED, PASSED, SKIPPED, Part, Suite

STATES = {"ok": PASSED, "FAILED": FAILED, "ignored": SKIPPED}
environment = {"KAFKA_HOST": BOOTSTRAP, "KAFKA_VERSION": "4.4.0", "RUST_LOG": "off", "RUST_BACKTRACE": "1"}


def results_of(name, test):
    def results(said):
        told, took = re.search(r"^test .* \.\.\. (ok|FAILED|ignored)", said, re.M), re.search(r"finished in ([0-9.]+)s", said)
        return {name: (STATES[told[1]], float(took[1]))} if told and took else {}
    return results


parts = []
for program in sorted((pathlib.Path(os.environ["RUST_RDKAFKA"]) / "tests").iterdir()):
    listed = subprocess.run([program, "--list", "--format", "terse"], capture_output=True, text=True, check=True).stdout
    for test in re.findall(r"^(.*): test$", listed, re.M):
        name = f"{program.name}::{test}"
        parts.append(Part(name, [name], [str(program), "--exact", test], environment, results_of(name, test)))
Suite("rust-rdkafka", limit=90, together=2).go(parts)
