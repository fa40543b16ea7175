"""Find the cause of different updates: test candidate causes by recomputing the distributed update.

A candidate either reproduces the observed update within the rounding bound, or is only consistent with the records
(:class:`~pytest_ddl.equivalence.findings.Grounds`). The candidate with the strongest grounds is named. If several fit
equally well, the first is named and the others are mentioned. One number is never enough for a conclusion.
"""

from __future__ import annotations

from dataclasses import replace

from pytest_ddl.equivalence.causes import is_possible
from pytest_ddl.equivalence.diagnosis.candidates import CANDIDATES
from pytest_ddl.equivalence.diagnosis.candidates.case import Case
from pytest_ddl.equivalence.diagnosis.candidates.shared import assigned_by_the_program
from pytest_ddl.equivalence.diagnosis.facts import facts_of, places_of, tape_of
from pytest_ddl.equivalence.evidence.arrays import magnitude, ratio_of_norms
from pytest_ddl.equivalence.findings import Diagnosis, Grounds
from pytest_ddl.messages import listed

DIVERGING = ("gradient-not-aggregated", "non-finite-not-synchronised", "sparse-gradient-mismatch")
"""Causes that make replicas differ from each other, so that they explain REPLICA-EQ too."""
_STRENGTH = {Grounds.RECOMPUTED: 0, Grounds.RATIO: 0, Grounds.PATTERN: 1, Grounds.EXCLUSION: 2}


def diagnose(case: Case) -> Diagnosis:
    """Test all candidates and name the one with the strongest grounds."""
    if assigned_by_the_program(case):
        return Diagnosis(None, "; ".join((*facts_of(case), ratios(case))), look_at=places_of(case))
    fits = [
        replace(fit, also=tuple(cause for cause in fit.also if is_possible(cause, case.neutralized)))
        for candidate in CANDIDATES
        if (fit := candidate(case)) is not None and is_possible(fit.cause, case.neutralized)
    ]
    if any(motion.components_differ for motion in case.weights):
        # A cause that acts alike on all replicas cannot explain a difference between them, unless it was recomputed.
        fits = [fit for fit in fits if fit.exact or fit.cause in DIVERGING]
    if not fits:
        evidence = f"{len(CANDIDATES)} candidate causes were tried, none fits; {'; '.join(facts_of(case))}"
        return Diagnosis(None, f"{evidence}; {ratios(case)}", look_at=places_of(case), tape=tape_of(case))
    strongest = min(_STRENGTH[fit.grounds] for fit in fits)
    chosen = [fit for fit in fits if _STRENGTH[fit.grounds] == strongest]
    first = chosen[0]
    also = [c for fit in chosen for c in (fit.cause, *fit.also) if c != first.cause]
    # An approximation excuses a difference only if no other cause explains it equally well by recomputation.
    excused = first.approximation and len({fit.cause for fit in fits if fit.exact}) <= 1
    evidence = first.evidence
    look_at: tuple[str, ...] = ()
    if first.grounds is Grounds.EXCLUSION:
        evidence, look_at = "; ".join((evidence, *facts_of(case), ratios(case))), places_of(case)
    also = list(dict.fromkeys(also))
    grounds = first.grounds if first.is_grounded else Grounds.PATTERN
    named = (first.cause, evidence, tuple(also), excused, grounds, look_at, first.fix)
    return Diagnosis(*named, tape=tape_of(case), besides=first.besides)


def ratios(case: Case) -> str:
    """Describe the ratio of the changes of each variable, which a person would look at first."""
    parts = []
    for motion in case.weights:
        largest = magnitude(motion.ours)
        if largest > motion.slack:
            ratio = ratio_of_norms(motion.theirs[0], motion.ours)
            parts.append(f"{motion.variable.name} {ratio:.4g}x")
    return f"update ratios: {listed(parts, 4)}" if parts else "no trainable variable moved on one device"
