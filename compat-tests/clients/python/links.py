"""Three nodes of one cluster whose conversations with each other go through links that a scenario can cut, and heal.

Clients come to the nodes directly. The nodes reach each other, brokers and controllers, at addresses of this process, which
finds out by its socket which node has opened a connection, and forwards it. Through a link that is cut no byte passes and
none is refused: to the nodes it is silence, as on a network that is torn. When it is healed, what stood still is closed."""
import socket
from harness import *


class Node:
    def __init__(self, cluster, number):
        self.cluster, self.number, self.process = cluster, number, None
        self.client_port, self.broker_port, self.controller_port = (PORT + 10 * number + n for n in (0, 1, 2))
        self.folder = WORK / f"node-{number}"
        self.folder.mkdir()
        self.data = (cluster.place(number) or self.folder) / "data"
        self.doors = [Door(self, port) for port in (self.broker_port, self.controller_port)]

    def start(self):
        """Starts it; it serves once most nodes are there."""
        voters = ",".join(f"{n.number}@127.0.0.1:{n.doors[1].port}" for n in self.cluster.nodes)
        settings = {
            "node.id": self.number, "process.roles": "broker,controller", "controller.quorum.voters": voters, "log.dirs": self.data,
            "listeners": f"CLIENTS://127.0.0.1:{self.client_port},BROKERS://127.0.0.1:{self.broker_port},CONTROLLER://127.0.0.1:{self.controller_port}",
            "advertised.listeners": f"CLIENTS://127.0.0.1:{self.client_port},BROKERS://127.0.0.1:{self.doors[0].port}",
            "listener.security.protocol.map": "CLIENTS:PLAINTEXT,BROKERS:PLAINTEXT,CONTROLLER:PLAINTEXT",
            "inter.broker.listener.name": "BROKERS", "controller.listener.names": "CONTROLLER", **self.cluster.settings,
        }
        self.process = klamm_process(self.folder, settings, self.folder / "log", self.cluster.wrapper(self.number))

    def serves(self):
        holds(self.process.poll() is None, f"node {self.number} ended with {self.process.poll()}: {(self.folder / 'log').read_text()[-1500:]}")
        with contextlib.suppress(OSError):
            socket.create_connection(("127.0.0.1", self.client_port), 1).close()
            return True


class Cluster:
    """Starts the three nodes, each by the command wrapper(number), with its data in place(number) if that is a folder."""

    def __init__(self, settings={}, wrapper=lambda number: [], place=lambda number: None):
        self.settings, self.wrapper, self.place, self.cut = settings, wrapper, place, set()
        self.links = []  # (from, to, sockets) of each open connection
        self.lock = threading.Lock()
        self.nodes = [Node(self, number) for number in (1, 2, 3)]
        self.bootstrap = ",".join(f"127.0.0.1:{node.client_port}" for node in self.nodes)
        for node in self.nodes:
            node.start()
        for node in self.nodes:
            eventually(node.serves, f"node {node.number} serves", 40)

    def connected(self, one, two):
        """Whether a connection that either of two nodes opened to the other is open now."""
        with self.lock:
            return bool({(one, two), (two, one)} & {link[:2] for link in self.links})

    def sever(self, *pairs):
        """From now on nothing passes between these pairs of nodes; each is (from, to), of who opened the connection."""
        with self.lock:
            torn = {(opened, to) for opened, to, _ in self.links} & set(pairs)
        holds(torn, f"no connection is there to cut between {pairs}: {[link[:2] for link in self.links]}")
        self.cut |= set(pairs)

    def heal(self):
        with self.lock:
            torn = [sockets for opened, to, sockets in self.links if (opened, to) in self.cut]
            self.cut.clear()
        for sockets in torn:
            for one in sockets:
                with contextlib.suppress(OSError):
                    one.shutdown(socket.SHUT_RDWR)

    def who(self, port):
        """The number of the node whose socket has this local port."""
        for line in open("/proc/net/tcp"):
            fields = line.split()
            if fields[1].endswith(f":{port:04X}") and fields[2] != "00000000:0000":
                wanted = f"socket:[{fields[9]}]"
                for node in self.nodes:
                    with contextlib.suppress(OSError):
                        folder = f"/proc/{node.process.pid}/fd"
                        for name in os.listdir(folder):
                            with contextlib.suppress(OSError):
                                if os.readlink(f"{folder}/{name}") == wanted:
                                    return node.number
        return None


class Door:
    """An address at which the other nodes reach one port of a node."""

    def __init__(self, node, target):
        self.node, self.target = node, target
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            inside, (_, port) = self.listener.accept()
            threading.Thread(target=self.forward, args=(inside, port), daemon=True).start()

    def forward(self, inside, port):
        cluster = self.node.cluster
        link = (cluster.who(port), self.node.number)
        sockets = [inside]
        with cluster.lock:
            entry = (*link, sockets)
            cluster.links.append(entry)
        try:
            while link in cluster.cut:
                time.sleep(0.02)
            outside = socket.create_connection(("127.0.0.1", self.target), 5)
            outside.settimeout(None)
            sockets.append(outside)
            back = threading.Thread(target=self.pump, args=(outside, inside, link), daemon=True)
            back.start()
            self.pump(inside, outside, link)
            back.join()
        except OSError:
            # a port that refuses must look like one; a reset is the nearest that a door can do
            inside.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
        finally:
            with cluster.lock:
                cluster.links.remove(entry)
            for one in sockets:
                one.close()

    def pump(self, source, target, link):
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                while link in self.node.cluster.cut:
                    time.sleep(0.02)
                target.sendall(data)
        for one in (source, target):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
