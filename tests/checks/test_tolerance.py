"""Bounds follow rounding: re-ordered sums never alarm, defects are not hidden, wide bounds do not decide."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from simulated_training import Program, pair, simulate

from pytest_ddl.equivalence.evidence.arithmetic import unit_roundoff
from pytest_ddl.equivalence.evidence.bounds import Bound, Decision
from pytest_ddl.equivalence.evidence.tolerance import Tolerance
from pytest_ddl.equivalence.findings import Outcome
from pytest_ddl.equivalence.verdict.judge import judge, needs_noise
from pytest_ddl.records import GradientRecord, GradientStage, TrainingRecord, VariableKind, VariableRecord


def _judged(program: Program, **sins: object) -> tuple[str, bool]:
    """Judge as the driver does: measure noise if that may change the verdict."""
    reference, distributed = pair(program, **sins)
    report = judge(reference, distributed)
    measured = needs_noise(report)
    if measured:
        noise = [simulate(replace(program, replicas=1, workers=1, perturbation=p)) for p in (1, 2)]
        report = judge(reference, distributed, noise)
    return report.verdict, measured


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("optimizer", ["SGD", "Adam"])
def test_reordered_sums_never_alarm(dtype: str, optimizer: str) -> None:
    verdicts = [
        _judged(
            Program(
                replicas=2 + 2 * (seed % 2),
                seed=seed,
                dtype=dtype,
                optimizer=optimizer,
                batches=(8, 8, 5),
                shuffle_sums=True,
            )
        )
        for seed in range(60)
    ]
    assert [verdict for verdict, _measured in verdicts] == ["pass"] * 60


def test_float16_does_not_alarm() -> None:
    verdicts = {_judged(Program(replicas=2, seed=seed, dtype="float16", shuffle_sums=True))[0] for seed in range(20)}
    assert "fail" not in verdicts


def test_unstable_training_is_not_an_alarm() -> None:
    verdicts = [
        _judged(
            Program(
                replicas=2,
                seed=seed,
                dtype="float32",
                learning_rate=4.0,
                batches=(8,) * 12,
                shuffle_sums=True,
            )
        )[0]
        for seed in range(8)
    ]
    assert "fail" not in verdicts


def test_cancellation_is_measured_not_alarmed() -> None:
    # Gradients that nearly cancel: the a-priori bound knows only the small sum, not its large terms.
    verdicts = [
        _judged(
            Program(
                replicas=2,
                seed=seed,
                dtype="float32",
                target_scale=1e4,
                learning_rate=0.5,
                batches=(12,) * 6,
                shuffle_sums=True,
            )
        )[0]
        for seed in range(8)
    ]
    assert "fail" not in verdicts


@pytest.mark.parametrize("scale", [2.0, 0.5, 1.1])
def test_defects_survive_measured_bounds_in_float32(scale: float) -> None:
    assert _judged(Program(replicas=2, dtype="float32"), scale=scale) == ("fail", True)


def test_bound_too_wide_to_decide_is_inconclusive() -> None:
    program = Program(replicas=2, dtype="float32")
    reference, distributed = pair(program, scale=1.02)
    noise = simulate(replace(program, replicas=1, learning_rate=0.101))
    report = judge(reference, distributed, [noise], checks=["STEP-EQ"])
    assert report.verdict == "inconclusive"
    assert 'use precision="float64"' in report.inconclusive[0]
    step = next(result for result in report.results if result.check == "STEP-EQ")
    assert step.outcome is Outcome.INCONCLUSIVE


@pytest.mark.parametrize(("scale", "verdict"), [(1.02, "inconclusive"), (2.0, "fail")])
def test_a_small_difference_decides_nothing_if_the_runs_that_measure_noise_have_failed(
    scale: float, verdict: str
) -> None:
    program = Program(replicas=2, dtype="float32")
    reference, distributed = pair(program, scale=scale)
    noise = simulate(replace(program, replicas=1, perturbation=1))
    ended = replace(noise, ranks=tuple(replace(rank, steps=()) for rank in noise.ranks))
    report = judge(reference, distributed, [ended], checks=["STEP-EQ"])
    assert report.verdict == verdict, str(report)


def test_bound_decides_by_the_effect_of_one_example() -> None:
    bound = Bound(1.0, "test", effect=0.1, unamplified=0.2)
    assert bound.judge(0.05) is Decision.WITHIN
    assert bound.judge(0.15) is Decision.UNDECIDED
    assert Bound(1.0, "test", effect=0.1, unamplified=0.02).judge(0.05) is Decision.UNDECIDED
    assert Bound(1.0, "test", effect=2.0).judge(0.5) is Decision.WITHIN
    assert bound.judge(1.5) is Decision.BEYOND
    assert bound.judge(float("nan")) is Decision.BEYOND
    assert bound.judge(float("inf")) is Decision.BEYOND


def test_bound_scales_with_the_unit_roundoff() -> None:
    narrow, wide = (Tolerance(simulate(Program(dtype=d))).variable(0, 1).value for d in ("float64", "float32"))
    assert wide / narrow == pytest.approx(2.0**29, rel=0.01)
    assert unit_roundoff("bfloat16") == 2.0**-8
    assert unit_roundoff("int64") == 0.0


def test_integers_and_initial_values_are_compared_exactly() -> None:
    tolerance = Tolerance(simulate(Program()))
    assert tolerance.variable(4, 2).value == 0.0
    assert tolerance.variable(0, 0).value == 0.0


def test_measured_bound_contains_the_noise_and_says_where_it_comes_from() -> None:
    program = Program(dtype="float32")
    noise = [simulate(replace(program, perturbation=p)) for p in (1, 2)]
    bound = Tolerance(simulate(program), noise).variable(0, 2)
    assert bound.measured
    assert "how far 2 run(s) moved" in bound.origin
    assert bound.value > Tolerance(simulate(program)).variable(0, 2).value


def test_float32_losses_of_a_float64_program_have_their_own_bound() -> None:
    def rounded(record: TrainingRecord, direction: float) -> TrainingRecord:
        steps = tuple(
            replace(step, loss=float(np.nextafter(np.float32(step.loss), np.float32(direction))))
            for step in record.ranks[0].steps
        )
        return replace(record, ranks=(replace(record.ranks[0], steps=steps),))

    reference, distributed = pair(Program(replicas=2))
    assert judge(rounded(reference, -1), rounded(distributed, 9)).passed


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_training_before_the_first_watch_leaves_rounding_and_hides_no_difference(dtype: str) -> None:
    program = Program(replicas=2, dtype=dtype)
    ulp = float(np.finfo(dtype).eps)

    def judged(shift: float, before: int) -> list[str | None]:
        reference, distributed = pair(program, initial_shift=shift)
        noise = [simulate(replace(program, replicas=1, perturbation=p)) for p in (1, 2)]
        (rank,) = reference.ranks
        reference = replace(reference, ranks=(replace(rank, facts={"trained_before": before}),))
        return [finding.cause for finding in judge(reference, distributed, noise).findings]

    assert judged(8 * ulp, before=0) == ["initial-weights-differ"]
    assert judged(8 * ulp, before=4) == []
    assert judged(1e5 * ulp, before=4) == ["initial-weights-differ"]


def _with_a_slow_layer(record: TrainingRecord, factor: float = 1.0) -> TrainingRecord:
    """Return a record with a vocabulary, which widens all bounds, and with a bias that moves very little."""
    (rank,) = record.ranks
    index = len(rank.variables)
    words = VariableRecord(
        index, "words", VariableKind.FROZEN, (30_000, 1), "float32", distributed=record.num_replicas > 1
    )
    table = (np.zeros((30_000, 1), np.float32),) * record.num_replicas
    start = np.ones(3)  # like the scale of a normalization
    moved = [np.asarray(rank.initial[1][0], np.float64)] + [
        np.asarray(s.snapshot[1][0], np.float64) for s in rank.steps
    ]
    # What is lost in rounding to float32 stands for the noise.
    values = [(start + 1e-4 * factor * (value - moved[0])).astype(np.float32) for value in moved]
    if record.perturbation:
        values = [value + np.float32(2.0**-23) for value in values]
    added = [{1: (value,) * record.num_replicas, index: table} for value in values]
    steps = tuple(
        replace(step, snapshot={**step.snapshot, **more}) for step, more in zip(rank.steps, added[1:], strict=True)
    )
    changed = replace(rank, variables=(*rank.variables, words), initial={**rank.initial, **added[0]}, steps=steps)
    return replace(record, ranks=(changed,))


@pytest.mark.parametrize(("factor", "verdict"), [(1.0, "pass"), (1.24, "inconclusive"), (1.47, "inconclusive")])
def test_a_slow_layer_is_not_taken_for_one_that_stands_still(factor: float, verdict: str) -> None:
    program = Program(replicas=2, dtype="float32")
    reference, distributed = pair(program)
    noise = [_with_a_slow_layer(simulate(Program(dtype="float32", perturbation=p))) for p in (1, 2, 3)]
    reference = _with_a_slow_layer(reference)
    report = judge(reference, _with_a_slow_layer(distributed, factor), noise, checks=["STEP-EQ", "MOVES"])
    steps = max(abs(np.asarray(reference.value(1, s)) - np.asarray(reference.value(1, s - 1))).max() for s in (1, 2, 3))
    assert steps < Tolerance(reference, noise).variable(1, 3).value
    assert report.verdict == verdict, str(report)
    if verdict == "inconclusive":
        assert any("dense/bias" in doubt for doubt in report.inconclusive)


@pytest.mark.parametrize(
    ("moved", "noise", "verdict"), [(1e-17, 0.2, "pass"), (1e-3, 1e-15, "fail")], ids=["by rounding", "by its gradient"]
)
def test_a_slot_that_is_made_late_stands_still_if_only_rounding_moves_it(
    moved: float, noise: float, verdict: str
) -> None:
    """A second optimizer has slots from step 2 on. The longest step of this one comes later than its difference."""

    def with_slot(record: TrainingRecord, third: float, fourth: float) -> TrainingRecord:
        (rank,) = record.ranks
        index = len(rank.variables)
        slot = VariableRecord(index, "adam_1/bias_velocity", VariableKind.SLOT, (1,), "float64", since=2)
        values = [None, np.zeros(1), np.array([third]), np.array([fourth])]
        steps = tuple(
            step if value is None else replace(step, snapshot={**step.snapshot, index: (value,) * record.num_replicas})
            for step, value in zip(rank.steps, values, strict=True)
        )
        initial = {**rank.initial, index: (np.zeros(1),) * record.num_replicas}
        return replace(record, ranks=(replace(rank, variables=(*rank.variables, slot), initial=initial, steps=steps),))

    program = Program(batches=(12,) * 4)
    last = 40.0 * moved
    reference = with_slot(simulate(program), moved, last)
    distributed = with_slot(simulate(replace(program, replicas=2)), 1.1 * moved, last)
    perturbed = [
        with_slot(simulate(replace(program, perturbation=p)), moved * (1 + p * noise), last * (1 + p * noise))
        for p in (1, 2, 3)
    ]
    report = judge(reference, distributed, perturbed, checks=["OPT-STATE"])
    assert report.verdict == verdict, str(report)


@pytest.mark.parametrize(
    ("sparse", "numbers", "length"),
    [(True, 60, 60), (True, 24, 48), (True, 0, 12 * 30_000), (False, 60, 12 * 30_000)],
    ids=["positions", "features", "not observed", "a dense gradient too"],
)
def test_rows_of_a_vocabulary_are_not_added_up(sparse: bool, numbers: int, length: int) -> None:
    record = _with_a_slow_layer(simulate(Program(dtype="float32")))
    (rank,) = record.ranks
    index = len(rank.variables) - 1
    given = {"values": {index: np.zeros((30_000, 1), np.float32)}, "sparse": frozenset({index} if sparse else ())}
    gradients = (GradientRecord(0, GradientStage.COMPUTED, 0, **given),)
    steps = tuple(
        replace(step, gradients=gradients, batches=tuple(replace(b, numbers=numbers) for b in step.batches))
        for step in rank.steps
    )
    assert Tolerance(replace(record, ranks=(replace(rank, steps=steps),))).length == length
