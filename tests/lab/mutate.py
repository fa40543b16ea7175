"""Mutate golden records, and count which mutants pass: ``python -m tests.lab.mutate``."""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pytest_ddl.equivalence.evidence.tolerance import Tolerance
from tests.lab import golden
from tests.lab.explained import NOT_QUANTITIES, explanation, gap
from tests.lab.golden import CACHE, RECORDS, Golden
from tests.lab.mutations import Mutant, Subject, mutants, within_bounds
from tests.lab.walk import Field, Key, Place, places

PASS, ERROR = "pass", "error"
EXPLAINED, GAP = "explained", "known gap"
"""Verdicts of mutants that pass: with a reason, and because a quantity is not compared."""
FRACTION = 0.3
"""Share of the bound by which numbers are moved."""


@dataclass
class Score:
    """Verdicts of mutants, by kind of quantity and operator."""

    verdicts: dict[tuple[str, str], Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    survivors: dict[tuple[str, str], list[str]] = field(default_factory=lambda: defaultdict(list))
    """Mutants that pass without a reason: the golden pair and the place of each."""
    errors: dict[tuple[str, str, str], list[str]] = field(default_factory=lambda: defaultdict(list))
    """Error that the judge raised, with the kind and the operator -> golden pairs."""
    within: Counter[str] = field(default_factory=Counter)
    alarms: list[str] = field(default_factory=list)
    """Golden pairs whose verdict changed when numbers moved within their bounds."""
    seconds: float = 0.0

    @property
    def number(self) -> int:
        """Number of mutants."""
        return sum(sum(counts.values()) for counts in self.verdicts.values())

    def add(self, pair: Golden, mutant: Mutant) -> None:
        """Judge a mutant."""
        key = (mutant.kind, mutant.operator)
        try:
            verdict = pair.judged(mutant.make()).verdict
        except Exception as error:
            # A record that a check cannot read ends the test with an error. That is no pass.
            verdict = ERROR
            self.errors[(*key, f"{type(error).__name__}: {error}"[:100])].append(pair.name)
        if verdict == PASS:
            verdict = EXPLAINED if explanation(*key) else GAP if gap(*key) else PASS
        self.verdicts[key][verdict] += 1
        if verdict == PASS:
            self.survivors[key].append(f"{pair.name} {told(mutant)}")

    def by_quantity(self) -> dict[str, Counter[str]]:
        """Return the verdicts of mutants by quantity."""
        counts: dict[str, Counter[str]] = defaultdict(Counter)
        for (kind, _operator), verdicts in self.verdicts.items():
            counts[quantity_of(kind)].update(verdicts)
        return dict(sorted(counts.items()))


def chosen(subject: Subject, name: str, each: int) -> Iterator[Mutant]:
    """Yield mutants of a record, drawn with a seed: some of every kind of quantity and every operator."""
    groups: dict[tuple[str, str], list[Place]] = defaultdict(list)
    for place in places(subject.record):
        if not is_no_quantity(place):
            groups[place.kind, type(place.value).__name__].append(place)
    for (kind, type_name), found in sorted(groups.items()):
        draw = random.Random(f"{name} {kind} {type_name}")
        for place in draw.sample(found, min(each, len(found))):
            yield from mutants(subject, place)


def is_no_quantity(place: Place) -> bool:
    """Return whether a place is listed as no quantity of training, by itself or by what it is in."""
    names = [f"{step.owner}.{step.name}" for step in place.path if isinstance(step, Field)]
    return (
        place.kind in NOT_QUANTITIES
        or any(name in NOT_QUANTITIES for name in names)
        or any(f"RankRecord.facts[{step.key}]" in NOT_QUANTITIES for step in place.path if isinstance(step, Key))
    )


def measure(pair: Golden, each: int, score: Score) -> None:
    """Judge mutants of a golden pair that passes, and the pair with all numbers moved within their bounds."""
    subject = Subject(pair.distributed, Tolerance(pair.reference, pair.perturbed, pair.options.get("slices")))
    started = time.perf_counter()
    for mutant in chosen(subject, pair.name, each):
        score.add(pair, mutant)
    score.seconds += time.perf_counter() - started
    tight = Subject(pair.distributed, Tolerance(pair.reference))
    report = pair.judged(within_bounds(tight, FRACTION))
    score.within[report.verdict] += 1
    if report.verdict != PASS:
        why = [f"{f.check} {f.cause} step {f.step} {f.variable}" for f in report.findings] or map(str, report.doubts)
        score.alarms.append(f"{pair.name}: {report.verdict}: {'; '.join(why)[:300]}")


def quantity_of(kind: str) -> str:
    """Return the quantity that a kind of place belongs to."""
    for part, name in _OF_VARIABLES.items():
        if kind.endswith(f"[{part}]"):
            return "gradients" if kind.startswith("GradientRecord") else name
    owner, name = kind.split("[")[0].split(".")
    if owner in ("GradientRecord", "BatchRecord"):
        return _OF_CLASSES[owner]
    return _OF_FIELDS.get(name) or _OF_CLASSES.get(owner) or "facts"


_OF_VARIABLES = {
    "trainable": "weights",
    "frozen": "frozen weights",
    "state": "state",
    "slot": "slots",
    "iterations": "counters",
    "learning-rate": "learning rates",
    "metric": "metrics",
}
_OF_FIELDS = {
    "gradients": "gradients",
    "batches": "examples",
    "draws": "draws",
    "reductions": "collectives",
    "collectives": "collectives",
    "loss": "losses",
    "values": "values",
    "results": "results",
    "steps": "steps",
    "writes": "files",
    "restores": "files",
    "initial": "snapshots",
    "snapshot": "snapshots",
    "own": "snapshots",
    "final": "snapshots",
    "resumed": "snapshots",
}
_OF_CLASSES = {
    "GradientRecord": "gradients",
    "BatchRecord": "examples",
    "DrawRecord": "draws",
    "ReductionRecord": "collectives",
    "CollectiveRecord": "collectives",
    "WriteRecord": "files",
    "RestoreRecord": "files",
    "VariableRecord": "variables",
    "LayoutRecord": "layouts",
}
"""Class of a record, or one of its fields -> the quantity that is counted in the score."""


def told(mutant: Mutant) -> str:
    """Describe the place of a mutant in short."""
    return "".join(f".{step.name}" if isinstance(step, Field) else f"[{step[0]!r}]" for step in mutant.path)[:160]


def passing(paths: Iterable[Path]) -> Iterator[Golden]:
    """Yield the golden pairs that pass by themselves.

    Other judgements of the same program decide after a tolerated finding, with chosen checks, or in half precision.
    """
    for path in paths:
        pair = golden.load(path)
        if pair.options.get("checks") is None and not pair.options.get("decided"):
            report = pair.judged()
            if report.verdict == PASS and not report.excused:
                yield pair


def summary(score: Score, most: int = 3) -> Iterator[str]:
    """Describe a score: the verdicts by quantity, survivors by kind, errors, and alarms."""
    minutes = max(score.seconds, 1e-9) / 60
    yield f"{score.number} mutants in {score.seconds:.0f} s ({score.number / minutes:.0f} a minute)"
    yield f"moved within bounds: {dict(score.within)}"
    yield from (f"{quantity:16} {dict(counts)}" for quantity, counts in score.by_quantity().items())
    for (kind, operator), where in sorted(score.survivors.items(), key=lambda item: -len(item[1])):
        yield f"{kind} | {operator} | {dict(score.verdicts[kind, operator])}"
        yield from (f"    {one}" for one in where[:most])
    yield from (f"alarm: {one}" for one in score.alarms)
    yield from (f"error: {' | '.join(key)} | {len(names)} | {names[0]}" for key, names in score.errors.items())


def numbers(score: Score, pairs: int) -> dict[str, Any]:
    """Return what the page of the evaluation shows."""
    return {
        "pairs": pairs,
        "mutants": score.number,
        "quantities": {quantity: dict(sorted(counts.items())) for quantity, counts in score.by_quantity().items()},
        "passes": [
            [kind, operator, counts[verdict], verdict, explanation(kind, operator) or gap(kind, operator) or ""]
            for (kind, operator), counts in sorted(score.verdicts.items())
            for verdict in (EXPLAINED, GAP, PASS)
            if counts[verdict]
        ],
        "within": dict(score.within),
    }


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.lab.mutate", description=__doc__)
    parser.add_argument("--all", action="store_true", help="all recorded pairs, also those that are not committed")
    parser.add_argument("--each", type=int, default=3, help="places of each kind in each pair (default: 3)")
    parser.add_argument("--only", nargs="+", default=[], metavar="WORD", help="pairs with this in their name")
    parser.add_argument("--minutes", type=float, help="begin no pair after this time")
    parser.add_argument("--page", action="store_true", help="write the result to docs/evaluation.md")
    options = parser.parse_args(arguments)
    folders = [RECORDS, CACHE] if options.all else [RECORDS]
    score, started, number = Score(), time.monotonic(), 0
    paths = [p for p in golden.paths(*folders) if not options.only or any(word in p.name for word in options.only)]
    random.Random(0).shuffle(paths)  # so that any beginning is a fair sample
    for pair in passing(paths):
        if options.minutes is not None and time.monotonic() - started > 60 * options.minutes:
            break
        measure(pair, options.each, score)
        number += 1
    print("\n".join(summary(score)))
    if options.page:
        # The page lists all planted bugs, which import TensorFlow.
        from tests.evaluation.page import write

        write({"records": numbers(score, number)})
    return 1 if score.survivors or score.alarms else 0


if __name__ == "__main__":
    sys.exit(main())
