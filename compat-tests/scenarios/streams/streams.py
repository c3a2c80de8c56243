# scenario: streams: Kafka Streams with exactly_once_v2: a word count and a windowed join are exactly right, though application and broker are killed and all state is restored from its changelogs
# tier: normal
# limit: 600
# soak limit: 5400
# needs: python-new kafka-$WITH
# each: 4.4.0
# each of all: 3.9.1
# against: klamm 3.9.1 4.4.0
# broker: transaction.abort.timed.out.transaction.cleanup.interval.ms=500
# shows: streams-$WITH: own exactly-once kill
#
# Each start of the application begins with an empty state directory. Nothing is cached in the stores, so that each word's
# counts must come out as 1, 2, 3, and so on, each once.
from exactly_once import *

ROUNDS = 60 if os.environ["SOAK"] else 3
KEYS, APART = 10, 5  # a pair's records have one of so many keys; ms from one number to the next
WINDOW = 75  # ms, the application's
state = WORK / "state"
begin = int(time.time() * 1000)


def words(number):
    return ["all", f"seven-{number % 7}", f"hundred-{number % 100}"]


def feed(number):
    key, timestamp = f"{number % KEYS}", begin + number * APART
    yield "lines", None, " ".join(words(number)), timestamp
    yield "left", key, f"{number}", timestamp
    yield "right", key, f"{number}", timestamp


def pairs(count):
    """Those of one key that are within the window, in both directions."""
    far = WINDOW // (KEYS * APART)
    return sorted((f"{n % KEYS}", f"{n} {n + KEYS * step}") for n in range(count) for step in range(-far, far + 1) if 0 <= n + KEYS * step < count)


def restored():
    """How many records were restored into which stores."""
    sums = collections.Counter()
    for line in application.said().splitlines():
        if line.startswith("restored "):
            sums[line.split()[1]] += int(line.split()[2])
    return sums


def application_killed():
    application.kill()


def broker_killed():
    ask("kill")


def both_killed():
    application.kill()
    ask("kill")


create("lines", "left", "right", "counts", "pairs")
application = Application("streams", java(WITH, "StreamsApplication", BOOTSTRAP, state), before=lambda: shutil.rmtree(state, ignore_errors=True))
watch = Watch("counts", "pairs")
feeding = Feed(feed, 1000 / APART, behind=lambda count: count - watch.count["counts"] // len(words(0)))
with check("it counts and joins"):
    print("in the output:", watch.goes_on())
for number in range(ROUNDS):
    happens = (application_killed, broker_killed, both_killed)[number % 3]
    with check(f"round {number + 1}: goes on after {happens.__name__}"):
        happens()
        print("in the output:", watch.goes_on())
count = feeding.stop()
wanted = collections.Counter(word for number in range(count) for word in words(number))
with check("all comes out"):
    eventually(lambda: watch.count["counts"] >= wanted.total() and watch.count["pairs"] >= len(pairs(count)), f"{wanted.total()} counts and {len(pairs(count))} pairs", 60 * PATIENCE)
application.end()
with check("state was restored from the changelogs"):
    print("restored:", dict(restored()))
    equal(sorted(store for store, records in restored().items() if records), ["join-other-join-store", "join-this-join-store", "words"])
with check("each word is counted one by one, and exactly as often as it was written"):
    seen = collections.defaultdict(list)
    for word, number in read("read_committed", "counts"):
        seen[word].append(int(number))
    equal({word: numbers for word, numbers in seen.items() if numbers != list(range(1, wanted[word] + 1))}, {})
    equal(len(seen), len(wanted), "words")
with check("each pair is there once"):
    equal(sorted(read("read_committed", "pairs")), pairs(count))
with check("read_uncommitted sees all that, and what was aborted"):
    print("aborted records:", surplus("counts", "pairs").total())
print(f"{count} lines, {application.starts} starts of the application")
if failures:
    print(application.said()[-6000:])
finish()
