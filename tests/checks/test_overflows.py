"""A gradient of float16 may overflow on one side only: that is no difference, and hides none."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
import pytest
from simulated_training import Program, simulate

from pytest_ddl.equivalence.checks.moves import unmoved
from pytest_ddl.equivalence.runs.comparer import PlainComparison
from pytest_ddl.equivalence.runs.question import Question
from pytest_ddl.equivalence.verdict.overflows import parting
from pytest_ddl.items.selection import DdlMark
from pytest_ddl.records import GradientRecord, GradientStage, StepRecord, TrainingRecord, VariableKind, VariableRecord
from pytest_ddl.strategies.registry import StrategyRegistry
from pytest_ddl.training.settings import RunSettings

QUESTION = Question(lambda run: None, StrategyRegistry().default("mirrored"), DdlMark())

NEAR, FAR = 40_000.0, 10.0
COUNTER = 4
"""Index of the optimizer's counter in simulated records."""


def scaled(
    replicas: int,
    skipped: tuple[int, ...] = (),
    size: float = NEAR,
    first: float = 2.0**15,
    counted: float = 0.0,
    lowered: float = 0.5,
    kept_by: int | None = None,
    cast: str = "float16",
    **sins: float,
) -> TrainingRecord:
    """Return a record with a loss scale that leaves out the updates of some steps, whose gradients overflow.

    :param size: largest number in the scaled gradients of the other steps.
    :param first: loss scale before the first step.
    :param counted: growth of the optimizer's counter in a step that is left out.
    :param lowered: factor on the loss scale in such a step.
    :param kept_by: replica on which the scale does not fall.
    """
    record = simulate(Program(replicas=replicas, dtype="float32", **sins))  # type: ignore[arg-type]
    (rank,) = record.ranks
    index = len(record.variables)
    variable = VariableRecord(index, "loss_scale", VariableKind.STATE, (), "float32", distributed=replicas > 1)

    def with_scale(snapshot: object, values: list[float]) -> dict[int, tuple[np.ndarray, ...]]:
        return {**snapshot, index: tuple(np.asarray(value, np.float32) for value in values)}  # type: ignore[dict-item]

    values = [first] * replicas
    before = with_scale(rank.initial, values)
    steps: list[StepRecord] = []
    initial = before
    for step in rank.steps:
        if step.index in skipped:
            values = [v if r == kept_by else v * lowered for r, v in enumerate(values)]
            before = {**before, COUNTER: tuple(part + np.int64(counted) for part in before[COUNTER])}
            after = with_scale(before, values)
        else:
            after = with_scale(step.snapshot, values)
            # A counter grows by one from its old value.
            after[COUNTER] = tuple(part + np.int64(1) for part in before[COUNTER])
        largest = np.inf if step.index in skipped else size
        gradients = tuple(
            GradientRecord(replica, GradientStage.COMPUTED, 0, {0: np.full((4, 3), largest, np.float32)})
            for replica in rank.replicas
        )
        steps.append(replace(step, snapshot=after, gradients=gradients, loss=None))
        before = after
    changed = replace(
        rank, variables=(*rank.variables, variable), initial=initial, steps=tuple(steps), casts={cast: 1}
    )  # fmt: skip
    return replace(record, ranks=(changed,))


def test_the_first_step_in_which_one_side_overflows_is_found() -> None:
    for reference, distributed in ((scaled(1, (2,)), scaled(2)), (scaled(1), scaled(2, (2,)))):
        found = parting(reference, distributed)
        assert found is not None
        assert (found.step, found.near) == (2, True)
        assert found.factor == 0.5 * 0.25
        assert found.scales == (len(reference.variables) - 1,)
    assert parting(scaled(1), scaled(2)) is None
    assert parting(scaled(1, (2,)), scaled(2, (2,))) is None


def test_a_gradient_far_from_an_overflow_is_no_reason() -> None:
    found = parting(scaled(1, (2,)), scaled(2, size=FAR))
    assert found is not None
    assert not found.near


@pytest.mark.parametrize(
    "distributed",
    [
        scaled(2, (1,), counted=1.0),
        scaled(2, (1,), lowered=0.25),
        scaled(2, (1,), kept_by=1),
        scaled(2, (1,), worker_shift_at=3),
        scaled(2, (1,), nan_at=3),
    ],
    ids=["counts it", "lowers the scale twice", "one replica keeps the scale", "replicas differ", "not finite"],
)
def test_a_run_that_handles_an_overflow_wrongly_is_judged_as_it_is(distributed: TrainingRecord) -> None:
    assert parting(scaled(1, (2,)), distributed) is None


def test_only_float16_overflows() -> None:
    assert parting(scaled(1, (2,), cast="bfloat16"), scaled(2)) is None


def test_a_scale_at_which_every_step_overflows_is_found() -> None:
    found = parting(scaled(1, (1, 2, 3)), scaled(2, (1, 2, 3)))
    assert found is not None
    assert (found.step, found.factor) == (4, 0.125 * 0.25)


def test_a_weight_whose_updates_are_all_left_out_need_not_move() -> None:
    assert list(unmoved(scaled(1, (1, 2, 3)))) == []


@dataclass
class Runs:
    """Program whose gradients overflow in a step on one device, unless its loss scale is smaller."""

    step: int = 2
    always: bool = False
    """True if the gradient is not finite with every loss scale."""
    sins: dict[str, float] = field(default_factory=dict)
    asked: list[float] = field(default_factory=list)

    def reference(self, settings: RunSettings) -> TrainingRecord:
        self.asked.append(settings.loss_scale_factor)
        skipped = (self.step,) if self.always or settings.loss_scale_factor == 1.0 else ()
        return self._run(1, settings, skipped)

    anew = reference

    def distributed(self, settings: RunSettings) -> TrainingRecord:
        return self._run(2, settings, (), **self.sins)

    def _run(self, replicas: int, settings: RunSettings, skipped: tuple[int, ...], **sins: float) -> TrainingRecord:
        factor = settings.loss_scale_factor
        return scaled(replicas, skipped, size=NEAR * factor, first=2.0**15 * factor, **sins)


def test_all_steps_are_compared_with_a_smaller_loss_scale() -> None:
    program = Runs()
    report = PlainComparison(program, RunSettings(), QUESTION).in_precision("native")  # type: ignore[arg-type]
    assert report.verdict == "pass", str(report)
    assert program.asked[:2] == [1.0, 0.125]
    result = report.result("STEP-EQ")
    assert result is not None
    assert "over 3 steps" in result.reason


@pytest.mark.parametrize("step", [1, 2])
def test_a_wrong_factor_is_found_beside_an_overflow(step: int) -> None:
    program = Runs(step, sins={"scale": 2.0})
    report = PlainComparison(program, RunSettings(), QUESTION).in_precision("native")  # type: ignore[arg-type]
    assert report.verdict == "fail", str(report)
    assert report.findings[0].cause == "gradient-scaled-by-replica-count"


def test_a_gradient_that_is_never_finite_on_one_side_is_a_finding() -> None:
    report = PlainComparison(Runs(always=True), RunSettings(), QUESTION).in_precision("native")  # type: ignore[arg-type]
    assert report.verdict == "fail", str(report)
