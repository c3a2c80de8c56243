# scenario: kafka-python-tests: kafka-python's integration tests that pass on Apache Kafka 4.4.0 pass on Klamm
# tier: all
# limit: 900
# needs: python-tests kafka-python
# against: klamm 4.4.0
# broker: node.id=0 process.roles=broker,controller controller.listener.names=CONTROLLER
# broker: listeners=PLAINTEXT://127.0.0.1:$PORT,CONTROLLER://127.0.0.1:$CONTROLLER controller.quorum.voters=0@127.0.0.1:$CONTROLLER
# broker: advertised.listeners=PLAINTEXT://127.0.0.1:$PORT
# shows: kafka-python-tests: suite
#
# clients/python/suites.py says how they are compared. The source package has no test/service.py, which starts brokers: the
# tests are given ours by KAFKA_URI, and those of SASL and TLS, which need another, are skipped or fail on both.
import os, pathlib, re, subprocess, sys
from harness import BOOTSTRAP, WORK
from suites import FAILED, PASSED, SKIPPED, Part, Suite

SERVICE = """
class ExternalService:
    def __init__(self, host, port):
        self.host, self.port = host, port

    def dump_logs(self):
        pass


class SpawnedService:
    pass
"""
RESULT = re.compile(r"^(PASSED|FAILED|ERROR|SKIPPED|XFAIL|XPASS)\b", re.M)
STATES = {"PASSED": PASSED, "FAILED": FAILED, "ERROR": FAILED, "SKIPPED": SKIPPED, "XFAIL": SKIPPED, "XPASS": PASSED}
PYTEST = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-rA", "--timeout=120"]


def folder():
    here = WORK / "tests"
    (here / "test").mkdir(parents=True)
    for path in (pathlib.Path(os.environ["KAFKA_PYTHON"]) / "test").iterdir():
        (here / "test" / path.name).symlink_to(path)
    (here / "test/__init__.py").touch()
    (here / "test/service.py").write_text(SERVICE)
    return here


def results_of(test):
    def results(said):
        took, told = re.search(r" in ([0-9.]+)s", said), RESULT.findall(said)
        return {test: (STATES[told[-1]], float(took[1]))} if took and told else {}
    return results


here = folder()
environment = {"KAFKA_VERSION": "4.4.0", "KAFKA_URI": f"kafka://{BOOTSTRAP}", "KAFKA_ROOT": str(here)}
listed = subprocess.run([*PYTEST, "--collect-only", "-q", "test/integration"], cwd=here, env={**os.environ, **environment}, capture_output=True, text=True)
tests = [line for line in listed.stdout.splitlines() if "::" in line]
if not tests:
    raise SystemExit(f"FAILED pytest finds no tests:\n{listed.stdout[-2000:]}{listed.stderr[-2000:]}")
Suite("kafka-python", limit=150, together=2, folder=here).go([Part(test, [test], [*PYTEST, test], environment, results_of(test)) for test in tests])
