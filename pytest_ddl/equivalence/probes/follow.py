"""STEP-EQ, run differently: compare the steps after a tolerated or declared difference, from equal weights.

The replicas of an uneven batch, the last one of most epochs, count equally in a mean of their means. That is
tolerated, and weights differ from there on. So do they after a difference that is declared, or that a framework is
known to make. So both programs run again, and after each such step one device continues with the values that the
strategy had then. Differences that remain have another cause.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from pytest_ddl.equivalence.evidence.effective import moved
from pytest_ddl.equivalence.evidence.metric_state import combined
from pytest_ddl.equivalence.evidence.observe import is_uneven, of_kind, shared_steps
from pytest_ddl.equivalence.findings import CheckResult, Finding, Symptom
from pytest_ddl.equivalence.probes.repeating import CompareOnce, left_open, timed
from pytest_ddl.equivalence.roles import Role
from pytest_ddl.equivalence.verdict.doubts import is_recomputed
from pytest_ddl.equivalence.verdict.judge import concluded_from
from pytest_ddl.equivalence.verdict.own_steps import up_to
from pytest_ddl.equivalence.verdict.report import Report
from pytest_ddl.notes import Note, NoteKind
from pytest_ddl.records import Array, TrainingRecord, VariableKind
from pytest_ddl.training.neutral import NORMALIZATION
from pytest_ddl.training.settings import RunSettings, States

TOLERATED = "mean-of-replica-means"
_TAKEN = (VariableKind.TRAINABLE, VariableKind.FROZEN, VariableKind.SLOT, VariableKind.STATE)
_DTYPES = ("float16", "float32", "float64")
"""Types that NumPy has; only such values are handed over."""


def wanted(report: Report, _names: Collection[str]) -> bool:
    """Return whether only excused steps are wrong, so that the steps after them can be compared from equal values."""
    reference, distributed = report.reference, report.distributed
    weights = of_kind(reference, VariableKind.TRAINABLE)
    if any(variable.dtype not in _DTYPES for variable in weights):
        return False
    first = _first_step(report)
    steps = [] if first is None else differing_steps(reference, distributed, first)
    # If gradients are added up over several steps, the watched variables are not the whole state after a step.
    return bool(steps) and all(any(moved(reference, weight, step) for weight in weights) for step in steps)


def _first_step(report: Report) -> int | None:
    """Return the step from which on one device must follow; 0 for uneven steps only, ``None`` for none.

    A declared difference that is not recomputed, or of which copies differ, cannot be followed.
    """
    roles = report.roles
    excused = dict.fromkeys((*report.excused, *report.declared))
    beside = _of_statistics(report)
    declared = [
        f for f in excused if roles.have(f, Role.WEIGHTS) and not (f.verified or f.approximation or f in beside)
    ]
    if any(not is_recomputed(f) or not f.step or roles.have(f, Role.REPLICAS) for f in declared):
        return None
    of_updates = [f.step or 0 for f in declared if roles.have(f, Role.UPDATES)]
    if declared:
        return min(of_updates, default=None)
    return 0 if _tolerated(report) else None


def _tolerated(report: Report) -> list[Finding]:
    of_steps = Role.WEIGHTS | Role.STATE
    excused = dict.fromkeys((*report.excused, *report.declared))
    tolerated = [f for f in excused if f.cause == TOLERATED and f.approximation and report.roles.have(f, of_steps)]
    return [finding for finding in tolerated if not finding.verified]


def _of_statistics(report: Report) -> list[Finding]:
    """Return the known moving statistics of each replica, which do not differ in runs that synchronize them."""
    switched_off = NORMALIZATION in report.neutralized
    return [finding for finding in report.known if switched_off and finding.cause == "state-not-aggregated"]


def differing_steps(reference: TrainingRecord, distributed: TrainingRecord, first: int) -> list[int]:
    """Return the steps in which replicas had different numbers of examples, and all steps from ``first`` on.

    :param first: 0 for only the uneven steps.
    """
    steps = range(1, shared_steps(reference, distributed) + 1)
    return [step for step in steps if is_uneven(distributed, step) or (first and step >= first)]


def states_of(reference: TrainingRecord, distributed: TrainingRecord, first: int) -> States:
    """Return the values that the program reads under the strategy after each differing step."""

    def state(step: int) -> dict[int, Array]:
        ended = up_to(distributed, step)
        values = ((variable, combined(ended, variable, step)) for variable in of_kind(ended, *_TAKEN))
        return {v.index: value.astype(v.dtype) for v, value in values if value is not None and v.dtype in _DTYPES}

    return States({step: state(step) for step in differing_steps(reference, distributed, first)})


def probe(report: Report, settings: RunSettings, compare_once: CompareOnce) -> Report:
    """Replace the results that compare numbers by those of the run in which one device follows the strategy."""
    first = _first_step(report)
    if first is None:
        return report
    names = [result.check for result in report.results]
    again = timed(report, compare_once(replace(settings, follow=first), names))
    unfinished = left_open(report, again)
    if unfinished is not None:
        return unfinished
    ours = again.reference
    if ours.errors or not ours.taken_over or _tolerated(again):
        return report  # one device could not take over values; the plain report names what is not compared
    results = [_result(result, again) for result in report.results]
    verified = [*(finding for finding in report.excused if finding.verified), *_of_statistics(report)]
    concluded = concluded_from(report, results, ours, verified)
    of_results = concluded_from(report, report.results, ours).notes
    kept = [doubt for doubt in report.doubts if not report.roles.have(doubt, Role.VALUES)]
    text = (
        f"after steps that differ as excused (the first is step {ours.taken_over[0]}) one device went on with the "
        "weights of the strategy, so that later steps are compared from equal weights"
    )
    return replace(
        concluded,
        reference=report.reference,
        doubts=tuple(dict.fromkeys((*kept, *again.doubts))),
        notes=(
            *concluded.notes,
            *(other for other in report.notes if other not in of_results),
            Note(NoteKind.HOW, text),
        ),
        seconds=report.seconds + again.seconds,
        neutralized=report.neutralized,
        places=report.places,
    )


def _result(plain: CheckResult, again: Report) -> CheckResult:
    """Return the repeated result if the check compares values.

    Of another check, return the plain result with the new findings of the repeated one.
    """
    other = again.result(plain.check)
    if other is None or again.roles.have(plain, Role.VALUES):
        return other or plain
    known = {(finding.cause, finding.owner) for finding in plain.findings}
    new = tuple(f for f in other.findings if (f.cause, f.owner) not in known and f.symptom != Symptom.SLOW.value)
    return replace(other, findings=(*plain.findings, *new)) if new else plain
