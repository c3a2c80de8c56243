# scenario: cluster-console: what an admin console asks of three nodes, field for field as Kafka answers: brokers, topics with configs and sizes, groups with members and lag, quotas, users, features, quorum, transactions, and what it refuses
# tier: all
# limit: 240
# needs: kafka-4.4.0
# against: klamm 4.4.0
# nodes: 3
# broker: num.partitions=1 broker.session.timeout.ms=4000 broker.heartbeat.interval.ms=500
# shows: java-4.4.0: admin cluster
#
# console.txt holds each call and what every field of Apache Kafka 4.4.0's answer is (clients/python/transcripts.py: RECORD,
# SEEN); clients/java/AdminConsole.java makes the calls. "node 3 dies" and "node 3 comes back" are the runner's.
import re
from transcripts import *

ADDRESSES = BOOTSTRAP.split(",")
# What differs from run to run, and what stands for it.
UNSTABLE = [
    *((re.escape(address).replace(":", r"[: ]"), f"NODE-{number}") for number, address in enumerate(ADDRESSES, 1)),
    *((rf"127\.0\.0\.1:{int(address.split(':')[1]) + 1}\b", f"CONTROLLER-{number}") for number, address in enumerate(ADDRESSES, 1)),
    (re.escape(str(pathlib.Path(os.environ["BROKER_DIR"]).parent)) + r"/(\d)[\w/.-]*", r"DATA-\1"),
    (r"\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b", "UUID"),
    (r"\b17(?!00000000)\d{11}\b", "TIME"), (r"(Local controller )\d", r"\1N"),
    (r"(producerId[=:] ?)\d+", r"\1N"), (r"(transactionStartTimeMs[=:] ?)\d+", r"\1TIME"), (r"(finalizedFeaturesEpoch[=:] ?)\d+", r"\1N"),
]
libs = pathlib.Path(os.environ["KAFKA_JARS"]) / "4.4.0"
console = subprocess.Popen(
    ["java", "-Xmx192m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", f"-Dlog4j2.configurationFile={libs}/log4j2.properties", "-cp", f"{libs}/libs/*",
     f"{os.environ['CLIENTS']}/java/AdminConsole.java", BOOTSTRAP], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def call(line):
    node = re.fullmatch(r"node (\d) (dies|comes back)", line)
    if node:
        ask(f"{'crash' if node[2] == 'dies' else 'start'} {node[1]}")
        return []
    console.stdin.write(line + "\n")
    console.stdin.flush()
    holds(console.poll() is None, "the program that makes the calls has ended")
    answer = []
    for said in console.stdout:
        if said == "\n":
            break
        for pattern, word in UNSTABLE:
            said = re.sub(pattern, word, said)
        answer.append(said.rstrip())
    return answer


repeat(pathlib.Path(__file__).with_name("console.txt"), call)
