"""PS, run differently: compare the weights of a coordinator's program that runs one step at a time, on one worker.

Steps that run concurrently depend on their order, so that their weights are not compared with one device. One worker
that runs one step at a time has the order of one device. If it consumes the same examples, it must move the weights
as one device does. Only gross differences are findings: nothing measures how far rounding may grow here.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from pytest_ddl.equivalence.checks.parameter_server import CHECK as CHECK
from pytest_ddl.equivalence.checks.run import CHECK as RUN
from pytest_ddl.equivalence.diagnosis.candidates.shared import draws_of, random_layers
from pytest_ddl.equivalence.evidence.arrays import Float, all_finite, coefficient, difference, is_numeric, norm
from pytest_ddl.equivalence.evidence.observe import is_asynchronous, of_kind
from pytest_ddl.equivalence.evidence.tolerance import GROSS
from pytest_ddl.equivalence.findings import CheckResult, Doubt, Finding, Outcome
from pytest_ddl.equivalence.probes.repeating import left_open, timed
from pytest_ddl.equivalence.report import Report
from pytest_ddl.records import TrainingRecord, VariableKind, VariableRecord
from pytest_ddl.training.settings import RunSettings

if TYPE_CHECKING:
    from pytest_ddl.equivalence.probes.repeating import CompareOnce

_WHAT = "run again on one worker, one step at a time"
_FIX = (
    "Compute in each step under the coordinator what one device computes: the same loss, divided by the examples of "
    "the batch that this step consumes."
)


def wanted(report: Report, _names: Collection[str]) -> bool:
    """Run for a program that passed as far as it could be judged, and whose steps ran concurrently."""
    reference, distributed = report.reference, report.distributed
    if report.findings or reference is None or distributed is None or not is_asynchronous(distributed):
        return False
    return not distributed.errors


def probe(report: Report, settings: RunSettings, compare_once: CompareOnce) -> Report:
    """Add to PS whether one worker moves the weights as one device does, or a doubt if that cannot be decided."""
    prevented = _prevented(report)
    if prevented is not None:
        return _undecided(report, f"the weights were not compared with one device: {prevented}")
    again = timed(report, compare_once(replace(settings, one_by_one=True), (RUN,)))
    unfinished = left_open(report, again)
    if unfinished is not None:
        return unfinished
    reference, distributed = again.reference, again.distributed
    if reference is None or distributed is None:
        return _undecided(report, f"{_WHAT}, it left no record")
    moves = list(_moves(reference, distributed)) if not (reference.errors or distributed.errors) else []
    refused = _refused(reference, distributed)
    if refused is not None or not moves:
        why = refused or "no weight moved on one device"
        report = replace(report, seconds=report.seconds + again.seconds)
        return _undecided(report, f"{_WHAT}, it decides nothing: {why}")
    wrong = [(variable, ours, theirs) for variable, ours, theirs in moves if _is_gross(theirs, ours)]
    if not wrong:
        note = f"{CHECK}: {_WHAT}, {len(moves)} of {len(moves)} weight(s) and slot(s) move as on one device"
        return replace(report.noted(note), seconds=report.seconds + again.seconds)
    found = replace(_finding(*wrong[0]), step=distributed.num_steps)
    result = CheckResult(CHECK, Outcome.FAIL, found.message, (found,))
    return report.merged(replace(again, results=(result,), findings=[found]), CHECK, _WHAT)


def _undecided(report: Report, why: str) -> Report:
    """Return the report with a doubt: that all updates arrived does not show that they were right."""
    return replace(report, doubts=(*report.doubts, Doubt(CHECK, why)))


def _prevented(report: Report) -> str | None:
    """Return why no repeated run can be compared, or ``None`` if one may."""
    reference, distributed = report.reference, report.distributed
    if reference is None or distributed is None:
        return "a run left no record"
    if any(rank.facts.get("epochs_as_steps") for rank in distributed.ranks):
        return "Model.fit records epochs here and batches on one device"
    if draws_of(reference, distributed) or random_layers(distributed):
        return "the program draws random numbers"
    return None if any(_examples(reference)) else "the examples that its steps consumed were not observed"


def _refused(reference: TrainingRecord, distributed: TrainingRecord) -> str | None:
    """Return why the repeated run cannot be compared, or ``None`` if it can."""
    if reference.errors or distributed.errors:
        return "it raised an exception"
    if not reference.num_steps or not distributed.num_steps:
        return "no step was recorded"
    if _examples(reference) != _examples(distributed):
        return "it consumed other examples than one device, or consumed them in another order"
    counts = [
        [float(value) for variable, value in _finals(record, VariableKind.ITERATIONS)]
        for record in (reference, distributed)
    ]
    return None if counts[0] == counts[1] else "it made another number of updates than one device"


def _examples(record: TrainingRecord) -> list[tuple[int | str, ...]]:
    """Return the examples of each batch, in the order of the batches."""
    batches = [batch for step in range(1, record.num_steps + 1) for batch in record.batches(step)]
    return [batch.fingerprints or batch.example_ids or () for batch in batches]


def _finals(record: TrainingRecord, *kinds: VariableKind) -> Iterator[tuple[VariableRecord, Float]]:
    for variable in of_kind(record, *kinds):
        value = record.value(variable.index, record.num_steps)
        if value is not None and is_numeric(value):
            yield variable, np.asarray(value, np.float64)


def _moves(reference: TrainingRecord, distributed: TrainingRecord) -> Iterator[tuple[VariableRecord, Float, Float]]:
    """Yield each weight and slot with its change over the whole run, on one device and on the worker."""
    kinds = (VariableKind.TRAINABLE, VariableKind.SLOT)
    theirs = {variable.index: value for variable, value in _finals(distributed, *kinds)}
    for variable, ours in _finals(reference, *kinds):
        start = reference.value(variable.index, 0)
        other = theirs.get(variable.index)
        if variable.since or start is None or other is None or not start.shape == ours.shape == other.shape:
            continue
        first = np.asarray(start, np.float64)
        if norm(ours - first) > 0:
            yield variable, ours - first, other - first


def _is_gross(theirs: Float, ours: Float) -> bool:
    return not all_finite(theirs) or norm(theirs - ours) > GROSS * norm(ours)


def _finding(variable: VariableRecord, ours: Float, theirs: Float) -> Finding:
    factor = coefficient(theirs, ours) if all_finite(theirs) else None
    is_multiple = factor is not None and norm(theirs - factor * ours) <= GROSS * norm(theirs)
    how = f", about {factor:.3g} times as on one device" if is_multiple else ", not as on one device"
    found = difference(theirs, ours)
    return Finding(
        CHECK,
        f"{variable.name} moves over the whole run{how}",
        variable=variable.name,
        error=found.error,
        observed=found.actual,
        expected=found.desired,
        fix=_FIX,
        evidence="one worker ran one step at a time, on the same examples in the same order as one device, so that the "
        "order of updates cannot explain the difference",
        ratio=float(norm(theirs) / norm(ours)),
    )
