"""Workers of Kafka Connect and MirrorMaker 2, each a process with a properties file of its own, and how they are asked over HTTP."""
import json, signal, urllib.error, urllib.request
from harness import *

CLASSES = {"standalone": "org.apache.kafka.connect.cli.ConnectStandalone", "distributed": "org.apache.kafka.connect.cli.ConnectDistributed", "mirror": "org.apache.kafka.connect.mirror.MirrorMaker"}
PLAIN = {"key.converter": "org.apache.kafka.connect.storage.StringConverter", "value.converter": "org.apache.kafka.connect.storage.StringConverter", "plugin.discovery": "only_scan", "offset.flush.interval.ms": 300}
FILE_SOURCE, FILE_SINK = (f"org.apache.kafka.connect.file.FileStream{kind}Connector" for kind in ("Source", "Sink"))


def properties(name, settings):
    """Writes a properties file and returns its path."""
    path = WORK / f"{name}.properties"
    path.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
    return path


class Worker:
    """A process of Connect; what it says is added to WORK/NAME.log."""

    def __init__(self, name, kind, *files):
        self.log = WORK / f"{name}.log"
        command = ["java", "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", "-cp", f"{os.environ['CONNECT']}/libs/*", CLASSES[kind], *map(str, files)]
        with open(self.log, "a") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log, cwd=WORK)

    def lives(self):
        holds(self.process.poll() is None, f"it ended with {self.process.poll()}: {self.log.read_text()[-1500:]}")
        return True

    def stop(self, how=signal.SIGTERM):
        self.process.send_signal(how)
        self.process.wait(60)


def rest(port, method, path, body=None):
    """What a worker answers; None while it does not, or is rebalancing."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", data, {"Content-Type": "application/json"}, method=method)
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return json.loads(answer.read() or b"null")
    except (urllib.error.HTTPError, OSError):
        return None


def runs(port, connector):
    """Whether a connector and its one task run."""
    status = rest(port, "GET", f"/connectors/{connector}/status") or {}
    return [part["state"] for part in (status.get("connector"), *status.get("tasks", ())) if part] == ["RUNNING", "RUNNING"]


def append(path, lines):
    with open(path, "a") as file:
        file.writelines(f"{line}\n" for line in lines)


def lines_of(path):
    return path.read_text().splitlines() if path.exists() else []
