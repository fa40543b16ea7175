"""Candidates for updates that are right but for one factor: a learning rate, or the norm of another gradient."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from pytest_ddl.equivalence.diagnosis.candidates.case import Case, Fit, Source, reproduces
from pytest_ddl.equivalence.diagnosis.candidates.shared import adds_up
from pytest_ddl.equivalence.evidence.arrays import Float, coefficient, difference, flat, magnitude, norm
from pytest_ddl.equivalence.evidence.combination import global_norm
from pytest_ddl.equivalence.evidence.effective import rate_of
from pytest_ddl.equivalence.evidence.observe import update
from pytest_ddl.equivalence.findings import Grounds

_SAME = 1e-6
"""Largest relative difference of two norms that are the same limit."""


def norm_of_another_gradient(case: Case) -> Fit | None:
    """Test for the whole gradient, divided by the norm of something else than the whole gradient."""
    source = _right(case)
    if source is None or case.replicas == 1:
        return None
    whole = global_norm(source.own)
    for size, what in _sizes(source):
        factor = whole / size if size > 0 else 1.0
        if reproduces(case.weights, lambda m, factor=factor: factor * m.ours, factor):  # type: ignore[misc]
            if _fits_a_number_of_replicas_better(case, factor):
                return None
            return Fit(
                "gradient-clipped-before-aggregation",
                f"the update is {factor:.4g} x that of one device, which is the norm of the whole gradient "
                f"({whole:.4g}) divided by {what} ({size:.4g})",
            )
    return None


def _fits_a_number_of_replicas_better(case: Case, factor: float) -> bool:
    """Return whether the update is closer to N or 1/N times that of one device: coarse types leave room for both."""
    moving = [motion for motion in case.weights if magnitude(motion.ours) > motion.slack]
    seen = coefficient(flat([motion.theirs[0] for motion in moving]), flat([motion.ours for motion in moving]))
    numbers = [power for number in case.parallel for power in (float(number), 1.0 / number)]
    return seen is not None and any(abs(seen - number) < abs(seen - factor) for number in numbers)


def _sizes(source: Source) -> Iterator[tuple[float, str]]:
    sizes = [global_norm(part) for part in source.parts]
    for replica, size in enumerate(sizes):
        yield size, f"the norm of the gradient of only replica {replica}"
    yield float(np.mean(sizes)), "the mean of the replicas' norms"
    yield float(np.sum(sizes)), "the sum of the replicas' norms"
    yield float(np.max(sizes)), "the largest of the replicas' norms"
    yield float(np.linalg.norm(sizes)), "the root of the sum of the replicas' squared norms"


def rate_by_hand(case: Case) -> Fit | None:
    """Test for right gradients, and one factor (perhaps another on each replica) between all updates."""
    source, ours = _right(case), rate_of(case.reference, case.step)
    if source is None or (ours and ours == rate_of(case.distributed, case.step)):
        return None
    factors = _factor_of_each_copy(case)
    if not factors or all(abs(factor - 1) <= _SAME for factor in factors):
        return None
    shown = ", ".join(dict.fromkeys(f"{factor:.6g}" for factor in factors))
    if _norms_are_limited(case, source):
        cause = "clipping-lost" if max(factors) > 1 else "gradient-clipped-before-aggregation"
        evidence = f"on one device all updates have the same norm; under the strategy they are {shown} x as large"
        return Fit(cause, evidence, grounds=Grounds.PATTERN)
    # One factor on all replicas may come from a gradient that is summed once too often, or from a repeated update.
    alike = max(factors) - min(factors) <= _SAME * max(factors)
    if alike and (case.distributed.capabilities.coordinator or not _is_scheduled(case, source)):
        return None
    counters = [m.variable.name for m in case.state if not m.is_right]
    counted = f"; {', '.join(counters[:3])}, from which it may be computed, differs too" if counters else ""
    return Fit(
        "learning-rate-differs",
        f"the {source} the replicas add up to those of one device, and every weight moves by the same multiple of its "
        f"change on one device: {shown}{counted}",
        grounds=Grounds.RATIO,
    )


def _factor_of_each_copy(case: Case) -> list[float]:
    """Return ``c`` of ``theirs = c * ours`` for all weights together, for each replica; empty if there is none."""
    moving = [motion for motion in case.weights if np.any(motion.ours)]
    counts = {len(motion.theirs) for motion in moving}
    if len(counts) != 1 or any(np.any(theirs) for m in case.weights if m not in moving for theirs in m.theirs):
        return []
    factors = []
    ours = flat([motion.ours for motion in moving])
    for position in range(counts.pop()):
        c = coefficient(flat([motion.theirs[position] for motion in moving]), ours)
        if not c or not np.isfinite(c) or c <= 0:
            return []
        if any(difference(m.theirs[position], c * m.ours).error > m.slack * max(1.0, c) for m in moving):
            return []
        factors.append(c)
    return factors if ours.size > 1 else []


def _norms_are_limited(case: Case, source: Source) -> bool:
    """Return whether the updates of one device have one norm in several steps, although their gradients do not."""
    sizes = [(norm(change), norm(gradient)) for change, gradient in _own_updates(case, source)]
    if len(sizes) < 2 or min(map(min, sizes)) <= 0:
        return False
    updates, gradients = zip(*sizes, strict=True)
    return _spread(updates) <= _SAME**0.5 and _spread(gradients) > 0.01


def _is_scheduled(case: Case, source: Source) -> bool:
    """Return whether one device itself moves by another multiple of the gradient in different steps."""
    rates = [-(coefficient(change, gradient) or 0.0) for change, gradient in _own_updates(case, source)]
    return bool(rates) and max(rates) > 0 and _spread(rates) > _SAME**0.5


def _own_updates(case: Case, source: Source) -> Iterator[tuple[Float, Float]]:
    """Yield the change of all weights and their gradient, for each step of one device."""
    for step in range(1, case.reference.num_steps + 1):
        own: Mapping[int, Float] = Case.at(case, step).own.get(source.stage, {})
        changes = {i: change for i in own if (change := update(case.reference, i, step)) is not None}
        if own and len(changes) == len(own):
            yield flat([changes[i] for i in own]), flat(list(own.values()))


def _spread(sizes: Sequence[float]) -> float:
    return (max(sizes) - min(sizes)) / max(sizes)


def _right(case: Case) -> Source | None:
    """Return the recorded gradients closest to the update, if the replicas' add up to those of one device."""
    if not case.sources or any(not np.all(np.isfinite(t)) for m in case.weights for t in m.theirs):
        return None
    return case.sources[-1] if adds_up(case, case.sources[-1]) else None
