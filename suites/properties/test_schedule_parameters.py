"""Compare learning-rate schedules, with all of their parameters, with their formulas in NumPy on every replica."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from suites.parameters.replicas import on_replicas
from suites.parameters.spaces import Arguments, Space, Wrong

pytestmark = pytest.mark.usefixtures("float64")

STEPS = np.arange(16.0)
"""Steps before, at and after the ends of all decays."""
_NAMES = {"name": ("one", "another")}
_FIRST = {"initial_learning_rate": (0.5, 1.0), **_NAMES}
_DECAY = {**_FIRST, "decay_steps": (4, 6)}
_RATES = {"decay_rate": (0.5, 0.25), "staircase": (False, True)}


def _passed(decay_steps: int, *, staircase: bool) -> Any:
    return np.floor(STEPS / decay_steps) if staircase else STEPS / decay_steps


def exponential(initial_learning_rate: float, decay_steps: int, decay_rate: float, staircase: bool) -> Any:
    return initial_learning_rate * decay_rate ** _passed(decay_steps, staircase=staircase)


def inverse(initial_learning_rate: float, decay_steps: int, decay_rate: float, staircase: bool) -> Any:
    return initial_learning_rate / (1 + decay_rate * _passed(decay_steps, staircase=staircase))


def constant(boundaries: Any, values: Any) -> Any:
    """A value holds up to its boundary, with it."""
    return np.asarray(values)[np.searchsorted(boundaries, STEPS, side="left")]


def polynomial(
    initial_learning_rate: float, decay_steps: int, end_learning_rate: float, power: float, cycle: bool
) -> Any:
    whole = decay_steps * (np.maximum(1, np.ceil(STEPS / decay_steps)) if cycle else 1.0)
    left = 1 - (STEPS if cycle else np.minimum(STEPS, decay_steps)) / whole
    return (initial_learning_rate - end_learning_rate) * left**power + end_learning_rate


def _cosine(share: Any, alpha: float) -> Any:
    return (1 - alpha) * (1 + np.cos(np.pi * share)) / 2 + alpha


def cosine(
    initial_learning_rate: float,
    decay_steps: int,
    alpha: float,
    warmup_target: float | None = None,
    warmup_steps: int = 0,
) -> Any:
    """The rate rises to the target first, if there is one."""
    if warmup_target is None:
        return initial_learning_rate * _cosine(np.minimum(STEPS, decay_steps) / decay_steps, alpha)
    rising = initial_learning_rate + (warmup_target - initial_learning_rate) * STEPS / max(warmup_steps, 1)
    after = warmup_target * _cosine(np.clip((STEPS - warmup_steps) / decay_steps, 0, 1), alpha)
    return np.where(warmup_steps > STEPS, rising, after)


def restarts(initial_learning_rate: float, first_decay_steps: int, t_mul: float, m_mul: float, alpha: float) -> Any:
    """Each period is ``t_mul`` times as long as the one before, and begins at ``m_mul`` times its rate."""
    found = []
    for step in STEPS:
        begin, length, top = 0.0, float(first_decay_steps), 1.0
        while step >= begin + length:
            begin, length, top = begin + length, length * t_mul, top * m_mul
        found.append(
            initial_learning_rate * ((1 - alpha) * top * (1 + np.cos(np.pi * (step - begin) / length)) / 2 + alpha)
        )
    return np.asarray(found)


def _as_many(case: Arguments) -> bool:
    return "values" not in case or "boundaries" not in case or len(case["values"]) == len(case["boundaries"]) + 1


def _rising(case: Arguments) -> bool:
    """Return whether steps of a rise have a target."""
    return case.get("warmup_target", 1) is not None or not case.get("warmup_steps")


_OF = "optimizers.schedules"
SCHEDULES = (
    (Space(f"{_OF}.ExponentialDecay", {**_DECAY, **_RATES}), exponential),
    (Space(f"{_OF}.InverseTimeDecay", {**_DECAY, **_RATES}), inverse),
    (
        Space(
            f"{_OF}.PiecewiseConstantDecay",
            {
                "boundaries": ([3, 6], [2, 9], [4]),
                "values": ([1.0, 0.5, 0.25], [0.5, 1.0, 0.125], [1.0, 0.5]),
                **_NAMES,
            },
            allowed=_as_many,
        ),
        constant,
    ),
    (
        Space(
            f"{_OF}.PolynomialDecay",
            {**_DECAY, "end_learning_rate": (0.0, 0.125), "power": (1.0, 2.0), "cycle": (False, True)},
        ),
        polynomial,
    ),
    (
        Space(
            f"{_OF}.CosineDecay",
            {**_DECAY, "alpha": (0.0, 0.25), "warmup_target": (None, 2.0), "warmup_steps": (0, 3)},
            allowed=_rising,
        ),
        cosine,
    ),
    (
        Space(
            f"{_OF}.CosineDecayRestarts",
            {**_FIRST, "first_decay_steps": (4, 3), "t_mul": (2.0, 1.5), "m_mul": (1.0, 0.5), "alpha": (0.0, 0.25)},
        ),
        restarts,
    ),
)
BOTH = ("one_device", "mirrored")
SPACES = dict.fromkeys((space for space, _ in SCHEDULES), BOTH)
"""Spaces of the properties of this file -> their strategies."""


@pytest.mark.ddl(strategies=list(BOTH))
@pytest.mark.ddl_item("optimizer.lr_schedule")
@pytest.mark.parametrize(("space", "model"), SCHEDULES, ids=lambda one: getattr(one, "name", ""))
def test_a_schedule_is_its_formula(space, model, ddl_strategy):
    """Keras computes rates in float32 at least: its rounding is far below the bound, and a wrong step far above it."""
    import tensorflow as tf

    def rates_of(case: Arguments) -> Any:
        schedule = space.make(case)
        assert schedule.name == case["name"]
        return lambda _replica: tf.stack([tf.cast(schedule(tf.constant(step)), tf.float64) for step in STEPS])

    wrong, cases = Wrong(), space.cases()
    for case, results in zip(cases, on_replicas(ddl_strategy, [rates_of(case) for case in cases]), strict=True):
        with wrong.of(case):
            expected = model(**{name: value for name, value in case.items() if name != "name"})
            for found in results.values():
                np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
    wrong.check()
    assert cases
