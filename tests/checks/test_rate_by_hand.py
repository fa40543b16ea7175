"""The learning rate of an update by hand: any factor fits a single number, so a single number proves nothing."""

from __future__ import annotations

import numpy as np
import pytest

from pytest_ddl.equivalence.diagnosis.candidates.case import Case
from pytest_ddl.equivalence.evidence.tolerance import Tolerance
from pytest_ddl.records import (
    GradientRecord,
    GradientStage,
    RankRecord,
    StepRecord,
    TrainingRecord,
    VariableKind,
    VariableRecord,
)

BIAS = np.array([3.0])
KERNEL = np.array([1.0, 2.0, -4.0])
OTHER = np.array([1.0, 1.0, -1.0])


def record(gradients: list[np.ndarray], changes: list[np.ndarray], told: int) -> TrainingRecord:
    """One step that changes weights from zero; gradients of the first ``told`` weights are recorded."""
    variables = tuple(
        VariableRecord(index, f"weight{index}", VariableKind.TRAINABLE, value.shape, "float64")
        for index, value in enumerate(changes)
    )
    initial = {index: (np.zeros_like(value),) for index, value in enumerate(changes)}
    known = GradientRecord(0, GradientStage.COMPUTED, 0, dict(enumerate(gradients[:told])))
    step = StepRecord(1, 1.0, snapshot={index: (value,) for index, value in enumerate(changes)}, gradients=(known,))
    rank = RankRecord(0, "local", (0,), variables=variables, initial=initial, steps=(step,))
    return TrainingRecord("one_device", 1, (rank,), 4, "float64", 0)


@pytest.mark.parametrize(
    ("gradients", "changes", "told", "units"),
    [
        pytest.param([KERNEL, BIAS], [-0.1 * KERNEL, -0.1 * BIAS], 2, True, id="by hand"),
        pytest.param([KERNEL, BIAS], [-0.1 * OTHER, -0.1 * BIAS], 2, False, id="the larger weight contradicts"),
        pytest.param([BIAS, KERNEL], [-0.1 * BIAS, -0.1 * OTHER], 2, False, id="in another order"),
        pytest.param([KERNEL, BIAS], [-0.1 * KERNEL, -0.1 * BIAS], 1, True, id="a gradient is not known"),
        pytest.param([BIAS], [-0.1 * BIAS], 1, True, id="nothing but single numbers"),
    ],
)
def test_a_rate_needs_more_than_one_number(gradients, changes, told, units):
    run = record(gradients, changes, told)
    case = Case(run, run, Tolerance(run), 1)
    assert case.in_gradient_units is units
