# scenario: console-tools: the console tools of every version write, read each other's topics, commit, and go on after a restart
# tier: normal
# limit: 300
# needs: kafka-0.9.0.1 kafka-0.10.2.2 kafka-0.11.0.3 kafka-1.1.1 kafka-2.8.2 kafka-3.9.1 kafka-4.4.0
# shows: java-*: codecs groups restart
#
# Each version's console producer writes one topic with all codecs that it knows. Each version's console consumer reads
# each topic once. Then each version reads its own topic in a group, the broker restarts, more is written, and the group
# gets exactly what is new. Apache Kafka 4 serves no client before 2.1, so against it only the new versions run.
from harness import *

VERSIONS = [v for v in ("0.9.0.1", "0.10.2.2", "0.11.0.3", "1.1.1", "2.8.2", "3.9.1", "4.4.0") if AGAINST != "4.4.0" or numbers(v) >= (2, 1)]
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")  # zstd last: an old reader gets all that stands before it
tools = {v: Tools(v) for v in VERSIONS}


def knows_zstd(version):
    return numbers(version) >= (2, 1)


def where(version):
    return ["--bootstrap-server" if numbers(version) >= (2, 5) else "--broker-list", BOOTSTRAP]


def consumer(version):
    return (["--new-consumer"] if version == "0.9.0.1" else []) + ["--bootstrap-server", BOOTSTRAP]


def lines(version, codec):
    return [f"key{i % 5}:{codec} {version} 你好 {i}" for i in range(20)]


def write(version, codec, topic, text):
    # the property's name until 4.x, whose console producer calls it a reader property
    keyed = ["--reader-property" if numbers(version) >= (4, 2) else "--property"]
    run = tools[version]("kafka-console-producer", *where(version), "--topic", topic, "--compression-codec", codec,
                         "--request-required-acks", "-1", keyed[0], "parse.key=true", keyed[0], "key.separator=:",
                         stdin="\n".join(text) + "\n")
    holds(run.code == "0" and "ERROR" not in run.error, f"the producer: {run}")


def read(version, topic, *arguments, limit=30):
    keyed = "--formatter-property" if numbers(version) >= (4, 2) else "--property"
    return tools[version]("kafka-console-consumer", *consumer(version), "--topic", topic, keyed, "print.key=true",
                          keyed, "key.separator=:", *arguments, limit=limit)


def by_key(seen):
    """Lines by key, in order: a key's lines share a partition, so their order must hold."""
    keys = {}
    for line in seen:
        keys.setdefault(line.split(":")[0], []).append(line)
    return keys


def group_of(version):
    if numbers(version) >= (2, 0):
        return ["--group", "g-" + version]
    file = WORK / f"group-{version}.properties"
    file.write_text(f"group.id=g-{version}\nauto.offset.reset=earliest\nauto.commit.interval.ms=200\n")
    return ["--consumer.config", file]


def writers(version):
    for codec in CODECS:
        if codec != "zstd" or knows_zstd(version):
            with check(f"{version} writes {codec}"):
                write(version, codec, "t-" + version, lines(version, codec))


def readers(version):
    for writer in VERSIONS:
        plain = [line for codec in CODECS[:4] for line in lines(writer, codec)]
        zstd = lines(writer, "zstd") if knows_zstd(writer) else []
        with check(f"{version} reads what {writer} wrote"):
            if not zstd or knows_zstd(version):
                run = read(version, "t-" + writer, "--from-beginning", "--max-messages", len(plain + zstd))
                equal(by_key(run.lines), by_key(plain + zstd), run)
            else:
                run = read(version, "t-" + writer, "--from-beginning", "--timeout-ms", 4000)
                old_reader_meets_zstd(version, run, plain)


def old_reader_meets_zstd(version, run, plain):
    """What Kafka 2.8 gives: to a Fetch below v4 (converted down) error 76 for the partition from the zstd batch on; to a
    Fetch of v4 to v9 the batch as it is, on which the client ends, with whatever it had printed by then."""
    if numbers(version) < (0, 11):
        equal(by_key(run.lines), by_key(plain), run)
        holds("Unexpected error code 76" in run.error or "Unexpected error code: 76" in run.error, f"no error 76: {run}")
    else:
        holds(set(run.lines) <= set(plain), f"it printed what it cannot read: {run}")
        holds("Unknown compression type id: 4" in run.error, f"it took zstd: {run}")


def commits(version):
    mine = [line for codec in CODECS if codec != "zstd" or knows_zstd(version) for line in lines(version, codec)]
    with check(f"{version} reads its own topic in a group"):
        run = read(version, "t-" + version, *group_of(version), "--from-beginning", "--timeout-ms", 3000)
        equal(by_key(run.lines), by_key(mine), run)


def goes_on(version):
    with check(f"{version} writes and reads on after the restart"):
        more = [f"key{i % 5}:after the restart {version} {i}" for i in range(20)]
        write(version, "gzip", "t-" + version, more)
        run = read(version, "t-" + version, *group_of(version), "--from-beginning", "--timeout-ms", 3000)
        equal(by_key(run.lines), by_key(more), run)


side_by_side(writers, VERSIONS)
side_by_side(readers, VERSIONS)
side_by_side(commits, VERSIONS)
ask("restart")
side_by_side(goes_on, VERSIONS)
finish()
