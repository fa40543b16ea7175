"""Half precision: its types are found, bounds follow it and still show a factor, the own precision is judged too."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from simulated_training import Program, pair, simulate

from pytest_ddl.equivalence.evidence.arithmetic import half_precision, longest_chain, unit_roundoff
from pytest_ddl.equivalence.evidence.tolerance import Tolerance
from pytest_ddl.equivalence.findings import Doubt
from pytest_ddl.equivalence.outcomes import passed
from pytest_ddl.equivalence.runs.comparer import PlainComparison
from pytest_ddl.equivalence.runs.question import Question
from pytest_ddl.equivalence.verdict.judge import judge
from pytest_ddl.equivalence.verdict.own_precision import judged_in_own_precision, replaced_policies
from pytest_ddl.equivalence.verdict.report import Report
from pytest_ddl.items.selection import DdlMark
from pytest_ddl.records import ErrorRecord, GraphRecord, LayerRecord, TrainingRecord, VariableKind
from pytest_ddl.strategies.registry import StrategyRegistry
from pytest_ddl.training.settings import RunSettings

QUESTION = Question(lambda run: None, StrategyRegistry().default("mirrored"), DdlMark())

CASTS = {"bfloat16": 4}


def casting(record: TrainingRecord, **fields: object) -> TrainingRecord:
    """The record of a program that casts by hand."""
    return replace(record, ranks=tuple(replace(rank, **{"casts": CASTS, **fields}) for rank in record.ranks))


def test_half_precision_is_found_in_weights_layers_and_casts() -> None:
    layer = LayerRecord("dense", "Dense", {"compute_dtype": "float16"})
    assert half_precision(simulate(Program(dtype="float32"))) is None
    assert half_precision(simulate(Program(dtype="float16"))) == "float16"
    assert half_precision(simulate(Program(dtype="float32", layers=(layer,)))) == "float16"
    assert half_precision(casting(simulate(Program(dtype="float32", layers=(layer,))))) == "bfloat16"


def test_operations_in_a_row_are_those_of_the_graph_or_follow_from_eager_casts() -> None:
    record = simulate(Program(dtype="float32"))
    assert longest_chain(casting(record)) == 3 * 2  # four casts in three steps
    assert longest_chain(casting(record, graphs=(GraphRecord("step", 1, 99, half=11),))) == 11


def test_correct_training_passes_where_gradients_round_to_half_precision() -> None:
    for seed in range(20):
        reference, distributed = (_rounded(record, seed + i) for i, record in enumerate(_pair(seed)))
        noise = [_rounded(simulate(Program(dtype="float32", seed=seed, perturbation=p)), 50 + p) for p in (1, 2, 3)]
        assert judge(reference, distributed, noise, checks=["STEP-EQ"]).passed


@pytest.mark.parametrize("scale", [2.0, 3.0, 0.5])
def test_a_factor_is_found_in_half_precision(scale: float) -> None:
    reference, distributed = (_rounded(record, i) for i, record in enumerate(_pair(0, scale=scale)))
    noise = [_rounded(simulate(Program(dtype="float32", perturbation=p)), 50 + p) for p in (1, 2, 3)]
    report = judge(reference, distributed, noise, checks=["STEP-EQ"])
    assert report.verdict == "fail"
    assert "bfloat16" in str(report.findings[0].origin)


def test_a_perturbation_of_the_weights_is_no_noise() -> None:
    reference = casting(simulate(Program(dtype="float32")))
    (rank,) = reference.ranks
    steps = tuple(replace(step, snapshot=_shifted(step.snapshot)) for step in rank.steps)
    moved = replace(reference, ranks=(replace(rank, initial=_shifted(rank.initial), steps=steps),))
    bounds = [Tolerance(reference, runs).variable(0, 1).value for runs in ((), [moved])]
    assert bounds[1] == pytest.approx(bounds[0], rel=1e-3)


def test_advice_names_the_type_and_not_what_a_policy_overrides() -> None:
    bound = Tolerance(casting(simulate(Program(dtype="float32")))).variable(0, 1)
    assert "bfloat16" in bound.advice
    assert 'precision="float64"' not in bound.advice
    assert "fewer steps" in Tolerance(simulate(Program())).variable(0, 1).advice


def test_weights_that_move_less_than_a_wide_bound_do_move() -> None:
    tolerance = Tolerance(casting(simulate(Program(dtype="float32")), graphs=(GraphRecord("step", 1, 9, half=10**6),)))
    assert tolerance.variable(0, 1).value > 1
    assert tolerance.moved(0, 1)
    assert not tolerance.moved(2, 3)


def test_a_slot_that_was_first_seen_after_an_update_has_moved() -> None:
    record = simulate(Program(dtype="float32", momentum=0.9))
    slot = next(v for v in record.variables if v.kind is VariableKind.SLOT and np.any(record.value(v.index, 1)))
    (rank,) = record.ranks
    unseen = {index: parts for index, parts in rank.initial.items() if index != slot.index}
    late = {**rank.initial, slot.index: rank.steps[0].snapshot[slot.index]}
    expected = Tolerance(casting(record)).variable(slot.index, 1).value
    assert expected > 0
    for initial in (unseen, late):
        bound = Tolerance(casting(record, initial=initial)).variable(slot.index, 1)
        assert bound.value == pytest.approx(expected)


def test_what_float64_has_decided_leaves_gross_differences() -> None:
    reference = casting(simulate(Program(dtype="float32")))
    before, after = (np.asarray(reference.value(0, step)) for step in (0, 1))
    change = after - before
    assert Tolerance(reference).is_gross(0, 1, after + 0.1 * change, after)
    decided = Tolerance(reference, decided=True)
    assert not decided.is_gross(0, 1, after + 0.1 * change, after)
    assert decided.is_gross(0, 1, after + change, after)
    assert decided.is_gross(0, 1, after + np.nan, after)


def test_the_own_precision_is_judged_where_float64_finds_nothing() -> None:
    right, wrong = _report(), replace(_report(), findings=list(_report(scale=2.0).findings))
    assert replaced_policies(right.reference) == ["mixed_float16"]  # type: ignore[arg-type]
    assert judged_in_own_precision(right, lambda: right).passed
    found = judged_in_own_precision(right, lambda: wrong)
    assert found.findings == wrong.findings
    assert "the comparison in float64 found none" in found.notes[0]
    undecided = judged_in_own_precision(right, lambda: replace(right, doubts=(Doubt("STEP-EQ", "wide"),)))
    assert undecided.inconclusive == ("STEP-EQ: in mixed_float16: wide",)
    assert judged_in_own_precision(wrong, lambda: pytest.fail("float64 has decided")).verdict == "fail"


class Slow:
    """Program of half precision that is right in float64, and needs more time in its own precision than was left."""

    def reference(self, settings: RunSettings) -> TrainingRecord:
        return self._run(Program(dtype="float64"), settings)

    anew = reference

    def distributed(self, settings: RunSettings) -> TrainingRecord:
        record = self._run(Program(dtype="float64", replicas=2), settings)
        if settings.precision == "float64":
            return record
        error = ErrorRecord("deadline", "60 s", "stacks", step=0)
        return replace(record, ranks=tuple(replace(rank, error=error) for rank in record.ranks), seconds=1.0)

    def _run(self, program: Program, settings: RunSettings) -> TrainingRecord:
        record = replace(simulate(program), precision=settings.precision, seconds=1.0)
        facts = {"widened": ("mixed_float16",)} if settings.precision == "float64" else {}
        return replace(record, ranks=tuple(replace(rank, facts=facts) for rank in record.ranks))


def test_too_little_time_for_the_own_precision_is_no_hang() -> None:
    report = PlainComparison(Slow(), RunSettings(), QUESTION).in_precision("auto")  # type: ignore[arg-type]
    assert report.verdict == "inconclusive"
    assert "longer timeout" in report.inconclusive[0]


def test_an_expected_difference_of_the_own_precision_is_no_unused_expectation() -> None:
    finding = _report(scale=2.0).findings[0]
    unused = replace(_report(), unused_expectations={"reduction-overflow": "known"})
    used = replace(_report(), expected=((finding, "known"),))
    report = judged_in_own_precision(unused, lambda: used)
    assert report.unused_expectations == {}
    assert report.expected == ((finding, "known"),)


def _report(**sins: object) -> Report:
    reference, distributed = pair(Program(replicas=2), **sins)
    (rank,) = reference.ranks
    reference = replace(reference, ranks=(replace(rank, facts={"widened": ["mixed_float16"]}),))
    report = judge(reference, distributed, checks=["STEP-EQ"])
    return replace(report, results=(*report.results, passed("RUN", "made up")))


def _pair(seed: int, **sins: object) -> tuple[TrainingRecord, TrainingRecord]:
    return pair(Program(replicas=2, dtype="float32", seed=seed), **sins)


def _shifted(snapshot: object) -> dict[int, tuple[np.ndarray, ...]]:
    shifted = dict(snapshot)  # type: ignore[call-overload]
    shifted[0] = tuple(part + np.float32(0.01) for part in shifted[0])
    return shifted


def _rounded(record: TrainingRecord, seed: int) -> TrainingRecord:
    """The record as if every change of a weight had been rounded to bfloat16, in an order of its own."""
    generator = np.random.default_rng(seed)
    (rank,) = record.ranks
    steps = []
    for step in rank.steps:
        snapshot = dict(step.snapshot)
        for index in (0, 1):
            part = np.asarray(snapshot[index][0])
            change = part - np.asarray(rank.initial[index][0])
            noise = unit_roundoff("bfloat16") * generator.uniform(-1, 1, change.shape) * np.max(np.abs(change))
            snapshot[index] = tuple((part + noise).astype(np.float32) for _copy in snapshot[index])
        steps.append(replace(step, snapshot=snapshot))
    return casting(replace(record, ranks=(replace(rank, steps=tuple(steps)),)))
