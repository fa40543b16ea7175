"""Slots and weights of a gradient that cancels may differ by the rounding of its terms, and by nothing more."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from simulated_training import Program, pair, simulate, variables

from pytest_ddl.equivalence.evidence.slices import Slices
from pytest_ddl.equivalence.runs.slices import is_rounding, orders_to_measure, terms_to_measure
from pytest_ddl.equivalence.verdict.judge import judge
from pytest_ddl.equivalence.verdict.report import Report
from pytest_ddl.records import ErrorRecord, TrainingRecord

PROGRAM = Program(replicas=2, dtype="float32", optimizer="Adam", batches=(12,))
INDICES = {variable.name: variable.index for variable in variables(PROGRAM)}
SQUARES, BIAS = INDICES["optimizer/v_1"], INDICES["dense/bias"]
CANCELLED, TERM = 6.6e-13, 1e-3 * 0.3**2
"""Second moments of the sum over the batch, and of a single example."""


def _with_squares(record: TrainingRecord, value: float) -> TrainingRecord:
    """Return a record in which the second moments of the bias have this value after its only step."""
    ranks = []
    for rank in record.ranks:
        (step,) = rank.steps
        made = tuple(np.full_like(one, value) for one in step.snapshot[SQUARES])
        ranks.append(replace(rank, steps=(replace(step, snapshot={**step.snapshot, SQUARES: made}),)))
    return replace(record, ranks=tuple(ranks))


def _with_step(record: TrainingRecord, length: float) -> TrainingRecord:
    """Return a record with cancelled second moments, in which the only step moves the bias by this length."""
    ranks = []
    for rank in _with_squares(record, CANCELLED).ranks:
        (step,) = rank.steps
        moved = tuple(one + np.float32(length) for one in rank.initial[BIAS])
        ranks.append(replace(rank, steps=(replace(step, snapshot={**step.snapshot, BIAS: moved}),)))
    return replace(record, ranks=tuple(ranks))


def _divided(slices: Slices | None = None, length: float = 3.5e-4) -> Report:
    """Judge steps of another length, although the slots agree within the rounding of their terms."""
    reference, distributed = pair(PROGRAM)
    noise = [_with_step(simulate(replace(PROGRAM, replicas=1, perturbation=number)), 1.8e-4) for number in (1, 2)]
    return judge(_with_step(reference, 1.8e-4), _with_step(distributed, length), noise, slices=slices)


def _reordered(program: Program = PROGRAM) -> TrainingRecord:
    return simulate(replace(program, replicas=1, shuffle_sums=True))


def _judged(difference: float, slices: Slices | None = None, program: Program = PROGRAM) -> Report:
    """Judge a difference of second moments that no perturbed run shows, because all have the same ones."""
    reference, distributed = pair(PROGRAM, slot_factor=program.slot_factor)
    noise = [simulate(replace(PROGRAM, replicas=1, perturbation=number)) for number in (1, 2)]
    reference, *noise = (_with_squares(record, CANCELLED) for record in (reference, *noise))
    return judge(reference, _with_squares(distributed, CANCELLED + difference), noise, slices=slices)


def _terms() -> Slices:
    alone = simulate(replace(PROGRAM, replicas=1))
    return Slices(1, terms=(_with_squares(alone, TERM), _with_squares(alone, 0.0)))


def test_the_rounding_of_terms_that_cancel_is_no_finding():
    report = _judged(1e-16)
    assert [finding.check for finding in report.findings] == ["OPT-STATE"]
    assert terms_to_measure(report) == [(1, (0, 6))]
    assert _judged(1e-16, _terms()).passed


@pytest.mark.parametrize("share", [1 / 12, 1.0])
def test_one_example_that_counts_twice_is_found_beside_terms_that_cancel(share: float):
    assert _judged(TERM * share**2, _terms()).verdict == "fail"


def _late() -> TrainingRecord:
    """Return a run that the deadline ended before its first step."""
    alone, late = simulate(replace(PROGRAM, replicas=1)), ErrorRecord("deadline", "the time is over", "", 0)
    return replace(alone, ranks=tuple(replace(rank, steps=(), error=late) for rank in alone.ranks))


def test_a_slot_whose_terms_had_no_time_is_undecided():
    late = Slices(1, terms=(_late(), _late()))
    assert _judged(1e-16, late).verdict == "inconclusive"
    assert _judged(TERM, late).verdict == "fail"


def test_a_weight_whose_other_orders_had_no_time_is_undecided():
    assert _divided(replace(_terms(), reordered=(_late(),)), length=1.85e-4).verdict == "inconclusive"
    assert _divided(replace(_terms(), reordered=(_late(),)), length=1e-2).verdict == "fail"


def test_wrong_slots_whose_terms_do_not_cancel_are_found():
    assert _judged(0.0, _terms(), replace(PROGRAM, slot_factor=2.0)).verdict == "fail"


def test_terms_are_measured_only_for_a_slot():
    assert terms_to_measure(judge(*pair(PROGRAM))) == []


def test_a_weight_whose_optimizer_divides_by_a_cancelled_gradient_is_no_failure():
    report = _divided(_terms())
    assert [finding.check for finding in report.findings] == ["STEP-EQ"]
    orders = orders_to_measure(report, 1)
    assert [[(step, sorted(rows)) for step, rows in order] for order in orders] == [[(1, [*range(12)])]] * 3
    assert len(set(orders)) == 3
    run = _with_step(_reordered(), 2.6e-4)
    assert is_rounding(report, 1, run)
    assert _divided(replace(_terms(), reordered=(run,))).verdict == "inconclusive"


def test_a_step_beyond_the_rounding_of_other_orders_is_found():
    slices = replace(_terms(), reordered=(_with_step(_reordered(), 2.6e-4),))
    assert _divided(slices, length=1e-2).verdict == "fail"


@pytest.mark.parametrize("sin", [{"scale": 2.0}, {"duplicate": True}])
def test_runs_in_another_order_hide_no_wrong_gradient(sin: dict[str, object]):
    reference, distributed = pair(PROGRAM, **sin)
    noise = [simulate(replace(PROGRAM, replicas=1, perturbation=number)) for number in (1, 2)]
    report = judge(reference, distributed, noise)
    assert orders_to_measure(report, 1) == []
    slices = Slices(1, terms=(simulate(replace(PROGRAM, replicas=1)),), reordered=(_reordered(),))
    assert judge(reference, distributed, noise, slices=slices).verdict == "fail"


def test_a_run_whose_gradient_depends_on_the_order_shows_no_rounding():
    report = _divided(_terms())
    assert not is_rounding(report, 1, _with_step(_reordered(replace(PROGRAM, seed=1)), 2.6e-4))
