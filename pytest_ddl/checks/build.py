"""Making findings and results: the few constructors that all checks share."""

from __future__ import annotations

from collections.abc import Sequence

from pytest_ddl.checks.causes import fix_of
from pytest_ddl.checks.diagnosis import Diagnosis
from pytest_ddl.checks.findings import CheckResult, Finding, Outcome
from pytest_ddl.checks.observe import Place
from pytest_ddl.records import TrainingRecord


def passed(check: str, reason: str) -> CheckResult:
    return CheckResult(check, Outcome.PASS, reason)


def failed(check: str, findings: Sequence[Finding], reason: str = "") -> CheckResult:
    return CheckResult(check, Outcome.FAIL, reason or findings[0].message, tuple(findings))


def inconclusive(check: str, reason: str) -> CheckResult:
    return CheckResult(check, Outcome.INCONCLUSIVE, reason)


def not_applicable(check: str, reason: str) -> CheckResult:
    return CheckResult(check, Outcome.NOT_APPLICABLE, reason)


def no_steps(check: str, distributed: TrainingRecord) -> CheckResult:
    """The result where no training step was recorded."""
    if any(rank.error for rank in distributed.ranks):
        return inconclusive(check, "the run failed before its first step was recorded")
    if any(rank.results for rank in distributed.ranks):
        return inconclusive(
            check, "the program evaluates only, and what evaluate and predict return is not compared yet"
        )
    return inconclusive(check, "no training step was recorded: does the program use run.steps, run.batches or run.fit?")


def not_observed(record: TrainingRecord, what: str) -> str:
    """Why something is missing from a record, in the recorder's words where it left any."""
    notes = [note for rank in record.ranks for note in rank.notes]
    return f"{what} not observed" + (f" ({notes[0]})" if notes else "")


def wide(place: Place) -> str:
    """Why a difference within a wide bound decides nothing."""
    return (
        f"{place.variable.name} differs by {place.difference.error:.3g} after step {place.step}: less than "
        f"rounding may explain ({place.bound.value:.3g}) but more than one example would change "
        f"({place.bound.effect:.3g}); "
        'use precision="float64" or fewer steps'
    )


def finding_at(
    check: str, place: Place, message: str, cause: str | None, diagnosis: Diagnosis | None = None
) -> Finding:
    """A finding about one component of a variable, with numbers, bound and fix filled in."""
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
        fix=fix_of(cause),
        observed=_element(place.difference.actual, place.difference.index),
        expected=_element(place.difference.desired, place.difference.index),
        origin=place.bound.origin,
        evidence=diagnosis.evidence if diagnosis else None,
        also=diagnosis.also if diagnosis else (),
        approximation=diagnosis.approximation if diagnosis else False,
        exact=diagnosis.exact if diagnosis else True,
        ratio=place.ratio,
    )


def _element(text: str, index: tuple[int, ...]) -> str:
    return f"{text} at [{', '.join(map(str, index))}]" if index else text
