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
        return super().call(api, version, body, self.name)


@functools.cache
def records(size):
    return kwire.batch([(b"", b"v" * size)])


def set_quotas(client, quotas, remove=False):
    ops = [{"Key": key, "Value": value, "Remove": remove} for key, value in quotas.items()]
    entry = {"Entity": [{"EntityType": "client-id", "EntityName": client}], "Ops": ops}
    answer = Client("admin").call("AlterClientQuotas", 1, {"Entries": [entry], "ValidateOnly": False})
    equal([entry["ErrorCode"] for entry in answer["Entries"]], [0], "error codes")


def create(client, name, partitions, version=7):
    topic = {"Name": name, "NumPartitions": partitions, "ReplicationFactor": 1, "Assignments": [], "Configs": []}
    return Client(client).call("CreateTopics", version, {"Topics": [topic], "timeoutMs": 10000, "validateOnly": False})


def produce(c, size):
    partition = {"Index": 0, "Records": records(size)}
    answer = c.call("Produce", 9, {"TransactionalId": None, "Acks": -1, "TimeoutMs": 10000, "TopicData": [{"Name": "t", "PartitionData": [partition]}]})
    equal(answer["Responses"][0]["PartitionResponses"][0]["ErrorCode"], 0, "error code")
    return answer["ThrottleTimeMs"]


def fetch(c, offset):
    topic = {"Topic": "t", "Partitions": [{"Partition": 0, "CurrentLeaderEpoch": -1, "FetchOffset": offset, "LastFetchedEpoch": -1, "LogStartOffset": -1, "PartitionMaxBytes": 100_000}]}
    return c.call("Fetch", 11, {"ReplicaId": -1, "MaxWaitMs": 100, "MinBytes": 1, "MaxBytes": 100_000, "IsolationLevel": 0, "SessionId": 0, "SessionEpoch": -1, "Topics": [topic], "ForgottenTopicsData": [], "RackId": ""})["ThrottleTimeMs"]


def is_not_heard(c, throttle_ms):
    """The next answer on this connection does not come before the time is over. Some ms are granted for clocks."""
    begin = time.monotonic()
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
    old = create("limited", "old", 1, version=5)
    equal(old["Topics"][0]["ErrorCode"], 0)
    holds(old["ThrottleTimeMs"] > 0, "an old version is not told to wait")
with check("quotas that are taken away bind nobody"):
    set_quotas("limited", QUOTAS, remove=True)
    eventually(lambda: produce(Client("limited"), 300_000) == 0, "it is not stopped", 10)
finish()
