# scenario: quotas: who produces, fetches, or changes topics faster than a quota allows is told for how long to wait, and not heard for so long
# tier: normal
# limit: 90
# against: klamm 4.4.0
import functools, time
from harness import *
import kwire

QUOTAS = {"producer_byte_rate": 100_000.0, "consumer_byte_rate": 100_000.0, "controller_mutation_rate": 1.0}


class Client(kwire.Connection):
    """A connection of a client with this name."""

    def __init__(self, name):
        super().__init__(BOOTSTRAP)
        self.name = name

    def call(self, api, version, body=None):
        self.asked = time.monotonic()
        return super().call(api, version, body, self.name)


@functools.cache
def records(size):
    return kwire.batch([(b"", b"v" * size)])


def set_quotas(client, quotas, remove=False):
    ops = [{"Key": key, "Value": value, "Remove": remove} for key, value in quotas.items()]
    entry = {"Entity": [{"EntityType": "client-id", "EntityName": client}], "Ops": ops}
    answer = Client("admin").call("AlterClientQuotas", 1, {"Entries": [entry], "ValidateOnly": False})
    equal([entry["ErrorCode"] for entry in answer["Entries"]], [0], "error codes")


def create_on(c, name, partitions, version=7, validate_only=False):
    topic = {"Name": name, "NumPartitions": partitions, "ReplicationFactor": 1, "Assignments": [], "Configs": []}
    return c.call("CreateTopics", version, {"Topics": [topic], "timeoutMs": 10000, "validateOnly": validate_only})


def create(client, name, partitions, **more):
    return create_on(Client(client), name, partitions, **more)


def produce_body(size, acks):
    partition = {"Index": 0, "Records": records(size)}
    return {"TransactionalId": None, "Acks": acks, "TimeoutMs": 10000, "TopicData": [{"Name": "t", "PartitionData": [partition]}]}


def produce(c, size):
    answer = c.call("Produce", 9, produce_body(size, acks=-1))
    equal(answer["Responses"][0]["PartitionResponses"][0]["ErrorCode"], 0, "error code")
    return answer["ThrottleTimeMs"]


def fetch(c, offset):
    topic = {"Topic": "t", "Partitions": [{"Partition": 0, "CurrentLeaderEpoch": -1, "FetchOffset": offset, "LastFetchedEpoch": -1, "LogStartOffset": -1, "PartitionMaxBytes": 100_000}]}
    return c.call("Fetch", 11, {"ReplicaId": -1, "MaxWaitMs": 100, "MinBytes": 1, "MaxBytes": 100_000, "IsolationLevel": 0, "SessionId": 0, "SessionEpoch": -1, "Topics": [topic], "ForgottenTopicsData": [], "RackId": ""})["ThrottleTimeMs"]


def is_not_heard(c, throttle_ms):
    """The next answer on this connection does not come before the time is over, which began after the last request was sent. Some
    ms are granted for clocks."""
    begin = c.asked
    c.call("ApiVersions", 0)
    waited_ms = (time.monotonic() - begin) * 1000
    holds(waited_ms > throttle_ms - 100, f"answered after {waited_ms:.0f} ms of {throttle_ms}")


set_quotas("limited", QUOTAS)
create("admin", "t", 1)
with check("a client without a quota is not stopped"):
    free = Client("free")
    equal([produce(free, 900_000) for _ in range(3)], [0, 0, 0])
with check("a producer gets ten seconds of its rate at once, and is then stopped"):
    limited = Client("limited")
    throttles = [produce(limited, 300_000) for _ in range(4)]
    equal(throttles[:3], [0, 0, 0])
    holds(1000 < throttles[3] < 3000, throttles)
    is_not_heard(limited, throttles[3])
with check("another connection of the same client is counted with it"):
    holds(produce(Client("limited"), 300_000) > 1000, "not stopped")
with check("a consumer likewise"):
    limited = Client("limited")
    throttles = [fetch(limited, 3 + n) for n in range(4)]  # a batch of 300 kB each
    equal(throttles[:3], [0, 0, 0])
    holds(1000 < throttles[3] < 3000, throttles)
    is_not_heard(limited, throttles[3])
with check("changes of topics are refused while the bucket is empty, and old versions are told to wait"):
    first = create("limited", "many", 20)
    equal([topic["ErrorCode"] for topic in first["Topics"]], [0])
    codes, throttle = [], 0
    for n in range(3):
        answer = create("limited", f"more-{n}", 10)
        codes.append(answer["Topics"][0]["ErrorCode"])
        throttle = max(throttle, answer["ThrottleTimeMs"])
    holds(codes[-1] == 89, codes)  # THROTTLING_QUOTA_EXCEEDED
    holds(throttle > 0, "no time is told")
    again = create("limited", "many", 20)["Topics"][0]["ErrorCode"]
    equal(again, 89 if KLAMM else 36)  # Kafka looks first whether it could be made at all
    equal(create("free", "twice", 1)["Topics"][0]["ErrorCode"], 0)
    old = Client("limited")
    answer = create_on(old, "old", 1, version=5)
    equal(answer["Topics"][0]["ErrorCode"], 0)
    holds(answer["ThrottleTimeMs"] > 0, "an old version is not told to wait")
    is_not_heard(old, min(answer["ThrottleTimeMs"], 3000))
with check("what is refused, or only checked, is not counted"):
    set_quotas("careful", QUOTAS)
    equal([create("careful", "t", 1000)["Topics"][0]["ErrorCode"] for _ in range(3)], [36, 36, 36])
    equal([create("careful", "huge", 2_000_000_000)["Topics"][0]["ErrorCode"] for _ in range(2)], [44, 44])
    # Kafka counts what it is only asked to check
    equal([create("careful", "checked", 30, validate_only=True)["Topics"][0]["ErrorCode"] for _ in range(3)], [0, 0, 0] if KLAMM else [0, 89, 89])
    equal(create("careful", "made", 1)["Topics"][0]["ErrorCode"], 0 if KLAMM else 89)
with check("who wants no answers is stopped too, and so are requests that were sent ahead"):
    set_quotas("silent", {"producer_byte_rate": 100_000.0})
    silent, begin = Client("silent"), time.monotonic()
    for _ in range(4):
        silent.send(kwire.request("Produce", 9, produce_body(300_000, acks=0), 0, "silent"))
    silent.call("ApiVersions", 0)
    holds(time.monotonic() - begin > 1, "answered at once")
with check("work counts in percent of a processor"):
    set_quotas("busy", {"request_percentage": 0.01})
    busy = Client("busy")
    begin, requests = time.monotonic(), 0
    while time.monotonic() - begin < 0.5 and requests < 1000:
        busy.call("Metadata", 9, {"Topics": None, "AllowAutoTopicCreation": False})
        requests += 1
    holds(requests < 1000, "a thousand requests are answered at once")
with check("a client that goes while it is not heard is let go") if KLAMM else contextlib.suppress(Exception):
    holds(KLAMM, "Apache Kafka keeps such connections until their time is over")
    held = len(os.listdir(f"/proc/{ask('pid')}/fd"))
    for _ in range(20):
        gone = Client("limited")
        produce(gone, 300_000)
        gone.close()
    eventually(lambda: len(os.listdir(f"/proc/{ask('pid')}/fd")) < held + 10, "the connections are closed", 10)
with check("quotas that are taken away bind nobody"):
    set_quotas("limited", QUOTAS, remove=True)
    eventually(lambda: produce(Client("limited"), 300_000) == 0, "it is not stopped", 10)
finish()
