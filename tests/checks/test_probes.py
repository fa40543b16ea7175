"""A probe runs only if the report meets its conditions."""

from __future__ import annotations

from dataclasses import replace

import pytest
from simulated_training import Program as Simulated
from simulated_training import pair

from pytest_ddl.equivalence.probes.registry import PROBES, Needs, Probe
from pytest_ddl.equivalence.runs.comparer import PlainComparison
from pytest_ddl.equivalence.runs.program import Program
from pytest_ddl.equivalence.runs.question import Question
from pytest_ddl.equivalence.verdict.judge import judge
from pytest_ddl.equivalence.verdict.report import Report
from pytest_ddl.items.selection import DdlMark
from pytest_ddl.records import ErrorRecord
from pytest_ddl.strategies.spec import StrategySpec
from pytest_ddl.training.settings import RunSettings


def report(wrong: bool = False, concurrent: bool = False, raised: bool = False) -> Report:
    reference, distributed = pair(Simulated(replicas=2), **({"scale": 2.0} if wrong else {}))
    judged = judge(reference, distributed)
    if concurrent:
        ranks = tuple(replace(rank, asynchronous=True) for rank in distributed.ranks)
        distributed = replace(distributed, ranks=ranks)
    if raised:
        error = ErrorRecord("ValueError", "mine", "", step=3)
        distributed = replace(distributed, ranks=tuple(replace(rank, error=error) for rank in distributed.ranks))
    return replace(judged, distributed=distributed)


@pytest.mark.parametrize(
    ("need", "meets", "misses"),
    [
        (Needs.NO_FINDINGS, report(), report(wrong=True)),
        (Needs.IN_ORDER, report(), report(concurrent=True)),
        (Needs.CONCURRENT, report(concurrent=True), report()),
        (Needs.NO_ERRORS, report(), report(raised=True)),
    ],
    ids=lambda value: str(value) if isinstance(value, Needs) else None,
)
def test_each_condition_holds_and_fails(need: Needs, meets: Report, misses: Report) -> None:
    assert need.met(meets, named=False)
    assert not need.met(misses, named=True)
    assert not (need | Needs.NAMED).met(meets, named=False)
    assert (need | Needs.NAMED).met(meets, named=True)


@pytest.mark.parametrize(
    ("asked", "own", "widened", "expected"),
    [
        ("auto", "native", (), "native"),
        ("auto", "native", ("mixed_float16",), "auto"),
        ("auto", "float64", (), "auto"),
        ("float32", "native", (), "float32"),
    ],
)
def test_float64_is_not_tried_again_on_a_program_with_its_own_precision(
    asked: str, own: str, widened: tuple[str, ...], expected: str
) -> None:
    done = report()
    reference = done.reference
    ranks = tuple(replace(rank, facts={**rank.facts, "widened": widened}) for rank in reference.ranks)
    done = replace(done, reference=replace(reference, precision=own, ranks=ranks))
    question = Question(print, StrategySpec("mirrored"), DdlMark(), precision=asked)
    runs = Program(None, None, question, 0.0, None)
    assert PlainComparison(runs, RunSettings(), question).settled(done).question.precision == expected


def test_a_named_probe_runs_only_if_its_check_is_named() -> None:
    probe = Probe("OWN", Needs.NAMED, lambda found, _settings, _compare: found)
    assert not probe.applies(report(), ["STEP-EQ"])
    assert probe.applies(report(), ["OWN"])
    assert not replace(probe, wanted=lambda _report, _names: False).applies(report(), ["OWN"])
    assert not probe.applies(replace(report(), reference=replace(report().reference, ranks=())), ["OWN"])


def test_a_correct_program_needs_no_probe() -> None:
    assert [probe.check for probe in PROBES if probe.applies(report(), ())] == []
