"""Build findings and results. All checks share these constructors."""

from __future__ import annotations

from collections.abc import Sequence

from pytest_ddl.equivalence.causes.special import SPECIAL
from pytest_ddl.equivalence.evidence.comparison import Place
from pytest_ddl.equivalence.evidence.observe import of_kind, shared_steps
from pytest_ddl.equivalence.findings import CheckResult, Diagnosis, Finding, Outcome
from pytest_ddl.hints import Hint
from pytest_ddl.notes import NoteKind
from pytest_ddl.records import TrainingRecord, VariableKind, VariableRecord


def passed(check: str, reason: str) -> CheckResult:
    return CheckResult(check, Outcome.PASS, reason)


def failed(check: str, findings: Sequence[Finding], reason: str = "") -> CheckResult:
    return CheckResult(check, Outcome.FAIL, reason or findings[0].message, tuple(findings))


def inconclusive(check: str, reason: str, *, follows: bool = False, in_program: bool = False) -> CheckResult:
    """Return a result without a decision.

    :param follows: True if the reason is that weights differ or that the run failed earlier.
    :param in_program: True if the program has to change before anything can be decided.
    """
    return CheckResult(check, Outcome.INCONCLUSIVE, reason, follows=follows, in_program=in_program)


def not_applicable(check: str, reason: str, needs: str = "") -> CheckResult:
    """Return a result without anything to judge.

    :param needs: what the program or the test can do to make the check apply.
    """
    return CheckResult(check, Outcome.NOT_APPLICABLE, reason, needs=needs)


def no_steps(check: str, distributed: TrainingRecord, reference: TrainingRecord | None = None) -> CheckResult:
    """Return the result of a check if no training step was recorded.

    :param reference: the run on one device, for a check that compares its steps.
    """
    if any(rank.error for rank in distributed.ranks):
        return inconclusive(check, "the run failed before its first step was recorded", follows=True)
    if reference is not None and reference.errors:
        reason = "the run on one device failed before its first step was recorded: see RUN"
        return inconclusive(check, reason, follows=True)
    if any(rank.results for rank in distributed.ranks):
        return not_applicable(check, "no training step; check METRIC-EQ judges what evaluate and predict return")
    reason = f"no training step was recorded{Hint.USES_LOOPS}"
    notes = [note for rank in distributed.ranks for note in rank.notes if note.kind is NoteKind.NEVER_BEGAN]
    reason = f"no training step was recorded: {notes[0]}" if notes else reason
    return inconclusive(check, reason, in_program=True)


def not_observed(record: TrainingRecord, what: str, kind: NoteKind) -> str:
    """State that something was not observed, with the recorder's first note on it if it left one."""
    notes = [note for rank in record.ranks for note in rank.notes if note.kind is kind]
    return f"{what} not observed" + (f" ({notes[0]})" if notes else "")


def wide(place: Place) -> str:
    """Explain why a difference within a wide bound, or below one that was not measured, decides nothing."""
    if place.bound.lost:
        return (
            f"{place.variable.name} differs by {place.difference.error:.3g} after step {place.step}: less than one "
            f"example would change ({place.bound.effect:.3g}). How far rounding moves it is not known: "
            f"{place.bound.advice}"
        )
    return (
        f"{place.variable.name} differs by {place.difference.error:.3g} after step {place.step}: less than "
        f"rounding may explain ({place.bound.value:.3g}) but more than one example would change "
        f"({place.bound.effect:.3g}); {place.bound.advice}"
    )


def unmatched(
    check: str,
    reference: TrainingRecord,
    distributed: TrainingRecord,
    kinds: Sequence[VariableKind],
    cause: str | None = None,
) -> list[Finding]:
    """Find variables of some kinds that are watched on one side only and cannot be compared.

    The result is empty after an error and before the first step, because the first step may build variables.
    """
    if reference.errors or distributed.errors or not shared_steps(reference, distributed):
        return []
    sides = [
        ("on one device", None, of_kind(reference, *kinds)),
        *(
            (f"under the strategy ({rank.task})", rank.rank, [v for v in rank.variables if v.kind in kinds])
            for rank in distributed.ranks
        ),
    ]
    where, _rank, ours = sides[0]
    for there, rank, theirs in sides[1:]:
        if not theirs and VariableKind.METRIC in kinds and any(others for _where, _rank, others in sides[1:]):
            continue  # One rank may keep a metric for all.
        alone = [kind.value for kind in kinds if len(_of(ours, kind)) != len(_of(theirs, kind))]
        alone += [left.name for left, right in zip(ours, theirs, strict=False) if left.shape != right.shape]
        if VariableKind.SLOT in kinds and not alone:  # Slots are paired by the place at which they were found.
            alone += [left.name for left, right in zip(ours, theirs, strict=False) if left.index != right.index]
        if alone:
            observed, expected = (
                ", ".join(f"{len(_of(side, kind))} {kind.value}" for kind in kinds) for side in (theirs, ours)
            )
            message = f"different variables are watched {there} and {where}: {', '.join(alone[:3])}"
            names = [v.name for v in theirs or ours]
            watched = f"{'these' if theirs else 'those of one device'}: {', '.join(names[:6])}"
            return [
                Finding(check, message, cause, step=0, worker=rank, observed=observed, expected=expected,
                        fix=SPECIAL["watched-otherwise"], evidence=watched)
            ]  # fmt: skip
    return []


def _of(variables: Sequence[VariableRecord], kind: VariableKind) -> list[VariableRecord]:
    return [variable for variable in variables if variable.kind is kind]


def finding_at(
    check: str, place: Place, message: str, cause: str | None, diagnosis: Diagnosis | None = None
) -> Finding:
    """Build a finding about one component of a variable, with numbers, bound and fix."""
    return Finding(
        check=check,
        message=message,
        cause=cause,
        step=place.step,
        variable=place.variable.name,
        replica=place.replica,
        worker=place.rank,
        error=place.difference.error,
        tolerance=place.bound.value,
        fix=diagnosis.fix if diagnosis else None,
        observed=_element(place.difference.actual, place.difference.index),
        expected=_element(place.difference.desired, place.difference.index),
        origin=place.bound.origin,
        a_priori=place.bound.a_priori,
        evidence=diagnosis.evidence if diagnosis else None,
        also=diagnosis.also if diagnosis else (),
        besides=diagnosis.besides if diagnosis else (),
        approximation=diagnosis.approximation if diagnosis else False,
        exact=diagnosis.exact if diagnosis else True,
        grounds=diagnosis.grounds if diagnosis else None,
        look_at=diagnosis.look_at if diagnosis else (),
        tape_is_right=diagnosis.tape.get(place.variable.index) if diagnosis else None,
        follows=diagnosis.follows if diagnosis else False,
        ratio=place.ratio,
    )


def _element(text: str, index: tuple[int, ...]) -> str:
    return f"{text} at [{', '.join(map(str, index))}]" if index else text
