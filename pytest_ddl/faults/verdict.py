"""Say what an interruption has cost: compare a resumed run with the uninterrupted one, step by step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import Enum

from pytest_ddl.equivalence.checks.resume import CHECK as RESUME
from pytest_ddl.equivalence.checks.write import shared_writes
from pytest_ddl.equivalence.evidence.arrays import same
from pytest_ddl.equivalence.evidence.fit_loss import RUNNING_MEAN
from pytest_ddl.equivalence.findings import Finding
from pytest_ddl.equivalence.report import Report
from pytest_ddl.equivalence.runs.resuming import joined
from pytest_ddl.faults import damaged
from pytest_ddl.faults.clashes import with_clashes
from pytest_ddl.faults.trials import TrialRun
from pytest_ddl.records import Array, RankRecord, Snapshot, StepRecord, TrainingRecord, VariableKind
from pytest_ddl.training import lineage
from pytest_ddl.training.faults import KINDS, Fault


class Verdict(str, Enum):
    """Cost of an interruption, the best first."""

    EXACT = "exact"
    EQUAL = "equal"
    RETRIED = "retried"
    REFUSED = "refused"
    EXAMPLES = "examples"
    REPLAYED = "replayed"
    LOST = "lost"
    DIVERGED = "diverged"
    DAMAGED = "damaged save loaded"
    UNDECIDED = "undecided"
    CANNOT_RESUME = "cannot resume"
    HUNG = "hung"
    NOT_INJECTED = "not injected"


MEANINGS: dict[Verdict, str] = {
    Verdict.EXACT: "All ranks end with the same bits as without the interruption, after the same examples.",
    Verdict.EQUAL: "The checks find no difference to one device, within the measured tolerance.",
    Verdict.RETRIED: "A coordinator ran a closure in flight again, at least once as it promises; nothing else differs.",
    Verdict.REFUSED: "The program fails when it is started again, and its error names the file that the fault damaged.",
    Verdict.EXAMPLES: "The number of updates is right, but some examples were trained on twice, and others never.",
    Verdict.REPLAYED: "The final weights have too many updates: steps that the save contains were made again.",
    Verdict.LOST: "The final weights have too few updates.",
    Verdict.DIVERGED: "A check finds another difference and names its cause, for example a lost optimizer state.",
    Verdict.DAMAGED: "The program continues with values of a damaged file, which it did not notice.",
    Verdict.UNDECIDED: "No check could decide. This is not a pass.",
    Verdict.CANNOT_RESUME: "The program fails when it is started again.",
    Verdict.HUNG: "Ranks wait for each other forever, or until the deadline.",
    Verdict.NOT_INJECTED: "The fault did not strike, or the process did not end by it. This is not a pass.",
}
"""Verdict -> what it means."""
RECOVERED = (Verdict.EXACT, Verdict.EQUAL, Verdict.RETRIED, Verdict.REFUSED)
"""Verdicts with which a program did what it must: it has recovered, or it refused a damaged file."""


@dataclass(frozen=True)
class Trial:
    """Verdict of one schedule of faults, with what it cost."""

    schedule: tuple[Fault, ...]
    verdict: Verdict
    message: str
    """The verdict in words."""
    steps: int = 0
    """Updates that the final weights have too many (``replayed``) or too few (``lost``)."""
    twice: int = 0
    """Examples that the final weights were trained on once more than without the interruption."""
    never: int = 0
    """Examples that the final weights were not trained on."""
    work_lost: int | None = None
    """Steps that had been made before the interruption and were made again; ``None`` if nothing was interrupted."""
    complete_save: int = 0
    """Last step of which a save was complete when the fault struck."""
    resumed_at: int | None = None
    """Step after which the last attempt continued; ``None`` if its values belong to no step of the other run."""
    detected: float | None = None
    """Seconds from the fault to the end of all ranks of that attempt."""
    resumed: float | None = None
    """Seconds from there to the first step of the next attempt."""
    attempts: int = 1
    finding: Finding | None = None
    """Cause of a difference, as the checks found it."""
    notes: tuple[str, ...] = ()

    @property
    def recovered(self) -> bool:
        return self.verdict in RECOVERED

    def __str__(self) -> str:
        return f"{'; then '.join(map(str, self.schedule))}: {self.message}"


Judge = Callable[[TrainingRecord], Report]
"""Function that judges a record of a run under the strategy, as the comparison without faults did."""


def judge_trial(run: TrialRun, plain: TrialRun, baseline: TrainingRecord, judge: Judge) -> Trial:
    """Return the verdict of a trial.

    :param plain: the uninterrupted run, as ``baseline`` has it.
    """
    trial = begun(run, plain)
    if run.unproved:
        return replace(trial, verdict=Verdict.NOT_INJECTED, message=f"not injected: {run.unproved}")
    if run.last.failed:
        return _without_end(trial, run, baseline, judge)
    joining = _Joining(run, baseline) if len(run.attempts) > 1 else None
    ranks = run.last.attempt.ranks
    if joining is not None:
        if joining.silent:
            why = "the last attempt ended without a loop and without restored values: restore before it returns"
            return replace(trial, verdict=Verdict.UNDECIDED, message=f"undecided: {why}")
        at = joining.at
        trial = replace(trial, resumed_at=at, work_lost=max(0, joining.done - at) if at is not None else None)
        ranks = joining.ranks
    ranks = with_clashes(run, ranks, baseline)
    record = replace(
        baseline, ranks=tuple(ranks), strategy=str(run.last.spec), num_replicas=run.last.attempt.num_replicas
    )
    trial = _compared(trial, record, baseline, judge, joining is None or joining.at is not None)
    return _after_damage(trial, run, baseline)


def _after_damage(trial: Trial, run: TrialRun, baseline: TrainingRecord) -> Trial:
    """Return the verdict of a trial whose last attempt has ended, if a file of its save was damaged before."""
    files = damaged.damaged_files(run)
    if not files or trial.verdict is Verdict.EXACT:
        return trial
    trial = replace(trial, notes=(*trial.notes, f"{', '.join(files)} was damaged"))
    names = damaged.unknown_values(run.last.attempt.ranks, baseline)
    if not names:
        return trial
    more = f" and {len(names) - 1} more" if len(names) > 1 else ""
    words = f"attempt {len(run.attempts)} continued with a value of {names[0]}{more} that no step has"
    return replace(trial, verdict=Verdict.DAMAGED, message=f"{Verdict.DAMAGED.value}, {files[-1]}: {words}")


def begun(run: TrialRun, plain: TrialRun) -> Trial:
    """Return a trial with what its points tell, before its verdict is known."""
    trial = Trial(
        run.schedule, Verdict.EXACT, "", detected=run.detected, resumed=run.resumed, attempts=len(run.attempts)
    )
    return replace(trial, notes=_other_points(run, plain), complete_save=_complete_save(run))


class _Joining:
    """Steps of the uninterrupted run, joined with those of the last attempt, which continued after one of them."""

    def __init__(self, run: TrialRun, baseline: TrainingRecord) -> None:
        ranks = run.last.attempt.ranks
        known = lineage.lineage_of(baseline.ranks[0])
        places = [lineage.place_of(rank, known) for rank in ranks]
        self.done = max(one.completed for one in run.attempts[:-1])
        """Number of steps that were made before the last attempt."""
        self.silent = all(_shows_nothing(rank, place) for rank, place in zip(ranks, places, strict=True))
        """True if the last attempt shows no values that it continued with or ended with."""
        own = min((rank.num_steps - place.replaced for rank, place in zip(ranks, places, strict=True)), default=0)
        starts = {None if one.start is None else one.start + one.replaced for one in places}
        self.at = starts.pop() if len(starts) == 1 else None
        """Step after which the last attempt continued; ``None`` if its values belong to no step, or not to one."""
        found = [start for start in starts if start is not None]
        # If the values are those of no step, the last attempt may have made the steps that were left.
        left = min(self.done, max(0, baseline.num_steps - own))
        step = min(self.at if self.at is not None else max(found, default=left), baseline.num_steps)

        def joined_after(step: int) -> list[RankRecord]:
            cut = [replace(rank, steps=rank.steps[one.replaced :]) for rank, one in zip(ranks, places, strict=True)]
            alike = len(ranks) == len(baseline.ranks)
            return [
                _continued(baseline.ranks, rank, alike, step, late=one.late)
                for rank, one in zip(cut, places, strict=True)
            ]

        self.ranks = joined_after(step)
        whole = baseline.num_steps - own
        possible = all(whole - one.replaced in one.starts for one in places)
        if whole >= 0 and (self.at is None or (whole != self.at and possible)):
            # Equal bits at the end prove the number of steps.
            ranks_of_whole = joined_after(whole)
            if equal_bits(replace(baseline, ranks=tuple(ranks_of_whole)), baseline):
                self.at, self.ranks = whole, ranks_of_whole
        if own and (self.at is None or self.at + own != baseline.num_steps) and len(ranks) == len(baseline.ranks):
            # A restore after the last step replaced all steps of this attempt.
            after_all = [
                _continued(baseline.ranks, _without_steps(rank), True, baseline.num_steps, late=False) for rank in ranks
            ]
            if equal_bits(replace(baseline, ranks=tuple(after_all)), baseline):
                self.at, self.ranks = baseline.num_steps, after_all


def _shows_nothing(rank: RankRecord, place: lineage.Place) -> bool:
    """Return whether a rank has no step, and no weights that it restored."""
    if rank.steps:
        return False
    trained = {variable.index for variable in rank.variables if variable.kind is VariableKind.TRAINABLE}
    restored = any(trained & set(values) for values in rank.resumed.values())
    return not restored or (place.start == 0 and bool(rank.facts.get("no_loop", True)))


def _without_steps(rank: RankRecord) -> RankRecord:
    return replace(rank, steps=(), final=None, resumed={0: _end(rank)})


def _compared(trial: Trial, record: TrainingRecord, baseline: TrainingRecord, judge: Judge, located: bool) -> Trial:
    """Return the verdict of a trial whose last attempt has ended.

    :param located: whether the step is known after which the last attempt continued.
    """
    extra = record.num_steps - baseline.num_steps
    observed = _observed(record) and _observed(baseline)
    ours, theirs = (_examples(one) if observed else Counter[object]() for one in (record, baseline))
    twice, never = sum((ours - theirs).values()), sum((theirs - ours).values())
    bits = equal_bits(record, baseline) and not extra and not twice and not never
    bits = bits and _equal_values(record, baseline)
    # Two writers of one file may be lucky.
    lucky = not shared_writes(record).keys() <= shared_writes(baseline).keys()
    if bits and observed and not lucky:
        return replace(trial, message=_with_work("exact", trial))
    if not observed:
        trial = replace(trial, notes=(*trial.notes, "which examples were trained on was not observed"))
    report = judge(record)
    finding = _of_interruption(report, lambda: judge(baseline))
    trial = replace(trial, twice=twice, never=never, finding=finding)
    if extra:
        verdict = Verdict.REPLAYED if extra > 0 else Verdict.LOST
        words = f"{verdict.value} {counted(abs(extra), 'step')}: the final weights have {record.num_steps} updates, "
        words += f"{baseline.num_steps} without the interruption"
        return replace(trial, verdict=verdict, steps=abs(extra), message=words)
    if (twice or never) and (located or finding is None):
        unknown = sum(count for name, count in (ours - theirs).items() if name not in theirs)
        words = f"{counted(twice - unknown, 'example')} trained on twice, {counted(never, 'example')} never"
        words += f", and {counted(unknown, 'example')} that the uninterrupted run does not have" if unknown else ""
        return replace(trial, verdict=Verdict.EXAMPLES, message=words)
    if report.passed and finding is None:
        return replace(trial, verdict=Verdict.EQUAL, message=_with_work("equal", trial))
    if finding is not None:
        cause = finding.cause or "no known cause"
        return replace(trial, verdict=Verdict.DIVERGED, message=f"diverged, {cause}: {finding.message}")
    if bits:
        return replace(trial, verdict=Verdict.EQUAL, message=_with_work("equal", trial))
    reasons = list(report.inconclusive)
    if report.findings:
        reasons.append(f"{report.findings[0].message}, and so it does without the interruption")
    return replace(trial, verdict=Verdict.UNDECIDED, message=f"undecided: {'; '.join(reasons) or _NOTHING}")


_NOTHING = "nothing could be compared"


def _of_interruption(report: Report, judge_baseline: Callable[[], Report]) -> Finding | None:
    """Return the finding that the interruption causes.

    A comparison may pass only after further runs, for example with constants for random numbers. Its own findings say
    nothing about the interruption.
    """
    every = [one for result in report.results for one in result.findings if one.check == RESUME]
    candidates = [*report.findings, *(one for one in every if one.cause not in report.expectations)]
    if not candidates:
        return None
    before = {(one.check, one.cause) for result in judge_baseline().results for one in result.findings}
    return next((one for one in candidates if (one.check, one.cause) not in before), None)


def _without_end(trial: Trial, run: TrialRun, baseline: TrainingRecord, judge: Judge) -> Trial:
    """Return the verdict of a trial whose last attempt has failed."""
    last = run.last
    ranks = tuple(with_clashes(run, last.attempt.ranks, baseline))
    record = replace(baseline, ranks=ranks, strategy=str(last.spec), num_replicas=last.attempt.num_replicas)
    report = judge(record)
    finding = report.findings[0] if report.findings else None
    what = finding.message if finding else "; ".join(report.inconclusive) or "the last attempt failed"
    verdict = Verdict.HUNG if run.last.hung else Verdict.CANNOT_RESUME
    if verdict is Verdict.CANNOT_RESUME and (files := damaged.damaged_files(run)):
        said = damaged.named(files, ranks)
        verdict, what = (Verdict.REFUSED, said) if said else (verdict, damaged.unnamed(files, ranks))
    return replace(
        trial, verdict=verdict, finding=finding, message=f"{verdict.value}, attempt {len(run.attempts)}: {what}"
    )


def _with_work(word: str, trial: Trial) -> str:
    return f"{word}, {counted(trial.work_lost, 'step')} made again" if trial.work_lost else word


def counted(number: int, noun: str) -> str:
    """Return a number with its noun, for example ``1 step`` or ``2 steps``."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _continued(before: Sequence[RankRecord], rank: RankRecord, alike: bool, step: int, late: bool) -> RankRecord:
    """Return the record of a rank with the steps of the uninterrupted run before those of its last attempt.

    :param alike: whether both have the same number of ranks.
    :param late: whether the values with which the loop began are not those with which it continued.
    """
    earlier = before[rank.rank] if alike else _on_other_ranks(before, rank.rank)
    # The earlier run has a folder of its own. Its files are judged by the comparison.
    first = replace(
        earlier,
        rank=rank.rank,
        task=rank.task,
        steps=earlier.steps[:step],
        final=None,
        resumed={},
        results={},
        writes=(),
    )
    parts = next((len(value) for value in rank.initial.values()), 0)
    if any(len(value) != parts for value in first.initial.values()):
        first = _with_components(first, parts)
    began, resumed = next(iter(rank.resumed.items()), (step, {}))
    moved = tuple(replace(one, index=step + place) for place, one in enumerate(rank.steps, 1))
    results = {name: at - began + step for name, at in rank.result_steps.items()}
    found = {step: resumed} if resumed and not late else {}
    end = joined(first, replace(rank, steps=moved, resumed=found, result_steps=results), step)
    if moved or not resumed:
        return end
    # The last attempt made no step, so that it ends with the values that it restored.
    restored = next(iter(end.resumed.values()), {})
    last = first.steps[-1].snapshot if first.steps else first.initial
    changed = {index: parts for index, parts in restored.items() if not _same_parts(parts, last.get(index, ()))}
    return replace(end, final={**changed, **(end.final or {})})


def _on_other_ranks(before: Sequence[RankRecord], rank: int) -> RankRecord:
    """Return a record for a rank of a run with another number of ranks. The first rank has the batches of all."""
    steps = tuple(
        StepRecord(
            step.index,
            step.loss,
            step.values,
            tuple(batch for one in before for batch in one.steps[place].batches) if rank == 0 else (),
            step.snapshot,
        )
        for place, step in enumerate(before[0].steps)
    )
    return replace(before[0], steps=steps, writes=())


def _with_components(rank: RankRecord, number: int) -> RankRecord:
    """Return a record whose variables have another number of replicas, all with the values of the first."""

    def spread(values: Snapshot) -> dict[int, tuple[Array, ...]]:
        return {index: (parts[0],) * number for index, parts in values.items() if parts}

    steps = tuple(replace(step, snapshot=spread(step.snapshot)) for step in rank.steps)
    return replace(rank, initial=spread(rank.initial), steps=steps)


def _examples(record: TrainingRecord) -> Counter[object]:
    """Count the examples that were trained on, by their content or their id."""
    found: Counter[object] = Counter()
    for step in range(1, record.num_steps + 1):
        for batch in record.batches(step):
            found.update(batch.fingerprints or batch.example_ids or ())
    return found


def equal_bits(record: TrainingRecord, baseline: TrainingRecord) -> bool:
    """Return whether all ranks end with the same bits in all variables but metrics."""
    if len(record.ranks) != len(baseline.ranks):
        return False
    return all(_equal_ends(ours, theirs) for ours, theirs in zip(record.ranks, baseline.ranks, strict=True))


def _equal_ends(ours: RankRecord, theirs: RankRecord) -> bool:
    left, right = _end(ours), _end(theirs)
    kept = [item.index for item in theirs.variables if item.kind is not VariableKind.METRIC]
    return bool(kept) and all(index in left and _same_parts(left[index], right[index]) for index in kept)


def _same_parts(left: Sequence[Array], right: Sequence[Array]) -> bool:
    return len(left) == len(right) and all(same(a, b) for a, b in zip(left, right, strict=True))


def _end(rank: RankRecord) -> dict[int, tuple[Array, ...]]:
    last = rank.steps[-1].snapshot if rank.steps else next(iter(rank.resumed.values()), rank.initial)
    return {**last, **(rank.final or {})}


def _observed(record: TrainingRecord) -> bool:
    """Return whether it is known which examples each step was trained on."""
    found = [record.batches(step) for step in range(1, record.num_steps + 1)]
    return all(
        batches and all(one.fingerprints or one.example_ids or not one.size for one in batches) for batches in found
    )


def _equal_values(record: TrainingRecord, baseline: TrainingRecord) -> bool:
    """Return whether all steps report the same numbers. Within an epoch, ``fit`` shows means over a part of it."""
    return all(
        RUNNING_MEAN in one.values or one.values == other.values
        for ours, theirs in zip(record.ranks, baseline.ranks, strict=True)
        for one, other in zip(ours.steps, theirs.steps, strict=False)
    )


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
