"""Judge a program that computes in half precision twice: in a wider type, and in its own precision."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from pytest_ddl.equivalence.findings import Doubt
from pytest_ddl.equivalence.report import Report
from pytest_ddl.notes import Note, NoteKind
from pytest_ddl.records import TrainingRecord


def replaced_policies(record: TrainingRecord) -> list[str]:
    """Return the half precision policies of Keras, and the casts to half precision, that a run replaced."""
    return sorted({name for rank in record.ranks for name in rank.facts.get("widened", ())})


def judged_in_own_precision(report: Report, run: Callable[[], Report]) -> Report:
    """Complete the report of a comparison in a wider type with one in the program's own precision.

    float64 shows whether the program is right, to a single example. float32 shows it too, and is used if Keras casts to
    it under the strategy. Only the program's own precision shows what goes wrong in it: an overflow, a loss scale, a
    sum in the wrong type. A program passes if both comparisons agree with one device.

    :param run: compares in the program's own precision; not called if the first comparison shows a difference.
    """
    assert report.reference is not None
    names, wide = " and ".join(replaced_policies(report.reference)), report.reference.precision
    if report.findings:
        return replace(report, notes=(Note(NoteKind.HOW, f"compared in {wide} instead of {names}"), *report.notes))
    own = run()
    if own.findings:
        text = f"the difference was found in {names}; the comparison in {wide} " + (
            "found none" if report.passed else "could not decide"
        )
        return replace(own, notes=(Note(NoteKind.HOW, text), *own.notes))
    text = f"compared in {wide} instead of {names}, and also in {names} as far as its rounding allows"
    known = {(finding.cause, finding.owner) for finding, _reason in report.expected}
    return replace(
        report,
        expected=(*report.expected, *((f, reason) for f, reason in own.expected if (f.cause, f.owner) not in known)),
        known=(*report.known, *(f for f in own.known if f.known not in {other.known for other in report.known})),
        unused_expectations={
            cause: reason for cause, reason in report.unused_expectations.items() if cause in own.unused_expectations
        },
        doubts=(
            *report.doubts,
            *(Doubt(doubt.check, f"in {names}: {doubt.reason}") for doubt in own.doubts if doubt not in report.doubts),
        ),
        notes=tuple(dict.fromkeys((Note(NoteKind.HOW, text), *report.notes, *own.notes))),
        seconds=report.seconds + own.seconds,
    )
