"""Find out whether a number that a program reports is a sum of terms that each depend on one replica's random numbers.

If f is such a sum, f(a, a) + f(b, b) = f(a, b) + f(b, a), where the first replica draws the first argument, and all
others the second. Then the expectation of f for independent numbers is that for equal ones, which one device can show.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from pytest_ddl.equivalence.evidence.arrays import Float, all_finite, difference, is_numeric, magnitude, same
from pytest_ddl.equivalence.evidence.fit_loss import RUNNING_MEAN
from pytest_ddl.equivalence.evidence.metric_state import combined
from pytest_ddl.equivalence.evidence.observe import of_kind
from pytest_ddl.equivalence.evidence.tolerance import Tolerance
from pytest_ddl.records import TrainingRecord, VariableKind


def depends_on_draws(equal: TrainingRecord, other: TrainingRecord) -> bool:
    """Return whether two runs with other random numbers, and the same weights, report other numbers."""
    ours, theirs = (dict(_reported(record)) for record in (equal, other))
    return any(not same(value, theirs[key]) for key, value in ours.items() if key in theirs)


def mixture(tolerance: Tolerance, equal: Sequence[TrainingRecord], mixed: Sequence[TrainingRecord]) -> str | None:
    """Name a reported number that is no sum of terms of single replicas; ``None`` if there is none.

    :param equal: the runs in which all replicas draw the same numbers, the first ones or the other ones.
    :param mixed: the runs in which the first replica draws the first or the other numbers, and all others not.
    """
    found = [dict(_reported(record)) for record in (*equal, *mixed)]
    relative = 8 * tolerance.relative(tolerance.compute_roundoff)
    for key in found[0]:
        values = [np.asarray(of[key], np.float64) for of in found if key in of]
        if len(values) < len(found) or len({value.shape for value in values}) > 1 or not all(map(all_finite, values)):
            return key
        first, second, third, fourth = values
        if difference(first + second, third + fourth).error > relative * max(map(magnitude, values)):
            return key
    return None


def _reported(record: TrainingRecord) -> Iterator[tuple[str, Float]]:
    """Yield the losses, the named values and the state of metrics of all steps, each with a name for the reader."""
    for rank in record.ranks:
        for step in rank.steps:
            where = f"of step {step.index} on rank {rank.rank}"
            if step.loss is not None:
                yield f"the loss {where}", np.asarray(step.loss)
            for name, value in step.values.items():
                if name != RUNNING_MEAN:
                    yield f"{name} {where}", np.asarray(value)
    for variable in of_kind(record, VariableKind.METRIC):
        for at in range(1, record.num_steps + 1):
            state = combined(record, variable, at)
            if state is not None and is_numeric(state):
                yield f"{variable.name} after step {at}", state
