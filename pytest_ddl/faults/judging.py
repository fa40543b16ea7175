"""Judge a trial: compare a run that was interrupted with the uninterrupted one, step by step."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from pytest_ddl.equivalence.checks.resume import CHECK as RESUME
from pytest_ddl.equivalence.checks.write import CHECK as WRITE
from pytest_ddl.equivalence.checks.write import shared_writes
from pytest_ddl.equivalence.evidence.arithmetic import not_deterministic
from pytest_ddl.equivalence.evidence.arrays import same
from pytest_ddl.equivalence.evidence.fit_loss import RUNNING_MEAN
from pytest_ddl.equivalence.evidence.observe import is_asynchronous, observed_together
from pytest_ddl.equivalence.evidence.results import returned
from pytest_ddl.equivalence.findings import Finding
from pytest_ddl.equivalence.verdict.report import Report
from pytest_ddl.faults import damaged
from pytest_ddl.faults.joining import SILENT, Joining, equal_bits, is_silent
from pytest_ddl.faults.rank.fault import KINDS
from pytest_ddl.faults.rank.point_log import WRITING, Reached
from pytest_ddl.faults.trials import TrialRun
from pytest_ddl.faults.unlike import differences, goes_on, other_draws
from pytest_ddl.faults.verdict import RecoveryVerdict, Trial
from pytest_ddl.messages import listed
from pytest_ddl.records import RankRecord, TrainingRecord

Judge = Callable[[TrainingRecord], Report]
"""Function that judges a record of a run under the strategy, as the comparison without faults did."""


def judge_trial(
    run: TrialRun, plain: TrialRun, baseline: TrainingRecord, judge: Judge, repeatable: bool = False
) -> Trial:
    """Return the verdict of a trial.

    :param plain: the uninterrupted run, as ``baseline`` has it.
    :param repeatable: True if two uninterrupted runs have ended with the same bits.
    """
    trial = begun(run, plain)
    if run.unproved:
        return replace(trial, verdict=RecoveryVerdict.NOT_INJECTED, details=run.unproved)
    if run.last.failed:
        return _without_end(trial, run, baseline, judge)
    joining = Joining(run, baseline) if len(run.attempts) > 1 else None
    ranks = run.last.attempt.ranks
    if joining is not None:
        if is_silent(run, baseline):
            return replace(trial, verdict=RecoveryVerdict.UNDECIDED, details=SILENT)
        at = joining.at
        if at is None and (kernel := not_deterministic(baseline)):
            why = f"the values that it continued with are those of no step, but each run has others ({kernel}); "
            return replace(trial, verdict=RecoveryVerdict.UNDECIDED, details=f"{why}check recovery on CPUs")
        trial = replace(trial, resumed_at=at, work_lost=max(0, joining.done - at) if at is not None else None)
        ranks = joining.ranks
    ranks = with_clashes(run, ranks, baseline)
    record = replace(
        baseline, ranks=tuple(ranks), strategy=str(run.last.spec), num_replicas=run.last.attempt.num_replicas
    )
    trial = _Comparison(record, baseline, judge, repeatable).of(trial, joining is None or joining.at is not None)
    return _after_damage(trial, run, baseline)


def _after_damage(trial: Trial, run: TrialRun, baseline: TrainingRecord) -> Trial:
    """Return the verdict of a trial whose last attempt has ended, if a file of its save was damaged before."""
    files = damaged.damaged_files(run)
    if not files or trial.verdict is RecoveryVerdict.EXACT:
        return trial
    trial = replace(trial, notes=(*trial.notes, f"{', '.join(files)} was damaged"))
    names = damaged.unknown_values(run.last.attempt.ranks, baseline)
    if not names:
        return trial
    words = f"attempt {len(run.attempts)} continued with a value of {listed(names, 1)} that no step has"
    return replace(trial, verdict=RecoveryVerdict.DAMAGED, damaged=files, details=words)


def begun(run: TrialRun, plain: TrialRun) -> Trial:
    """Return a trial without a verdict, with the facts that follow from its points."""
    trial = Trial(
        run.schedule, RecoveryVerdict.EXACT, detected=run.detected, resumed=run.resumed, attempts=len(run.attempts)
    )
    begun = [points for attempt in run.attempts[:-1] or run.attempts for points in attempt.points]
    written = {one.file: None for points in begun for one in points if _begins_writing(one)}
    return replace(
        trial,
        notes=_other_points(run, plain),
        complete_save=_complete_save(run),
        written=tuple(written),
        in_writing=_in_writing(run),
    )


def _begins_writing(reached: Reached) -> bool:
    return (reached.point.when, reached.point.phase) == ("before", WRITING)


def _in_writing(run: TrialRun) -> str:
    """Return the file in whose writing the last fault of a trial struck, or an empty text."""
    for points in (points for attempt in reversed(run.attempts) for points in attempt.points):
        for struck in reversed(points):
            if struck.struck is not None and struck.point.phase == WRITING:
                number = struck.point.number
                return next(one.file for one in points if _begins_writing(one) and one.point.number == number)
            if struck.struck is not None and struck.change:
                return struck.change[-1]
    return ""


@dataclass(frozen=True)
class _Comparison:
    """Comparison of an interrupted run, whose last attempt has ended, with one device and the uninterrupted run."""

    record: TrainingRecord
    baseline: TrainingRecord
    judge: Judge
    repeatable: bool

    def of(self, trial: Trial, located: bool) -> Trial:
        """Return the verdict of the trial.

        :param located: whether the step is known after which the last attempt continued.
        """
        if self._bits and self._observed and not self._lucky:
            return trial
        if not self._observed:
            trial = replace(trial, notes=(*trial.notes, "which examples were trained on was not observed"))
        report = self.judge(self.record)
        at, continued = trial.resumed_at or 0, located and trial.attempts > 1
        trial = replace(
            trial,
            steps=abs(self._extra),
            twice=self._twice.total(),
            never=self._never.total(),
            unknown=sum(count for name, count in self._twice.items() if name not in self._examples[1]),
            finding=self._finding(report, at, continued),
        )
        if self._extra:
            return self._of_other_steps(trial, at, continued)
        if (trial.twice or trial.never) and (located or trial.finding is None):
            return replace(trial, verdict=RecoveryVerdict.EXAMPLES)
        return self._without_other_examples(trial, report, at)

    @property
    def _extra(self) -> int:
        """Steps that the interrupted run has more, or fewer if it is negative."""
        return self.record.num_steps - self.baseline.num_steps

    @cached_property
    def _observed(self) -> bool:
        return _observed(self.record) and _observed(self.baseline)

    @cached_property
    def _examples(self) -> tuple[Counter[object], Counter[object]]:
        """How often each example was trained on, in the interrupted run and in the other one."""
        if not self._observed:
            return Counter(), Counter()
        return _examples(self.record), _examples(self.baseline)

    @cached_property
    def _twice(self) -> Counter[object]:
        ours, theirs = self._examples
        return ours - theirs

    @cached_property
    def _never(self) -> Counter[object]:
        ours, theirs = self._examples
        return theirs - ours

    @cached_property
    def _bits(self) -> bool:
        """Whether both runs have the same steps with the same examples, values and bits of weights."""
        alike = equal_bits(self.record, self.baseline) and not (self._extra or self._twice or self._never)
        return alike and _equal_values(self.record, self.baseline)

    @property
    def _lucky(self) -> bool:
        """Whether several ranks wrote one file, so that the same bits prove nothing."""
        return not shared_writes(self.record).keys() <= shared_writes(self.baseline).keys()

    def _finding(self, report: Report, at: int, continued: bool) -> Finding | None:
        """Return what the interruption has changed, if a check found it."""
        finding = _of_interruption(report, lambda: self.judge(self.baseline))
        explains = finding is not None and finding.check in _PRECEDENCE
        if explains or not continued or self._extra or self._bits:
            return finding
        return other_draws(self.record, self.baseline, at) or finding

    def _of_other_steps(self, trial: Trial, at: int, continued: bool) -> Trial:
        """Return the verdict of a run whose number of updates is another one."""
        longer = goes_on(self.record, self.baseline, at) if continued and self._extra > 0 else None
        if longer is not None:
            return replace(trial, verdict=RecoveryVerdict.DIVERGED, finding=longer, details=longer.message)
        steps, right = self.record.num_steps, self.baseline.num_steps
        words = f"the final weights have {steps} updates, {right} without the interruption"
        verdict = RecoveryVerdict.REPLAYED if self._extra > 0 else RecoveryVerdict.LOST
        return replace(trial, verdict=verdict, details=words)

    def _without_other_examples(self, trial: Trial, report: Report, at: int) -> Trial:
        """Return the verdict of the right number of updates, with the right examples."""
        finding = trial.finding
        if finding is not None:
            return replace(trial, verdict=RecoveryVerdict.DIVERGED, details=finding.message)
        # What is excused hides what came after it, unless the uninterrupted run shows what was right.
        comparable = self._same_variant and not trial.twice and not trial.never and at < self.record.num_steps
        other = None
        if comparable and report.tolerance is not None and (report.excused or not report.passed):
            other = next(differences(self.record, self.baseline, report.tolerance, at), None)
            if other is None:
                return replace(trial, verdict=RecoveryVerdict.EQUAL)
        if self._bits or (report.passed and other is None):
            return replace(trial, verdict=RecoveryVerdict.EQUAL)
        if other is not None:
            name, step, error = other
            size = f" by {error:.3g}" if error < float("inf") else ""
            words = f"{name} differs{size} after step {step} from the run without the interruption"
            if self.repeatable:
                return replace(trial, verdict=RecoveryVerdict.DIVERGED, details=words)
            words += ", and it is not known whether a second run without the interruption has the same bits"
            return replace(trial, verdict=RecoveryVerdict.UNDECIDED, details=words)
        reasons = list(report.inconclusive)
        if report.findings:
            reasons.append(f"{report.findings[0].message}, and so it does without the interruption")
        reasons += [f"{one.message}, which is a known behavior, and hides what follows" for one in report.known]
        return replace(trial, verdict=RecoveryVerdict.UNDECIDED, details="; ".join(reasons) or _NOTHING)

    @property
    def _same_variant(self) -> bool:
        record, baseline = self.record, self.baseline
        alike = len(record.ranks) == len(baseline.ranks) and record.num_steps == baseline.num_steps
        # The numbers of concurrent closures depend on their order, which differs in each run.
        ordered = not (is_asynchronous(record) or is_asynchronous(baseline))
        return alike and ordered and record.num_replicas == baseline.num_replicas


_NOTHING = "nothing could be compared"
_PRECEDENCE = {check: place for place, check in enumerate((WRITE, RESUME))}
"""Check whose findings explain those of others -> place among these checks."""


def _of_interruption(report: Report, judge_baseline: Callable[[], Report]) -> Finding | None:
    """Return the finding that the interruption causes: of several, the one that explains the others.

    A comparison may pass only after further runs, for example with common random numbers. Its own findings say
    nothing about the interruption.
    """
    every = [one for result in report.results for one in result.findings if one.check == RESUME]
    candidates = [*report.findings, *(one for one in every if one.cause not in report.expectations)]
    if not candidates:
        return None
    before = {(one.check, one.cause) for result in judge_baseline().results for one in result.findings}
    left = [one for one in candidates if (one.check, one.cause) not in before]
    return min(left, key=lambda one: _PRECEDENCE.get(one.check, len(_PRECEDENCE)), default=None)


def _without_end(trial: Trial, run: TrialRun, baseline: TrainingRecord, judge: Judge) -> Trial:
    """Return the verdict of a trial whose last attempt has failed."""
    last = run.last
    ranks = tuple(with_clashes(run, last.attempt.ranks, baseline))
    record = replace(baseline, ranks=ranks, strategy=str(last.spec), num_replicas=last.attempt.num_replicas)
    report = judge(record)
    finding = report.findings[0] if report.findings else None
    what = finding.message if finding else "; ".join(report.inconclusive) or "the last attempt failed"
    verdict = RecoveryVerdict.HUNG if run.last.hung else RecoveryVerdict.CANNOT_RESUME
    if verdict is RecoveryVerdict.CANNOT_RESUME and (files := damaged.damaged_files(run)):
        said = damaged.named(files, ranks)
        verdict, what = (RecoveryVerdict.REFUSED, said) if said else (verdict, damaged.unnamed(files, ranks))
    return replace(trial, verdict=verdict, finding=finding, details=what)


def _examples(record: TrainingRecord) -> Counter[object]:
    """Count the examples that were trained on, by their content or their id."""
    examples: Counter[object] = Counter()
    for step in range(1, record.num_steps + 1):
        for batch in record.batches(step):
            examples.update(batch.examples)
    return examples


def _observed(record: TrainingRecord) -> bool:
    """Return whether it is known which examples each step, or all steps of a concurrent group, were trained on."""
    recorded = [record.batches(together[-1]) for together in observed_together(record, record.num_steps)]
    return all(batches and all(one.examples or not one.size for one in batches) for batches in recorded)


def _equal_values(record: TrainingRecord, baseline: TrainingRecord) -> bool:
    """Return whether all steps report the same numbers. Within an epoch, ``fit`` shows means over a part of it."""
    pairs = list(zip(record.ranks, baseline.ranks, strict=True))
    return all(
        RUNNING_MEAN in one.values or one.values == other.values
        for ours, theirs in pairs
        for one, other in zip(ours.steps, theirs.steps, strict=False)
    ) and all(itertools.starmap(_equal_results, pairs))


def _equal_results(rank: RankRecord, baseline: RankRecord) -> bool:
    """Return whether calls after the same step returned the same. A history of ``fit`` has the epochs of an attempt."""
    ours, theirs = returned(rank), returned(baseline)
    return all(one.kind == "fit" or same(one.value, theirs[key].value) for key, one in ours.items() if key in theirs)


def _complete_save(run: TrialRun) -> int:
    """Return the last step of which a save was complete and whole on every rank when the first fault struck."""
    first = run.attempts[0]
    steps = []
    for points in first.points:
        step = saved = 0
        hurt = {one.point.number for one in points if one.struck and KINDS[one.struck.kind].only_in == "file"}
        for one in points:
            if (one.point.when, one.point.phase) == ("after", "step"):
                step = one.point.number
            elif (one.point.when, one.point.phase) == ("after", "save") and one.point.number not in hurt:
                saved = step
        steps.append(saved)
    return min(steps, default=0)


def _other_points(run: TrialRun, plain: TrialRun) -> tuple[str, ...]:
    """Note that a rank reached other points than in the uninterrupted run. Replicas have no order among themselves."""
    notes = []
    for rank, (ours, theirs) in enumerate(zip(run.attempts[0].points, plain.last.points, strict=True)):
        left, right = (
            # Several faults at one point have a line each.
            list(dict.fromkeys(one.point for one in points if one.point.detail not in ("batch", "write", "file")))
            for points in (ours, theirs)
        )
        other = next(((a, b) for a, b in zip(left, right, strict=False) if a != b), None)
        if other is not None:
            notes.append(f"rank {rank} reached '{other[0]}' where the uninterrupted run reached '{other[1]}'")
    return tuple(notes)


def with_clashes(run: TrialRun, ranks: Sequence[RankRecord], baseline: TrainingRecord) -> list[RankRecord]:
    """Return the ranks of the last attempt, with the writes of earlier attempts to a path that two ranks wrote.

    A path that one rank wrote in one attempt, and another rank in the next, is no clash.
    """
    added = list(ranks)
    for attempt in run.attempts[:-1]:
        shared = shared_writes(replace(baseline, ranks=tuple(attempt.attempt.ranks)))
        for found in shared.values():
            for rank, write in found.items():
                if len(found) > 1 and rank < len(added):
                    added[rank] = replace(added[rank], writes=(*added[rank].writes, write))
    return added
