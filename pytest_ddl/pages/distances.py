"""Measure how far all variables are from one device after each step, in units of what rounding explains."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from pytest_ddl.equivalence.evidence.arrays import difference
from pytest_ddl.equivalence.evidence.observe import (
    compared_with_reference,
    is_asynchronous,
    read_locally,
    shared_steps,
)
from pytest_ddl.equivalence.evidence.tolerance import Tolerance
from pytest_ddl.equivalence.verdict.report import Report
from pytest_ddl.records import Array, TrainingRecord, VariableRecord

MOST_STEPS, LEAST_STEPS = 200, 6
"""Number of steps that are measured of longer runs. They are spread evenly."""
MOST_ELEMENTS = 30_000_000
"""Number of elements after which fewer steps are measured: a page must not take longer than the comparison."""


@dataclass(frozen=True)
class Distance:
    """Difference of one component of a variable from one device after a step."""

    rank: int
    replica: int
    error: float
    bound: float

    @property
    def excess(self) -> float:
        """Error in units of the bound. It is infinite if the values must be equal and are not."""
        if self.error == 0:
            return 0.0
        return self.error / self.bound if self.bound else np.inf

    @property
    def wrong(self) -> bool:
        return self.excess > 1


@dataclass(frozen=True)
class Track:
    """Distances of one variable over the measured steps."""

    variable: VariableRecord
    worst: tuple[Distance | None, ...]
    """Worst component after each step; ``None`` if nothing was recorded."""

    @property
    def first_wrong(self) -> int:
        """Index of the first step beyond the bound, or the number of steps if there is none."""
        return next((at for at, one in enumerate(self.worst) if one and one.wrong), len(self.worst))

    @property
    def largest(self) -> float:
        return max((one.excess for one in self.worst if one), default=0.0)


@dataclass(frozen=True)
class Distances:
    """Distances of all comparable variables, the worst variable first."""

    steps: tuple[int, ...]
    tracks: tuple[Track, ...]
    reason: str = ""
    """Why there are none."""

    @property
    def first_wrong(self) -> int | None:
        """First measured step after which a variable is beyond its bound."""
        at = min((track.first_wrong for track in self.tracks), default=len(self.steps))
        return self.steps[at] if at < len(self.steps) else None


def measured(report: Report) -> Distances:
    """Measure all variables that have a value of their own on every replica, up to the last step of both runs."""
    reference, distributed = report.reference, report.distributed
    reason = why_not(reference, distributed)
    if reason:
        return Distances((), (), reason)
    variables = comparable(reference, distributed)
    elements = distributed.num_replicas * sum(math.prod(variable.shape) for variable in variables)
    most = max(LEAST_STEPS, min(MOST_STEPS, MOST_ELEMENTS // max(elements, 1)))
    steps = _chosen(shared_steps(reference, distributed), report, most)
    bounds = bounds_of(report)
    tracks = []
    for variable in variables:
        found = (list(at_step(reference, distributed, bounds, variable, step)) for step in steps)
        worst = tuple(max(places, key=lambda one: one.excess, default=None) for places in found)
        if any(worst):
            tracks.append(Track(variable, worst))
    if not tracks:
        return Distances((), (), "no variable was recorded in both runs")
    if steps[-1] == 0 and not any(track.first_wrong == 0 for track in tracks):
        return Distances((), (), "no step was recorded in both runs, and all variables are equal before the first step")
    named = report.findings[0].variable if report.findings else None
    tracks.sort(key=lambda track: (track.first_wrong, track.variable.name != named, -track.largest))
    return Distances(steps, tuple(tracks))


def why_not(reference: TrainingRecord, distributed: TrainingRecord) -> str:
    """Return why the variables of two runs cannot be compared step by step; empty if they can."""
    if not reference.variables or not distributed.variables:
        return "no variable was watched in both runs (run.watch names what to compare)"
    if is_asynchronous(distributed):
        return "steps ran concurrently, so that no step has a state of its own"
    return ""


def comparable(reference: TrainingRecord, distributed: TrainingRecord) -> list[VariableRecord]:
    """Return the variables of the reference whose components are comparable with it."""
    pairs = zip(reference.variables, distributed.variables, strict=False)
    return [
        ours
        for ours, theirs in pairs
        if ours.kind is theirs.kind and not read_locally(ours) and not read_locally(theirs)
    ]


def bounds_of(report: Report) -> Tolerance:
    """Return the bounds that judged the report, or bounds that follow only from arithmetic."""
    return report.tolerance or Tolerance(report.reference)


def at_step(
    reference: TrainingRecord, distributed: TrainingRecord, bounds: Tolerance, variable: VariableRecord, step: int
) -> Iterator[Distance]:
    """Yield the distance of each component of a variable after a step."""
    if step == 0 and (variable.since or distributed.variables[variable.index].since):
        return
    for rank, replica, actual, desired in compared_with_reference(reference, distributed, variable, step):
        yield Distance(rank.rank, replica, _error(actual, desired), bounds.variable(variable.index, step).value)


def _error(actual: Array, desired: Array) -> float:
    """Return the largest absolute difference. The short way is for finite numbers, the usual case."""
    if actual.shape == desired.shape and actual.size and {actual.dtype.kind, desired.dtype.kind} == {"f"}:
        error = float(np.max(np.abs(actual.astype(np.float64) - desired)))
        if np.isfinite(error):
            return error
    return difference(actual, desired).error


def _chosen(last: int, report: Report, most: int) -> tuple[int, ...]:
    """Return the steps to measure: all, or those around the first finding and others that are spread evenly."""
    if last < most:
        return tuple(range(last + 1))
    first = next((finding.step for finding in report.findings if finding.step is not None), 0)
    spread = {round(at) for at in np.linspace(0, last, most - 3)}
    return tuple(sorted(spread | {step for step in range(first - 1, first + 2) if 0 <= step <= last}))
