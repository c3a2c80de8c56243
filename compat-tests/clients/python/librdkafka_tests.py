"""librdkafka's own test runner, its tests one number at a time. $LIBRDKAFKA is its built source."""
import json, os, pathlib, re, subprocess
from harness import BOOTSTRAP, WORK
from suites import FAILED, PASSED, SKIPPED, Part, Suite

SOURCE = pathlib.Path(os.environ["LIBRDKAFKA"])
TESTS = SOURCE / "tests"
LIBRARIES = {"LD_LIBRARY_PATH": f"{SOURCE}/src:{SOURCE}/src-cpp"}
STATES = {"PASSED": PASSED, "FAILED": FAILED, "RUNNING": FAILED, "SKIPPED": SKIPPED}
# Parts that are run function by function, since one that fails ends all: their tests have the function's name behind theirs.
BY_FUNCTION = {"0081": "0081-admin.c"}


def folder():
    """Where the tests run: they write beside what they read."""
    here = WORK / "tests"
    (here / "kafka/bin").mkdir(parents=True)
    for path in TESTS.iterdir():
        (here / path.name).symlink_to(path)
    for tool in ("kafka-topics", "kafka-acls", "kafka-configs"):
        script = here / f"kafka/bin/{tool}.sh"
        script.write_text(f'#!/bin/sh\nexec bash "$KAFKA" tool 4.4.0 {tool} "$@"\n')
        script.chmod(0o755)
    (here / "test.conf").write_text(f"bootstrap.servers={BOOTSTRAP}\ntest.topic.random=true\ntest.timeout.multiplier=2\n")
    return here


def all_tests(here):
    """Every test that the runner has, by number."""
    report = WORK / "all.json"
    subprocess.run([here / "test-runner"], cwd=here, env={**os.environ, **LIBRARIES, "TESTS": "none", "TEST_REPORT": report}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    numbers = {}
    for test in json.loads(report.read_text())["tests"]:
        if test[0].isdigit() and not test.startswith("8"):  # those are for hands
            numbers.setdefault(test.split("_")[0], []).append(test)
    return numbers


def functions_of(number):
    """The functions in a test's source that begin a part of it."""
    source = (TESTS / BY_FUNCTION[number]).read_text()
    return sorted(set(re.findall(r"^(?:static \w+ )?(do_test_\w+)\(", source, re.M)) - {"do_test_apis"})


def part(here, scenario, number, tests, function=None):
    name = f"{number}:{function}" if function else number
    report = WORK / f"{name}.json"
    suffix = f":{function}" if function else ""

    def results(said):
        """Nothing if the runner ended without its report. A function that it did not enter is skipped."""
        if not report.exists():
            return {}
        told = json.loads(report.read_text())["tests"].values()
        report.unlink()
        entered = not function or f"[ {function}:" in said
        return {test["name"] + suffix: (STATES[test["state"]] if entered else SKIPPED, test["duration"]) for test in told if test["state"] in STATES}

    environment = {**LIBRARIES, "TESTS": number, "TEST_REPORT": str(report), "TEST_KAFKA_VERSION": "4.4.0", "BROKERS": BOOTSTRAP, "KAFKA_PATH": str(here / "kafka")}
    if function:
        environment["SUBTESTS"] = f"{function}:"
    return Part(name, [test + suffix for test in tests], ["./test-runner", "-p1", "-L", "-s", scenario], environment, results)


def go(name, scenario):
    """Runs the tests of one of librdkafka's set-ups, "default" or "noautocreate". What needs no broker is skipped, and what needs share groups is left out: it takes minutes a test, and Klamm has none."""
    here = folder()
    parts = []
    for number, tests in all_tests(here).items():
        if any("_share_" in test for test in tests):
            continue
        for function in functions_of(number) if number in BY_FUNCTION else [None]:
            parts.append(part(here, scenario, number, tests, function))
    Suite(name, limit=400, together=3, folder=here).go(parts)
