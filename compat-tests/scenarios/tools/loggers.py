# scenario: loggers: the level of a part of the broker is changed while it runs, and it logs as much from then on, until it ends
# tier: quick
# limit: 20
# against: klamm
# broker: none
import signal
from harness import *
import kwire

LOG = WORK / "broker.log"
PART = "klamm_storage.store.making"
FOLDER = f"log.dirs={WORK}/data"


def set_level(logger, level, operation=0):
    change = {"Name": logger, "ConfigOperation": operation, "Value": level}
    resource = {"ResourceType": 8, "ResourceName": "1", "Configs": [change]}
    answer = kwire.Connection(BOOTSTRAP).call("IncrementalAlterConfigs", 1, {"Resources": [resource], "ValidateOnly": False})
    equal([(answer["ErrorCode"], answer["ErrorMessage"]) for answer in answer["Responses"]], [(0, None)])


def level(logger):
    resource = {"ResourceType": 8, "ResourceName": "1", "ConfigurationKeys": [logger]}
    answer = kwire.Connection(BOOTSTRAP).call("DescribeConfigs", 4, {"Resources": [resource]})
    return [config["Value"] for config in answer["Results"][0]["Configs"]]


def details_of(topic):
    """What the broker's log says in detail while it makes a topic."""
    before = len(LOG.read_text())
    c = kwire.Connection(BOOTSTRAP)
    c.call("CreateTopics", 7, {"Topics": [{"Name": topic, "NumPartitions": 1, "ReplicationFactor": 1}], "timeoutMs": 10000})
    return [line for line in LOG.read_text()[before:].splitlines() if "DEBUG" in line]


def stop(broker):
    broker.send_signal(signal.SIGTERM)
    equal(broker.wait(10), 0, "exit code")


broker = own_klamm(FOLDER)
with check("a part tells details when it is told to, and no other does"):
    equal((level(PART), details_of("a")), (["INFO"], []))
    set_level(PART, "DEBUG")
    details = details_of("b")
    holds(details and all("klamm_storage::store::making" in line for line in details), details)
with check("what has no level of its own follows what it is a part of"):
    set_level(PART, None, operation=1)
    equal((level(PART), details_of("c")), (["INFO"], []))
    set_level("klamm_storage", "DEBUG")
    holds(level(PART) == ["DEBUG"] and details_of("d"), "no details")
    set_level("klamm_storage", "WARN")
    set_level("root", "DEBUG")
    equal((level(PART), [line for line in details_of("e") if "klamm_storage" in line]), (["WARN"], []))
with check("levels last until the process ends"):
    stop(broker)
    broker = own_klamm(FOLDER)
    equal((level(PART), level("root"), level("openraft")), (["INFO"], ["INFO"], ["ERROR"]))
stop(broker)
finish()
