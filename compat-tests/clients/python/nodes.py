"""Nodes of a cluster of three that a scenario starts itself, each with settings that may be wrong, and what they say of it."""
import shutil, urllib.error, urllib.request
import harness
from harness import *

ports = free_ports()
PORTS = {number: [next(ports) for _ in ("clients", "controller", "http")] for number in (1, 2, 3)}
VOTERS = ",".join(f"{number}@127.0.0.1:{controller}" for number, (_, controller, _) in PORTS.items())
harness.BOOTSTRAP = BOOTSTRAP = ",".join(f"127.0.0.1:{port}" for port, _, _ in PORTS.values())  # for what is imported after this


class Node:
    """A node, at ports of its own, that says what is wrong in its log."""

    def __init__(self, name, number, place=None):
        self.number, self.folder, self.process = number, WORK / name, None
        self.port, self.controller, self.http = PORTS.get(place or number) or [next(ports) for _ in range(3)]
        self.data, self.log = self.folder / "data", self.folder / "log"
        self.folder.mkdir()

    def start(self, settings={}, wrapper=()):
        settings = {
            "node.id": self.number, "process.roles": "broker,controller", "controller.quorum.voters": VOTERS, "log.dirs": self.data,
            "listeners": f"PLAINTEXT://127.0.0.1:{self.port},CONTROLLER://127.0.0.1:{self.controller}", "controller.listener.names": "CONTROLLER",
            "klamm.http.listener": f"127.0.0.1:{self.http}", "broker.session.timeout.ms": 3000, "broker.heartbeat.interval.ms": 500,
            "default.replication.factor": 3, "min.insync.replicas": 2, **settings,
        }
        self.begin = self.log.stat().st_size if self.log.exists() else 0
        self.process = klamm_process(self.folder, settings, self.log, wrapper)
        return self

    def said(self):
        """What it has said since its start."""
        return self.log.read_bytes()[self.begin:].decode()

    def health(self):
        """The lines of its health answer."""
        try:
            return urllib.request.urlopen(f"http://127.0.0.1:{self.http}/health", timeout=5).read().decode().splitlines()
        except urllib.error.HTTPError as answer:
            return answer.read().decode().splitlines()
        except OSError:
            return []

    def metrics(self):
        """Its metrics without labels, by name."""
        page = urllib.request.urlopen(f"http://127.0.0.1:{self.http}/metrics", timeout=5).read().decode()
        return {name.removeprefix("klamm_"): float(value) for name, _, value in (line.partition(" ") for line in page.splitlines()) if name[0] != "#" and "{" not in name}

    def is_well(self):
        holds(self.process.poll() is None, f"node {self.number} ended with {self.process.poll()}: {self.said()[-1500:]}")
        return self.health() == ["ok"]

    def stop(self, how="terminate"):
        getattr(self.process, how)()
        self.process.wait(30)

    def says(self, *words, seconds=20):
        """One line of its log has all these words. It is shown, for it is read by a person."""
        line = eventually(lambda: next((line for line in self.said().splitlines() if all(str(word) in line for word in words)), None), f"{words} in what node {self.number} says", seconds)
        print(f"node {self.number}: {line}")

    def is_refused(self, *words):
        """It ends with 1, and its last words are these."""
        eventually(lambda: self.process.poll() is not None, f"node {self.number} ends", 60)
        equal(self.process.returncode, 1, "exit code")
        told = self.said()[self.said().rindex("klamm:"):]
        print(f"node {self.number}: {told.strip()}")
        for word in words:
            holds(str(word) in told, f"no {word!r} in {told!r}")
        holds("panicked" not in self.said(), self.said())


def fresh(*those):
    """Nodes in the place of others, that have never started, and have nothing."""
    for node in those:
        if node.process:
            node.stop("kill")
        shutil.rmtree(node.folder)
    return [Node(node.folder.name, node.number) for node in those]


def well(*those):
    for node in those:
        eventually(node.is_well, f"node {node.number} is well", 40)
