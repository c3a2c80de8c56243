"""A file that holds calls and what Apache Kafka answers, call by call, and is repeated on any broker.

Each call stands behind "$ ", and below it what Kafka answers. Where Klamm differs, the reason stands below that ("~ …"),
and then what Klamm answers. RECORD=1 writes the file anew, with --against 4.4.0 Kafka's answers, else Klamm's where a
reason stands. SEEN=FILE writes what was seen, to be compared with the file.
"""
import difflib
from harness import *


class Step:
    """A call, the lines that stand before it, Kafka's answer, and if Klamm's differs the reason and Klamm's."""

    def __init__(self, head, line):
        self.head, self.line, self.kafka, self.reason, self.klamm = head, line, [], None, []

    def wanted(self):
        return self.klamm if KLAMM and self.reason else self.kafka

    def record(self, answer):
        if not KLAMM:
            self.kafka = answer
        elif self.reason:
            self.klamm = answer

    def lines(self):
        difference = [f"~ {self.reason}", *self.klamm] if self.reason else []
        return [*(["", *self.head] if self.head else []), "", f"$ {self.line}", *self.kafka, *difference]


def parse(text):
    steps, head = [], []
    for line in text.splitlines():
        if line.startswith("# "):
            head.append(line)
        elif line.startswith("$ "):
            steps.append(Step(head, line[2:]))
            head = []
        elif line.startswith("~ "):
            steps[-1].reason = line[2:]
        elif line:
            step = steps[-1]
            (step.klamm if step.reason else step.kafka).append(line)
    return steps


def repeat(file, call):
    """Makes each call of the file, `call(line)` being the lines of its answer, and ends the scenario."""
    steps = parse(file.read_text())
    if os.environ.get("RECORD"):
        for step in steps:
            step.record(call(step.line))
        file.write_text("\n".join(line for step in steps for line in step.lines()).lstrip("\n") + "\n")
        finish()
    seen = []
    for step in steps:
        with check(step.line):
            answer, wanted = call(step.line), step.wanted()
            seen += [f"\n$ {step.line}", *answer]
            if answer != wanted:
                lines = difflib.unified_diff(wanted, answer, "wanted", "seen", lineterm="", n=0)
                raise AssertionError("\n" + "\n".join(line for line in lines if not line.startswith("@@")))
            holds(not (KLAMM and step.reason and answer == step.kafka), f"it does not differ any more: {step.reason}")
    if "SEEN" in os.environ:
        pathlib.Path(os.environ["SEEN"]).write_text("\n".join(seen).lstrip("\n") + "\n")
    finish()
