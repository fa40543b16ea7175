"""Recognize what must be judged in the precision of the program: half precision, and casts to float32."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

from pytest_ddl.equivalence.checks.loss import CHECK as LOSS_EQ
from pytest_ddl.equivalence.diagnosis.afterwards import CAUSE as CHANGED_AFTERWARDS
from pytest_ddl.equivalence.evidence.arithmetic import unit_roundoff
from pytest_ddl.equivalence.evidence.arrays import difference, magnitude
from pytest_ddl.equivalence.evidence.observe import WEIGHTS, compared_with_reference, of_kind, update
from pytest_ddl.equivalence.findings import Doubt, Finding, Grounds
from pytest_ddl.equivalence.roles import Role
from pytest_ddl.equivalence.verdict.report import Report
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
    doubts = (Doubt(d.check, f"in {names}: {d.reason}") for d in own.doubts if d not in report.doubts)
    how = replace(report, notes=(Note(NoteKind.HOW, text), *report.notes))
    return how.joined(replace(own, doubts=tuple(doubts)))


def has_cause_below_rounding(report: Report) -> bool:
    """Return whether weights differ in float64 without a recomputed cause, and a step rounds to float32.

    The bounds of float64 are too narrow for what such a step computes, so that no recomputation fits.
    """
    updates = [finding for finding in report.findings if report.roles.have(finding, Role.UPDATES)]
    if not updates or report.reference.errors or report.distributed.errors:
        return False
    narrowed = (rank.facts.get("narrowed") for one in (report.reference, report.distributed) for rank in one.ranks)
    return not _is_explained(updates[0]) and any(narrowed)


def named_in_own_precision(report: Report, own: Report) -> Report:
    """Return the comparison in the program's own precision if it names a cause of the first difference."""
    first = own.findings[0] if own.findings else None
    if first is None or first.step != report.findings[0].step or not _is_explained(first):
        return report
    text = "compared in the program's own precision: it rounds to float32 in a step, which float64 cannot recompute"
    return replace(own, notes=(Note(NoteKind.HOW, text), *own.notes))


def _is_explained(finding: Finding) -> bool:
    """Return whether a cause was recomputed, or a check itself names it, as CLIP does."""
    return finding.cause is not None and (finding.grounds is None or finding.exact)


_ROUNDINGS = 8
"""Number of roundings to float32 on the way to one update, for example Keras' ``1 / num_replicas``, cast twice."""


def is_of_single_precision(report: Report) -> bool:
    """Return whether a program that computes partly in float32 first differs by no more than that rounds.

    A weight penalty or an epsilon may be as small. So the runs must have recorded casts from or to float32, and no
    cause may reproduce the difference. Such a program is compared in its own precision, like one that refuses float64.
    """
    reference, distributed = report.reference, report.distributed
    by_step, others = (
        [finding for finding in report.findings if report.roles.have(finding, role)]
        for role in (Role.UPDATES | Role.LOSS, Role.SLOTS | Role.STATE | Role.METRICS)
    )
    judged = by_step or others  # While weights or losses differ, other values may follow from them.
    if reference.errors or distributed.errors:
        return False
    # A loss is also recomputed from the losses of the replicas, with what float32 rounded in them.
    explained = any(finding.grounds is Grounds.RECOMPUTED for finding in judged if finding.check != LOSS_EQ)
    if explained or not _rounds_to_single(reference, distributed):
        return False
    return bool(judged) and all(_is_rounding(reference, distributed, finding, bool(by_step)) for finding in judged)


def _rounds_to_single(reference: TrainingRecord, distributed: TrainingRecord) -> bool:
    """Return whether float32 may round what a step computes, or one of the runs has constants of its own."""
    casts, constants = 0, []
    for record in (reference, distributed):
        noted = [rank.facts.get("single", (0, ())) for rank in record.ranks]
        casts += sum(number for number, _constants in noted)
        constants.append({constant for _number, those in noted for constant in those})
    return casts > 0 or constants[0] != constants[1]


def _is_rounding(reference: TrainingRecord, distributed: TrainingRecord, finding: Finding, of_steps: bool) -> bool:
    step = finding.step
    relative = _ROUNDINGS * unit_roundoff("float32")
    if not of_steps or finding.cause == CHANGED_AFTERWARDS:
        scale, times = _scale(reference, finding), distributed.num_replicas
        error = math.inf if finding.error is None else finding.error
        # A metric that is given means counts once for each replica. What that gives is judged in the new comparison.
        return min(error, abs(error - (times - 1) * scale)) <= relative * times * scale
    if not step or step > min(reference.num_steps, distributed.num_steps):
        return False
    if finding.check == LOSS_EQ:
        losses = [rank.steps[step - 1].loss for record in (reference, distributed) for rank in record.ranks]
        known = [loss for loss in losses if loss is not None]
        return len(known) == len(losses) and max(known) - min(known) <= relative * abs(known[0])
    for variable in of_kind(reference, *WEIGHTS):
        change = update(reference, variable.index, step)
        for _rank, _replica, actual, desired in compared_with_reference(reference, distributed, variable, step):
            if change is None or not difference(actual, desired).error <= relative * magnitude(change):
                return False
    return True


def _scale(reference: TrainingRecord, finding: Finding) -> float:
    """Return the size of a reported value, or of a variable after its step or at the end of the program."""
    if finding.scale is not None:
        return finding.scale
    index = next((variable.index for variable in reference.variables if variable.name == finding.variable), None)
    if index is None:
        return 0.0
    final = (reference.ranks[0].final or {}).get(index, ())
    return max(map(magnitude, (reference.value(index, finding.step or 0), *final[:1])))
