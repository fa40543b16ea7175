"""What several families of candidates read off a case."""

from __future__ import annotations

from pytest_ddl.checks.arrays import Float
from pytest_ddl.checks.case import Case, Source
from pytest_ddl.checks.combination import Clip, clips_between, weighted_sum
from pytest_ddl.records import GradientStage

RANDOM_LAYERS = ("Dropout", "SpatialDropout*", "AlphaDropout", "Gaussian*", "Random*")
CLIPS = ("clipnorm", "global_clipnorm", "clipvalue")


def total_of(source: Source) -> dict[int, Float]:
    """Variable -> the sum of the replicas' gradients."""
    summed = {}
    for index in {index for part in source.parts for index in part}:
        value = weighted_sum(source.parts, [1.0] * len(source.parts), index)
        if value is not None:
            summed[index] = value
    return summed


def combined(source: Source, shares: list[float]) -> dict[int, Float]:
    """Variable -> the weighted sum of the replicas' gradients."""
    indices = {index for part in source.parts for index in part}
    found = ((index, weighted_sum(source.parts, shares, index)) for index in indices)
    return {index: value for index, value in found if value is not None}


def tell_apart(case: Case, source: Source) -> bool:
    """Say whether replicas differ in a gradient: equal ones have been reduced, or had equal data."""
    close, first = case.close(), source.parts[0]
    return any(not close(i, part[i], first[i]) for part in source.parts[1:] for i in first if i in part)


def configured_limit(case: Case) -> Clip | None:
    """The limit that the optimizer was made with."""
    for kind in CLIPS:
        limit = case.setting(kind)
        if limit:
            return Clip(kind, limit)
    return None


def limits_of(case: Case) -> list[Clip]:
    """The limits under which gradients were clipped: of the optimizer, or as one device's gradients show."""
    configured = configured_limit(case)
    if configured is not None:
        return [configured]
    found: dict[tuple[str, str], Clip] = {}
    computed, applied = (case.own.get(stage) for stage in GradientStage)
    moved = {m.variable.index: m.ours for m in case.pulls}
    steps = [(computed, applied), (applied, moved), (computed, moved)]
    for before, after in steps:
        if before and after:
            both = set(before) & set(after)
            for clip in clips_between({i: before[i] for i in both}, {i: after[i] for i in both}, case.close()):
                found.setdefault((clip.kind, f"{clip.limit:.6g}"), clip)
    return list(found.values())
