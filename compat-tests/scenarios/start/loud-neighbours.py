# scenario: loud-neighbours: garbage on the port makes few log lines, each with the sender's address, and disturbs nobody
# tier: quick
# limit: 60
# against: klamm
from frames import *
from harness import *

LOG = pathlib.Path(os.environ["BROKER_DIR"]) / "kafka.log"
bystander = Connection(PORT)
bystander.call(api_versions())
peers = []


def shout(data):
    loud = Connection(PORT)
    peers.append("%s:%d" % loud.socket.getsockname())
    with contextlib.suppress(OSError):
        loud.send(data)
        loud.socket.settimeout(5)
        equal(loud.socket.recv(100), b"", "answer")
    loud.close()


with check("an HTTP request is answered by a closed connection and one line that names the sender"):
    shout(b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
    line = eventually(lambda: [line for line in LOG.read_text().splitlines() if peers[0] in line], "a line with the address", 5)
    equal(len(line), 1, "lines")
with check("two hundred of them are closed at once and make few lines"):
    before = len(LOG.read_text().splitlines())
    begin = time.time()
    for i in range(200):
        shout([b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff", frame(request(999, 0)), frame(b"\0\0\0"), b"GET / HTTP/1.1\r\n\r\n"][i % 5])
    holds(time.time() - begin < 10, f"it took {time.time() - begin:.1f} s")
    eventually(lambda: len(LOG.read_text().splitlines()) > before or shout(b"GET / HTTP/1.1\r\n\r\n") or time.sleep(0.5), "one more line", 30)
    lines = LOG.read_text().splitlines()[before:]
    holds(len(lines) <= 40, f"{len(lines)} lines for 200 senders")
    holds(all("panicked" not in line for line in lines), lines)
with check("a connection that was open all the time still works"):
    holds(bystander.call(api_versions(0, 99))[:6] == i32(99) + b"\0\0", "no answer")
finish()
