# scenario: bad-start: what keeps the broker from starting is said in one clear message, exit code 1, and nothing is touched
# tier: quick
# limit: 60
# against: klamm
# broker: none
import shutil, socket
from harness import *

PROGRAM = os.environ["KLAMM_BIN"]
DATA = WORK / "data"
LISTEN = f"listeners=PLAINTEXT://127.0.0.1:{PORT}"


def start(*arguments, environment={}, user=None, overrides=(LISTEN, f"log.dirs={DATA}")):
    command = [PROGRAM, *map(str, arguments)] + [word for o in overrides for word in ("--override", o)]
    if user:
        command = ["setpriv", "--reuid", user, "--regid", user, "--clear-groups", *command]
    return subprocess.Popen(command, cwd=WORK, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, **environment})


def listens(port=PORT):
    with contextlib.suppress(OSError):
        socket.create_connection(("127.0.0.1", port), 1).close()
        return True


def refused(*words, **how):
    """It ends with 1, says every word in its last line, and prints no start line."""
    process = start(*how.pop("arguments", ()), **how)
    try:
        out, error = process.communicate(timeout=15)
    except subprocess.TimeoutExpired:
        process.kill()
        raise AssertionError("it runs")
    equal(process.returncode, 1, f"exit code, with {error}")
    equal(out, "", "standard output")
    told = [line for line in error.splitlines() if line.startswith("klamm:")]
    holds(told, f"no line of klamm: in {error}")
    message = error[error.index("klamm:"):]
    for word in words:
        holds(str(word) in message, f"no {word!r} in {message!r}")
    holds("panicked" not in error and "stack backtrace" not in error, error)
    return message


def settings(*lines):
    file = WORK / "server.properties"
    file.write_text("\n".join(("# settings", LISTEN, f"log.dirs={DATA}", *lines)) + "\n")
    return file


with check("a port in use"):
    with socket.create_server(("127.0.0.1", PORT)):
        refused(PORT, "in use")
    holds(not DATA.exists() or not any(DATA.rglob("*.log")), "it wrote data")
    shutil.rmtree(DATA, ignore_errors=True)

with check("a directory that another broker has locked"):
    first = start()
    try:
        holds(first.stdout.readline().startswith("Klamm"), "the first one does not start")
        before = sorted(p.name for p in DATA.iterdir())
        refused(DATA, "lock", overrides=(f"listeners=PLAINTEXT://127.0.0.1:{PORT + 1}", f"log.dirs={DATA}"))
        equal(sorted(p.name for p in DATA.iterdir()), before, "the directory")
        holds(listens(), "the first one ended")
    finally:
        first.terminate()
        equal(first.wait(20), 0, "exit code of the first after SIGTERM")

with check("a directory written by a newer format"):
    meta = DATA / "meta.properties"
    kept = meta.read_text()
    newer = "\n".join("version=99" if line.startswith("version=") else line for line in kept.splitlines()) + "\n"
    meta.write_text(newer)
    refused(DATA, "99")
    equal(meta.read_text(), newer, "meta.properties")
    meta.write_text(kept)

with check("a directory of another node"):
    refused(DATA, "node", overrides=(LISTEN, f"log.dirs={DATA}", "node.id=77"))

with check("a file where the directory should be"):
    (WORK / "file").write_text("mine")
    refused(WORK / "file", overrides=(LISTEN, f"log.dirs={WORK / 'file'}"))
    equal((WORK / "file").read_text(), "mine")

with check("a directory that is not writable"):
    closed = pathlib.Path("/proc/klamm-data") if os.getuid() else WORK / "closed"
    if not os.getuid():  # root writes everywhere, so the broker runs as nobody
        closed.mkdir(mode=0o755)
        WORK.chmod(0o755)
        shutil.copy(PROGRAM, WORK / "klamm")
        PROGRAM = str(WORK / "klamm")
    refused(closed, "ermission denied" if not os.getuid() else "", user=None if os.getuid() else "65534", overrides=(LISTEN, f"log.dirs={closed}"))
    PROGRAM = os.environ["KLAMM_BIN"]

with check("a bad value names file, line, key, what was found and what is allowed"):
    refused("server.properties", "4", "num.partitions", "many", arguments=[settings("num.partitions=many")], overrides=())
    refused("server.properties", "4", "log.segment.bytes", "-5", arguments=[settings("log.segment.bytes=-5")], overrides=())
    refused("server.properties", "4", "log.cleanup.policy", "shred", "compact", arguments=[settings("log.cleanup.policy=shred")], overrides=())
    refused("num.network.threads", "zero", overrides=(LISTEN, f"log.dirs={DATA}", "num.network.threads=zero"))
    refused("KAFKA_NUM_PARTITIONS", "few", environment={"KAFKA_NUM_PARTITIONS": "few"})

with check("no such file"):
    refused("nowhere.properties", arguments=["nowhere.properties"], overrides=())

with check("what is not built yet is refused, never run open"):
    refused("SASL", overrides=(f"listeners=SASL_PLAINTEXT://127.0.0.1:{PORT}", f"log.dirs={DATA}"))
    refused("SSL", overrides=(f"listeners=SSL://127.0.0.1:{PORT}", f"log.dirs={DATA}"))
    refused("SASL", overrides=(f"listeners=INSIDE://127.0.0.1:{PORT}", "listener.security.protocol.map=INSIDE:SASL_SSL", f"log.dirs={DATA}"))
    refused("authorizer", overrides=(LISTEN, f"log.dirs={DATA}", "authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer"))

with check("an unknown key warns and names the nearest one, and the broker runs"):
    process = start(settings("log.retention.huors=5"), overrides=())
    started = process.stdout.readline()
    process.terminate()
    out, error = process.communicate(timeout=20)
    out = started + out
    equal(process.returncode, 0, "exit code after SIGTERM")
    warning = [line for line in error.splitlines() if "log.retention.huors" in line]
    holds(warning and "log.retention.hours" in warning[0], error)
    equal(len(out.splitlines()), 1, "lines on standard output")
    holds(str(PORT) in out and str(DATA) in out, f"the start line says where it listens and where its data is: {out}")

with check("the container's variables: mapped, taken in silence, or noted"):
    shutil.rmtree(DATA, ignore_errors=True)
    process = start(overrides=(), environment={
        "KAFKA_BROKER_ID": "0", "KAFKA_ZOOKEEPER_CONNECT": "zookeeper:2181", "KAFKA_HEAP_OPTS": "-Xmx1g", "KAFKA_OPTS": "-Dx=y", "KAFKA_LOG4J_ROOT_LOGLEVEL": "WARN",
        "KAFKA_LISTENERS": f"PLAINTEXT://127.0.0.1:{PORT}", "KAFKA_ADVERTISED_LISTENERS": f"PLAINTEXT://127.0.0.1:{PORT}", "KAFKA_LOG_DIRS": str(DATA), "KAFKA_NUM_PARTITIONS": "7"})
    eventually(listens, "it listens")
    from frames import Connection, metadata
    connection = Connection(PORT)
    connection.call(metadata(4, ["seven"]))
    seven = lambda: connection.call(metadata(1, ["seven"]))
    eventually(lambda: seven().count(b"\0\0\0\1\0\0\0\0\0\0\0\1\0\0\0\0") == 7, "seven partitions with replica 0 and in sync 0")
    process.terminate()
    _, error = process.communicate(timeout=20)
    holds("ookeeper" in error or "ooKeeper" in error, f"no note that no ZooKeeper is needed: {error}")
    for silent in ("HEAP_OPTS", "KAFKA_OPTS", "LOG4J"):
        holds(silent not in error, f"{silent} is not taken in silence: {error}")
finish()
