"""Judge the loss of a remote worker by the contract of the coordinator: its closure runs again, at least once."""

from __future__ import annotations

from dataclasses import replace

from pytest_ddl.equivalence.checks.parameter_server import counted_updates
from pytest_ddl.equivalence.findings import Finding
from pytest_ddl.faults.joining import SILENT, end_of, is_silent
from pytest_ddl.faults.judging import Judge, begun, judge_trial
from pytest_ddl.faults.rank.fault import Effect, Point
from pytest_ddl.faults.trials import TrialRun
from pytest_ddl.faults.verdict import RecoveryVerdict, Trial, counted
from pytest_ddl.messages import listed
from pytest_ddl.records import TrainingRecord
from pytest_ddl.training import lineage

_COSTS = (RecoveryVerdict.EXAMPLES, RecoveryVerdict.LOST, RecoveryVerdict.REPLAYED, RecoveryVerdict.DIVERGED)
"""Verdicts that a closure which ran again may explain."""
_COUNTED_TWICE = ("duplicate-update", "iteration-count-wrong")
"""Causes of a closure that was interrupted after an operation which counts. Operations of a step may run in any order
that their inputs allow, so the count of an optimizer may be ahead of its weights."""
_OF_DATA = ("DATA-COVER", "BATCH", "LOSS-EQ")
"""Checks whose findings follow from the batch of a closure that ran again with the next batch."""


def judge_with_retries(
    run: TrialRun,
    plain: TrialRun,
    baseline: TrainingRecord,
    reference: TrainingRecord,
    judge: Judge,
    repeatable: bool = False,
) -> Trial:
    """Return the verdict of a trial, as :func:`judge_trial` does, with what a coordinator promises.

    ``ClusterCoordinator.schedule`` runs each closure at least once. If its worker is lost, another worker runs it
    again, with the next batch of its own iterator (docstring of the method). So each lost worker, which has one closure
    in flight, may cost one batch or one update, and no more.

    :param reference: record of the run on one device, by which updates are counted.
    :param repeatable: True if two uninterrupted runs have ended with the same bits.
    """
    asynchronous = any(rank.asynchronous for rank in baseline.ranks)
    if asynchronous and len(run.attempts) > 1 and not run.unproved and not run.last.failed:
        return _counted_at_the_end(run, plain, baseline, reference)
    trial = judge_trial(run, plain, baseline, judge, repeatable)
    lost = {
        fault
        for fault in run.schedule
        if fault.effect in (Effect.ENDS, Effect.CUTS)
        and fault.task in plain.last.plan.servers
        and fault.task.startswith("worker")
    }
    if not lost or len(run.attempts) > 1 or trial.verdict not in _COSTS:
        return trial
    record = replace(baseline, ranks=tuple(run.last.attempt.ranks))
    steps = range(1, baseline.num_steps + 1)
    batch = max((sum(one.size for one in baseline.batches(step)) for step in steps), default=0)
    within = trial.steps <= len(lost) and max(trial.twice, trial.never) <= len(lost) * batch
    if not within or not all(_follows(finding, trial, len(lost)) for finding in judge(record).findings):
        return trial
    cost = [
        f"{trial.verdict.value} {counted(trial.steps, 'step')}" if trial.steps else "",
        f"{counted(trial.twice, 'example')} trained on twice" if trial.twice else "",
        f"{counted(trial.never, 'example')} never" if trial.never else "",
    ]
    words = ", ".join(filter(None, cost)) or (trial.finding.message if trial.finding else trial.message)
    return replace(
        trial,
        verdict=RecoveryVerdict.RETRIED,
        finding=None,
        details=f"{words}; {counted(len(lost), 'closure')} in flight may cost a batch or an update each",
    )


def _follows(finding: Finding, trial: Trial, lost: int) -> bool:
    """Return whether a finding follows from closures that ran again."""
    if finding.check in _OF_DATA:
        return bool(trial.twice or trial.never)
    if finding.cause == "unequal-steps":
        return trial.steps > 0
    return finding.cause in _COUNTED_TWICE and (finding.error or 0) <= lost


def _counted_at_the_end(run: TrialRun, plain: TrialRun, baseline: TrainingRecord, reference: TrainingRecord) -> Trial:
    """Return the verdict of a program with concurrent steps that was started again. Its states belong to no step."""
    trial = begun(run, plain)
    if is_silent(run, baseline):
        return replace(trial, verdict=RecoveryVerdict.UNDECIDED, details=SILENT)
    ranks = [rank if rank.steps else replace(rank, final=end_of(rank)) for rank in run.last.attempt.ranks]
    record = replace(baseline, ranks=tuple(ranks))
    theirs = counted_updates(reference, baseline)
    ours = counted_updates(reference, record)
    exact = [name for name, (_number, by_keras) in theirs.items() if not by_keras and name in ours]
    name = next(iter(exact or [name for name in theirs if name in ours]), None)
    if name is None:
        why = "steps run concurrently, and no watched variable counts their updates"
        return replace(trial, verdict=RecoveryVerdict.UNDECIDED, details=why)
    more = round(ours[name][0] - theirs[name][0])
    words = f"{name} counts {ours[name][0]:g} updates, {theirs[name][0]:g} without the interruption"
    if more and not exact:
        why = "Keras counts them, and may lose a count of steps that run at the same time"
        return replace(trial, verdict=RecoveryVerdict.UNDECIDED, details=f"{words}; {why}")
    verdict = RecoveryVerdict.REPLAYED if more > 0 else RecoveryVerdict.LOST if more < 0 else RecoveryVerdict.EQUAL
    if verdict is RecoveryVerdict.EQUAL:
        return _of_state(trial, run, baseline, words)
    return replace(trial, verdict=verdict, steps=abs(more), details=words)


def _is_in_save(point: Point) -> bool:
    return point.phase == "save" and point.when != "after"


def _of_state(trial: Trial, run: TrialRun, baseline: TrainingRecord, words: str) -> Trial:
    """Return the verdict of the right number of updates: the program must have continued with the values of a save."""
    rank = run.last.attempt.ranks[0]
    resumed = next(iter(rank.resumed.values()), {})
    values = {variable.name: lineage.digests([(variable, resumed)]) for variable in rank.variables}
    found = frozenset[str]().union(*values.values())
    points = [attempt.points[0] for attempt in run.attempts[:-1]]
    saves = [one for reached in points for one in reached if one.point.phase == "save"]
    # A save that a fault ended may be complete, so the values at its begin count, too.
    saved = [one.state for one in saves if one.state is not None]
    initial = lineage.lineage_of(baseline.ranks[0])[0][1]
    # A save before the first step has the initial values too.
    nearest = max([*saved, initial], key=lambda state: len(found & state))
    other = [name for name, digest in values.items() if not digest <= nearest]
    cut_short = any(reached and _is_in_save(reached[-1].point) for reached in points)
    if other and (cut_short or any(one.moving for one in saves)):
        during = "an attempt ended" if cut_short else "steps went on"
        why = f"{during} during a save, so that it is not known what it contains"
        return replace(trial, verdict=RecoveryVerdict.UNDECIDED, details=f"{why}; {words}")
    if other:
        told = f"the last attempt continued with a value of {listed(other, 1)} that no save has; {words}"
        return replace(trial, verdict=RecoveryVerdict.DIVERGED, details=told)
    if nearest - found or not found:
        why = "the last attempt restored some variables only after its loop had begun, or it has no loop"
        return replace(trial, verdict=RecoveryVerdict.UNDECIDED, details=f"{why}; {words}")
    began = "continued with the values of a save" if nearest in saved else "began anew with the initial values"
    return replace(trial, verdict=RecoveryVerdict.EQUAL, details=f"{words}, and it {began}")
