"""Record golden pairs: run comparisons, and keep what the judge was given."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from pytest_ddl.equivalence.runs import comparer
from pytest_ddl.equivalence.verdict.report import Report
from pytest_ddl.records import TrainingRecord
from tests.lab.golden import Golden, stem_of


@contextmanager
def captured() -> Iterator[list[tuple[Golden, Report]]]:
    """Collect the judgements of the comparisons within: for each pair of runs the last one, with its report."""
    usual, calls = comparer.judge, list[tuple[Golden, Report]]()

    def judge(reference: TrainingRecord, distributed: TrainingRecord, *more: Any, **given: Any) -> Report:
        report = usual(reference, distributed, *more, **given)
        options = {key: value for key, value in given.items() if key != "known"}
        golden = Golden("", reference, distributed, tuple(more[0]) if more else (), options)
        # A pair is judged again with runs that measure noise, and with parts of a batch.
        if calls and calls[-1][0].reference is reference and calls[-1][0].distributed is distributed:
            calls.pop()
        calls.append((golden, report))
        return report

    comparer.judge = judge
    try:
        yield calls
    finally:
        comparer.judge = usual


def record(name: str, strategy: str, check: Callable[[], object]) -> list[tuple[Golden, Report]]:
    """Run one comparison, and return its golden pairs with their names."""
    with captured() as calls:
        check()
    stem = stem_of(name, strategy)
    return [(Golden(f"{stem}#{i}", *_rest(golden)), report) for i, (golden, report) in enumerate(calls)]


def _rest(golden: Golden) -> tuple[Any, ...]:
    return golden.reference, golden.distributed, golden.perturbed, golden.options
