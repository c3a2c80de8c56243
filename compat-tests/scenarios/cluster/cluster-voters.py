# scenario: cluster-voters: a static quorum becomes a dynamic one, and kafka-metadata-quorum takes a voter out and in again
# tier: all
# limit: 240
# needs: python-new kafka-4.4.0
# against: klamm 4.4.0
# nodes: 3
# shows: java-4.4.0: admin cluster
import re
from harness import *

tool = Tools("4.4.0")
CONTROLLERS = ",".join(f"127.0.0.1:{int(address.rsplit(':', 1)[1]) + 1}" for address in BOOTSTRAP.split(","))


def quorum(*arguments, limit=60):
    return tool("kafka-metadata-quorum", "--bootstrap-controller", CONTROLLERS, *arguments, limit=limit)


def parts():
    """Node: (directory, what it is), as the tool prints it."""
    done = quorum("describe", "--replication")
    rows = [line.split() for line in done.lines]
    return {row[0]: (row[1], row[-1]) for row in rows[1:] if row} if done.code == "0" else {}


def are(*wanted):
    eventually(lambda: sorted(kind.replace("Leader", "Follower") for _, kind in parts().values()) == sorted(wanted), f"{wanted}: {parts()}", 60)


def properties_of_third():
    """Settings of node 3 from which the tool takes what it adds."""
    data = pathlib.Path(os.environ["BROKER_DIR"]).parent / "3/data"
    port = int(BOOTSTRAP.split(",")[2].rsplit(":", 1)[1])
    file = WORK / "controller.properties"
    file.write_text(f"node.id=3\nprocess.roles=broker,controller\nlisteners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{port + 1}\n"
                    f"controller.listener.names=CONTROLLER\ncontroller.quorum.bootstrap.servers={CONTROLLERS}\nlog.dirs={data}\n"
                    + f"metadata.log.dir={data}/klamm-metadata\n" * KLAMM)
    return file


with check("three voters, whom commands do not change while they are configured"):
    are("Follower", "Follower", "Follower")
    done = quorum("remove-controller", "--controller-id", "3", "--controller-directory-id", "AAAAAAAAAAAAAAAAAAAAAQ")
    holds(done.code != "0" and "kraft.version feature is 0" in done.out + done.error, done)
with check("kraft.version 1 hands the voters over to commands"):
    done = tool("kafka-features", "--bootstrap-server", BOOTSTRAP, "upgrade", "--feature", "kraft.version=1", limit=60)
    equal(done.code, "0", done)
    described = lambda: tool("kafka-features", "--bootstrap-server", BOOTSTRAP, "describe", limit=60).out
    eventually(lambda: re.search(r"kraft.version.*FinalizedVersionLevel: 1\b", described()), "it is shown as finalized", 60)
with check("a voter is taken out, and is an observer then"):
    directory = parts()["3"][0]
    done = quorum("remove-controller", "--controller-id", "3", "--controller-directory-id", "AAAAAAAAAAAAAAAAAAAAAQ")
    holds(done.code != "0", done)
    done = quorum("remove-controller", "--controller-id", "3", "--controller-directory-id", directory)
    equal(done.code, "0", done)
    are("Follower", "Follower", "Observer")
    equal(parts()["3"], (directory, "Observer"))
with check("it stays one when it is started again, although its settings name it as a voter"):
    ask("restart 3")
    time.sleep(3)
    are("Follower", "Follower", "Observer")
with check("it is taken in again"):
    file = properties_of_third()
    add = lambda: tool("kafka-metadata-quorum", "--command-config", str(file), "--bootstrap-controller", CONTROLLERS, "add-controller", limit=60)
    done = add()
    equal(done.code, "0", done)
    are("Follower", "Follower", "Follower")
    done = add()
    holds(done.code != "0" and "DuplicateVoter" in done.out + done.error, done)
finish()
