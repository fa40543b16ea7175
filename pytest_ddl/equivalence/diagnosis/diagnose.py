"""Find the cause of different updates: test candidate causes by recomputing the distributed update.

A candidate either *reproduces* the observed update within the rounding bound (exact) or is only *consistent* with the
records (not exact). An exact candidate is preferred. If several fit equally well, the first is named and the others are
mentioned. One number is never enough for a conclusion.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from pytest_ddl.equivalence.causes import is_possible
from pytest_ddl.equivalence.diagnosis.candidates import CANDIDATES
from pytest_ddl.equivalence.diagnosis.case import Candidate, Case
from pytest_ddl.equivalence.evidence.arrays import magnitude, ratio_of_norms
from pytest_ddl.equivalence.findings import Diagnosis

DIVERGING = ("gradient-not-aggregated", "non-finite-not-synchronised", "sparse-gradient-mismatch")
"""Causes that make replicas differ from each other, so that they explain REPLICA-EQ too."""


def diagnose(case: Case, candidates: Sequence[Candidate] = CANDIDATES) -> Diagnosis:
    """Test all candidates and name the one that reproduces the observed update."""
    fits = [
        replace(fit, also=tuple(cause for cause in fit.also if is_possible(cause, case.neutralized)))
        for candidate in candidates
        if (fit := candidate(case)) is not None and is_possible(fit.cause, case.neutralized)
    ]
    if any(motion.components_differ for motion in case.weights):
        # A cause that acts alike on all replicas cannot explain a difference between them, unless it was recomputed.
        fits = [fit for fit in fits if fit.exact or fit.cause in DIVERGING]
    exact = [fit for fit in fits if fit.exact]
    chosen = exact or fits
    if not chosen:
        return Diagnosis(None, f"{len(candidates)} candidate causes were tried, none fits; {ratios(case)}")
    first = chosen[0]
    also = [c for fit in chosen for c in (fit.cause, *fit.also) if c != first.cause]
    # An approximation excuses a difference only if no other cause explains it equally well by recomputation.
    excused = first.approximation and len({fit.cause for fit in exact}) <= 1
    return Diagnosis(first.cause, first.evidence, tuple(dict.fromkeys(also)), excused, first.exact)


def ratios(case: Case, limit: int = 4) -> str:
    """Describe the ratio of the changes of each variable, which a person would look at first."""
    found = []
    for motion in case.weights:
        largest = magnitude(motion.ours)
        if largest > motion.slack:
            ratio = ratio_of_norms(motion.theirs[0], motion.ours)
            found.append(f"{motion.variable.name} {ratio:.4g}x")
    more = f" and {len(found) - limit} more" if len(found) > limit else ""
    return f"update ratios: {', '.join(found[:limit])}{more}" if found else "no trainable variable moved on one device"
