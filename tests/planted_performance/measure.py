"""Print what the advice says first about each planted problem: ``python -m tests.planted_performance.measure``."""

from __future__ import annotations

import argparse
import os
import sys
import time
from dataclasses import dataclass

from pytest_ddl.bench.advice.collecting import Collector
from pytest_ddl.bench.advice.confirming import confirm
from pytest_ddl.bench.advice.deciding import decide
from pytest_ddl.bench.launching.records import BenchSpec
from pytest_ddl.harness import process_harness
from tests.planted_performance.catalogue import PLANTED, TUNED, Planted


@dataclass(frozen=True)
class Outcome:
    """Result of the advice about one entry."""

    first: str
    """Rule of the first piece of advice; empty for none."""
    right: bool
    detail: str
    seconds: float


def evaluate(entry: Planted, *, confirmed: bool = False) -> Outcome:
    """Ask for advice, and compare the first piece with what was planted."""
    begun = time.monotonic()
    harness = process_harness()
    bench = BenchSpec(batch_per_replica=entry.batch, steps_per_block=entry.steps_per_block, timeout=400)
    collector = Collector(harness, entry.program, entry.variant, bench)
    evidence = collector.first()
    decision = decide(evidence, collector.answer)
    rules = [advice.rule.id for advice in decision.advice]
    first = rules[0] if rules else ""
    right = first in entry.rules if entry.rules else not rules
    told = [f"{advice.rule.id}: {advice.found.gain}" for advice in decision.advice] or ["no advice"]
    told += [f"not judged: {name}: {why.splitlines()[0]}" for name, why in decision.missing.items()]
    told += [f"noise {evidence.noise:.2f}"]
    if confirmed and decision.advice and decision.advice[0].rule.knob:
        knob, expected = decision.advice[0].rule.knob, decision.advice[0].found.gain
        told += [str(confirm(harness, entry.program, entry.variant, bench, knob=knob, expected=expected))]
    return Outcome(first, right, "; ".join(told), time.monotonic() - begun)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", default="", help="measure the entries whose name has this part")
    parser.add_argument("--from", dest="first", default="", help="leave out the entries before the one of this name")
    parser.add_argument("--confirm", action="store_true", help="measure the first piece of advice, too")
    options = parser.parse_args(arguments)
    hits: dict[str, list[bool]] = {"planted": [], "well-tuned": []}
    print("| kind | program | variant | must be first | was first | right | seconds | load | details |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- | --- |")
    begun = not options.first
    for kind, entries in (("planted", PLANTED), ("well-tuned", TUNED)):
        for entry in entries:
            begun = begun or entry.name == options.first
            if not begun or options.only not in entry.name:
                continue
            load = os.getloadavg()[0]
            try:
                outcome = evaluate(entry, confirmed=options.confirm)
            except Exception as error:
                outcome = Outcome("failed", False, f"{type(error).__name__}: {error}".splitlines()[0], 0.0)
            hits[kind].append(outcome.right)
            wanted = " or ".join(entry.rules) or "none"
            cells = (kind, entry.name, entry.variant.partition("[")[0], wanted, outcome.first or "none")
            cells += ("yes" if outcome.right else "NO", f"{outcome.seconds:.0f}", f"{load:.1f}", outcome.detail)
            print(f"| {' | '.join(cells)} |", flush=True)
    for kind, found in hits.items():
        print(f"{kind}: {sum(found)} of {len(found)} right")
    return int(not all(right for found in hits.values() for right in found))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
