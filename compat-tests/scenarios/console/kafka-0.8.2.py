# scenario: kafka-0.8.2: both producers of 2014 write with every codec, their SimpleConsumerShell reads, also after a restart
# tier: normal
# limit: 90
# needs: kafka-0.8.2.2
# against: klamm 2.8.2 3.9.1
# shows: java-0.8.2.2: codecs restart
from harness import *

tool = Tools("0.8.2.2")
CODECS = ("none", "gzip", "snappy", "lz4")
PATIENT = ("--retry-backoff-ms", 500, "--message-send-max-retries", 20)  # a topic or a broker that is new has no leader yet
wanted = []


def produce(name, *arguments):
    lines = [f"{name} 你好 {i}" for i in range(10)]
    run = tool("kafka-console-producer", "--broker-list", BOOTSTRAP, "--topic", "old", "--request-required-acks", -1, *arguments, stdin="\n".join(lines) + "\n")
    equal(run.code, "0", run)
    holds("ERROR" not in run.error or "LeaderNotAvailable" in run.error, run)
    wanted.extend(lines)


def read():
    lines = []
    for partition in range(4):
        run = tool("kafka-simple-consumer-shell", "--broker-list", BOOTSTRAP, "--topic", "old", "--partition", partition, "--offset", -2, "--no-wait-at-logend")
        holds("Terminating" in run.out + run.error or run.code in ("0", "1"), run)
        lines += [line for line in run.lines if "你好" in line]
    return sorted(lines)


with check("the topic comes into being"):
    produce("first", "--sync", *PATIENT)
for codec in CODECS:
    with check(f"the Scala producer, {codec}"):
        produce(f"old {codec}", "--sync", "--compression-codec", codec)
    with check(f"the Java producer, {codec}"):
        produce(f"new {codec}", "--new-producer", "--compression-codec", codec)
with check("reads everything"):
    equal(read(), sorted(wanted))
with check("goes on after the restart"):
    ask("restart")
    produce("after", "--sync", "--compression-codec", "gzip", *PATIENT)
    equal(read(), sorted(wanted))
finish()
