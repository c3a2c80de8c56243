"""The tests of other projects, run part by part against the broker: each that passes on Apache Kafka must pass on Klamm.

compat-tests/suites/NAME.4.4.0.tsv holds what came of each test on Kafka, if it was not skipped: test, result, seconds.
RECORD=1 with --against 4.4.0 writes it; without it only the parts are run that have a test which passed on Kafka, and those
must pass. ONLY="WORD …" runs only the parts with such a word in their names. Many of these tests measure time, so one that fails is
tried once more, alone, when the others are done; that is told.

compat-tests/suites/differences.tsv has the tests that pass on Kafka and not on Klamm: suite, test, the API that they need and
Klamm does not serve (then they are not run, and the line is wrong as soon as it is served; else "-", and they are run), reason.
"""
import concurrent.futures, csv, dataclasses, os, pathlib, re, subprocess, time, typing
import kwire
from harness import BOOTSTRAP, KLAMM, WORK, failures, finish

LISTS = pathlib.Path(os.environ["CLIENTS"]).resolve().parent / "suites"
RECORD = os.environ.get("RECORD")
ONLY = os.environ.get("ONLY", "").split()
PASSED, FAILED, SKIPPED = "passed", "failed", "skipped"
SHOWN_LINES = 40


@dataclasses.dataclass
class Part:
    """What one process runs: its tests, its command, what it adds to the environment, and the function that finds in what it said {test: (result, seconds)}."""
    name: str
    tests: list
    command: list
    environment: dict
    results: typing.Callable


@dataclasses.dataclass
class Outcome:
    result: str
    seconds: float
    said: str
    tries: int = 1

    def __str__(self):
        return f"{self.result} ({self.seconds:.1f} s{', at the second try' if self.tries == 2 else ''})"


class Suite:
    """`limit` is the seconds that a part may take, `together` how many parts run at once."""

    def __init__(self, name, limit, together, folder=WORK):
        self.name, self.limit, self.together, self.folder = name, limit, together, folder
        self.list = LISTS / f"{name}.4.4.0.tsv"
        if RECORD and KLAMM:
            raise SystemExit("FAILED the lists are Kafka's: RECORD goes with --against 4.4.0")
        differences = [row for row in read(LISTS / "differences.tsv") if KLAMM and row["suite"] == name]
        self.reasons = {row["test"]: row["reason"] for row in differences}
        self.unserved = {row["test"]: row["needs"] for row in differences if row["needs"] != "-"}

    def go(self, parts):
        """Runs all and ends the scenario."""
        recorded = {} if RECORD else {row["test"]: row["result"] for row in read(self.list)}
        parts = [part for part in parts if not ONLY or any(word in part.name for word in ONLY)]
        wanted = parts if RECORD else [part for part in parts if any(recorded.get(test) == PASSED and test not in self.unserved for test in part.tests)]
        outcomes = self.run_all(wanted)
        counts = {result: sum(outcome.result == result for outcome in outcomes.values()) for result in (PASSED, FAILED, SKIPPED)}
        if RECORD:
            self.record(outcomes)
        else:
            self.compare(recorded, [test for part in parts for test in part.tests], outcomes)
        print(f"{self.name}: {', '.join(f'{count} {result}' for result, count in counts.items())}", flush=True)
        finish()

    def run_all(self, parts):
        outcomes = {}

        def keep(part, told, tries):
            for test, outcome in told.items():
                outcome.tries = tries
                if tries == 1 or outcomes[test].result == FAILED:
                    outcomes[test] = outcome
                    print(f"{test}: {outcome}", flush=True)

        with concurrent.futures.ThreadPoolExecutor(self.together) as pool:
            running = {pool.submit(self.run, part): part for part in parts}
            for done in concurrent.futures.as_completed(running):
                keep(running[done], done.result(), 1)
        for part in parts:
            if any(outcomes[test].result == FAILED and test not in self.reasons for test in part.tests):
                keep(part, self.run(part), 2)
        return outcomes

    def run(self, part):
        """Each test's outcome. What a part leaves running ends with the scenario's process group."""
        log, begin = WORK / (re.sub(r"[^\w.-]+", "-", part.name) + ".log"), time.time()
        with open(log, "wb") as output:
            process = subprocess.Popen(part.command, cwd=self.folder, env={**os.environ, **part.environment}, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT)
            try:
                process.wait(self.limit)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
                output.write(f"\nits time of {self.limit} s is over\n".encode())
        said = log.read_text(errors="replace")
        told = part.results(said)
        return {test: Outcome(*told.get(test, (FAILED, time.time() - begin)), said) for test in part.tests}

    def record(self, outcomes):
        """Writes Kafka's list; with ONLY, the lines of the parts that were run."""
        rows = {row["test"]: row for row in read(self.list)} if ONLY else {}
        rows = {test: row for test, row in rows.items() if test not in outcomes}
        rows |= {test: {"test": test, "result": outcome.result, "seconds": f"{outcome.seconds:.0f}"} for test, outcome in outcomes.items() if outcome.result != SKIPPED}
        with open(self.list, "w", newline="") as file:
            writer = csv.DictWriter(file, ["test", "result", "seconds"], delimiter="\t", lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows[test] for test in sorted(rows))

    def compare(self, recorded, tests, outcomes):
        if not ONLY:
            failures.extend(f"{test}: {self.list.name} has it, the suite does not" for test in recorded if test not in tests)
        answer = kwire.Connection(BOOTSTRAP.split(",")[0]).call("ApiVersions", 0)
        served = {kwire.BY_KEY[api["ApiKey"]]["name"] for api in answer["ApiKeys"] if api["ApiKey"] in kwire.BY_KEY}
        failures.extend(f"{test}: {api} is served now, so it is to be run" for test, api in self.unserved.items() if api in served)
        for test, outcome in outcomes.items():
            if recorded.get(test) != PASSED or test in self.unserved:
                continue
            if outcome.result == PASSED and test in self.reasons:
                failures.append(f"{test}: it does not differ any more: {self.reasons[test]}")
            elif outcome.result != PASSED and test not in self.reasons:
                last = "\n".join(outcome.said.splitlines()[-SHOWN_LINES:])
                failures.append(f"{test}: {outcome} and passed on Apache Kafka; its last lines:\n{last}")


def read(path):
    if not path.exists():
        return []
    with open(path, newline="") as file:
        return list(csv.DictReader(file, delimiter="\t"))
