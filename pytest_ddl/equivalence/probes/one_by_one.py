"""PS, run differently: let a coordinator run one step at a time, and compare all numbers with one device.

Steps that run concurrently depend on their order, so their weights are not compared with one device. One step at a time
depends on nothing but the examples that it consumes. One device is given the same examples in the same order, so that
it must compute the same numbers, whatever the order is.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

import numpy as np

from pytest_ddl.equivalence.causes.special import SPECIAL
from pytest_ddl.equivalence.checks.loss import CHECK as LOSS_EQ
from pytest_ddl.equivalence.checks.metric import CHECK as METRIC_EQ
from pytest_ddl.equivalence.checks.optimizer_state import CHECK as OPT_STATE
from pytest_ddl.equivalence.checks.parameter_server import CHECK as CHECK
from pytest_ddl.equivalence.checks.parameter_server import schedules_itself
from pytest_ddl.equivalence.checks.run import CHECK as RUN
from pytest_ddl.equivalence.checks.state import CHECK as STATE_EQ
from pytest_ddl.equivalence.checks.step_equality import CHECK as STEP_EQ
from pytest_ddl.equivalence.diagnosis.candidates.shared import draws_of, random_layers
from pytest_ddl.equivalence.diagnosis.summed_updates import all_steps
from pytest_ddl.equivalence.evidence.arrays import Float, all_finite, coefficient, norm
from pytest_ddl.equivalence.evidence.observe import WEIGHTS, of_kind
from pytest_ddl.equivalence.findings import Doubt, Finding, Outcome
from pytest_ddl.equivalence.probes.repeating import CompareOnce, left_open, timed
from pytest_ddl.equivalence.verdict.report import Report
from pytest_ddl.messages import summary
from pytest_ddl.notes import Note, NoteKind
from pytest_ddl.records import GradientStage, TrainingRecord
from pytest_ddl.training.neutral import RANDOM
from pytest_ddl.training.settings import RunSettings

_WHAT = "run again one step at a time"
_AS_ONE = "run again one step at a time, all steps recorded as one"
FIX = SPECIAL["steps-one-by-one"]
_COMPARED = (STEP_EQ, STATE_EQ, OPT_STATE, LOSS_EQ, METRIC_EQ)
_FITS = 1e-4
"""Largest part of a gradient that a factor may leave over. The factor is only shown, and decides nothing."""
_VERBS = {GradientStage.COMPUTED: "computes", GradientStage.APPLIED: "hands to the optimizer"}


def wanted(report: Report, _names: Collection[str]) -> bool:
    """Return whether one device may train on as many batches; see PS."""
    return not _ran_other_epochs(report.distributed)


def probe(report: Report, settings: RunSettings, compare_once: CompareOnce) -> Report:
    """Add to PS whether each step computes what one device computes, or a doubt if that cannot be decided."""
    plain, reference = report.distributed, report.reference
    whole = _is_whole(plain)
    how, settings = _AS_ONE if whole else _WHAT, replace(settings, one_by_one=True, keep_calls=True, whole=whole)
    if not any(batch.size for step in all_steps(plain) for batch in step.batches):
        # Only the order of the data can show which examples a step consumes. One worker has the order of one device.
        how, settings = f"{how} on one worker", replace(settings, one_worker=True)
    if RANDOM not in settings.neutralize and (draws_of(reference, plain) or random_layers(plain)):
        how = f"{how}, with every random number replaced by a constant"
        settings = replace(settings, neutralize=(*settings.neutralize, RANDOM))
    # A program may watch only state. That no weight can be compared is then no doubt.
    left_out = () if of_kind(plain, *WEIGHTS) else (STEP_EQ,)
    names = [name for name in (RUN, *_COMPARED) if name not in left_out]
    again = timed(report, compare_once(settings, names))
    unfinished = left_open(report, again)
    if unfinished is not None:
        return unfinished
    why = _not_compared(again)
    if why is not None:
        doubt = Doubt(CHECK, f"{how}, it decides nothing: {why}")
        return replace(report, doubts=(*report.doubts, doubt), seconds=report.seconds + again.seconds)
    if again.findings:
        again = replace(again, doubts=(), findings=[_explained(finding, again) for finding in again.findings])
    merged = report.merged(again, CHECK, how)
    if again.findings or again.doubts:
        return merged
    passed = [result.check for result in again.results if result.check != RUN and result.outcome is Outcome.PASS]
    note = Note(NoteKind.HOW, f"{CHECK}: {how}, all numbers equal those of one device ({', '.join(passed)})")
    merged = replace(merged, ledger=again.ledger)  # the plain run has no values that belong to a step
    return merged.noted(note, *(note for note in again.notes if note.kind is NoteKind.HOW))


def _explained(finding: Finding, again: Report) -> Finding:
    """Add to a finding without a cause what its first closure shows."""
    if finding.cause is not None:
        return finding
    evidence = first_difference(again.reference, again.distributed)
    return replace(finding, fix=FIX, evidence=evidence or finding.evidence, look_at=() if evidence else finding.look_at)


def _not_compared(again: Report) -> str | None:
    """Return why the repeated runs show nothing, or ``None`` if they do."""
    for record in (again.reference, again.distributed):
        if record.errors:
            error = record.errors[0][1]
            return f"it raised an exception: {summary(error.type, error.message)}"
    compared = [result for result in again.results if result.check in _COMPARED]
    if any(result.outcome in (Outcome.PASS, Outcome.FAIL) for result in compared):
        return None
    return next(map(str, again.doubts), "no number was recorded on both sides")


def _is_whole(record: TrainingRecord) -> bool:
    """Return whether the recorded steps of a program are not the steps that it schedules."""
    return schedules_itself(record) or any(rank.facts.get("epochs_as_steps") for rank in record.ranks)


def _ran_other_epochs(record: TrainingRecord) -> bool:
    """Return whether ``Model.fit`` ran whole epochs, and fewer batches on one device; see PS."""
    return any(rank.facts.get("epochs_as_steps") and rank.facts.get("limit") is not None for rank in record.ranks)


def first_difference(reference: TrainingRecord, distributed: TrainingRecord) -> str | None:
    """Say how the gradients of the first closure differ from those of one device; ``None`` if they are not known."""
    known = False
    for stage, verb in _VERBS.items():
        ours, theirs = _first(reference, stage), _first(distributed, stage)
        if ours is None or theirs is None or ours.shape != theirs.shape or not norm(ours):
            continue
        known = True
        factor = coefficient(theirs, ours) or 0.0
        is_multiple = all_finite(theirs) and norm(theirs - factor * ours) <= _FITS * norm(ours)
        if is_multiple and abs(factor - 1) <= _FITS:
            continue
        what = f"{factor:.3g} x the gradients" if is_multiple else "other gradients than those"
        return f"from the same weights and the same examples, the first closure {verb} {what} of one device"
    return "the first closure computes the gradients of one device" if known else None


def _first(record: TrainingRecord, stage: GradientStage) -> Float | None:
    """Return all gradients of the first call of a stage as one vector."""
    for item in record.ranks[0].steps[0].gradients if record.num_steps else ():
        if item.stage is stage and item.call == 0:
            parts = [np.ravel(value) for _index, value in sorted(item.values.items()) if value is not None]
            return np.concatenate(parts).astype(np.float64) if parts else None
    return None
