"""Judge steps by the values that they computed, if one device took over the strategy's values after them.

Such a step ends with the same values in both runs, so that the steps after it can be compared. But equal values
after such a step do not show that the step was right. So the step is judged in records that end with the values that
it computed itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from pytest_ddl.equivalence.checks.registry import ROLES
from pytest_ddl.equivalence.findings import WORST_FIRST, CheckResult, Finding, Outcome, Reason, Unjudged
from pytest_ddl.equivalence.roles import NO_ROLE, Role, Roles
from pytest_ddl.records import RankRecord, StepRecord, TrainingRecord

MOST = 100
"""Maximum number of steps that are judged this way. Each takes as long as comparing the values of the run up to it."""
Cut = Callable[[TrainingRecord], TrainingRecord]


def step_by_step(
    taken_over: Sequence[int],
    judged: Callable[[Cut, Role], Sequence[CheckResult]],
    roles: Roles = ROLES,
    is_excused: Callable[[Finding], bool] = lambda finding: finding.approximation,
) -> tuple[CheckResult, ...]:
    """Return the results of the checks. Steps that ended with values taken over are also judged one by one.

    :param judged: a function that gives the results of the checks with one of some roles, for changed records.
    :param is_excused: whether a finding is tolerated, declared or known. If its size was recomputed too, it hides no
        other defect, because later steps began with equal values.
    """
    results = judged(partial(without_losses, steps=taken_over), ~NO_ROLE)
    cuts = {step: partial(up_to, step=step, taken_over=taken_over) for step in taken_over[:MOST]}
    own = {step: {result.check: result for result in judged(cut, Role.BY_STEP)} for step, cut in cuts.items()}
    left = (
        Unjudged(f"step {taken_over[MOST]} and later uneven steps", Reason.TOO_MANY_STEPS)
        if len(taken_over) > MOST
        else None
    )
    joined = []
    for result in results:
        if roles.have(result, Role.BY_STEP):
            for step, others in own.items():
                result = _joined(result, _of_step(others[result.check], step, is_excused))
            if left is not None:
                result = replace(result, unjudged=(*result.unjudged, left))
        joined.append(result)
    return tuple(joined)


def without_losses(record: TrainingRecord, steps: Sequence[int]) -> TrainingRecord:
    """Return a record without the losses of some steps: the first loss that differs would be the only finding."""
    if not steps:
        return record

    def silent(rank: RankRecord) -> RankRecord:
        return replace(rank, steps=tuple(replace(s, loss=None) if s.index in steps else s for s in rank.steps))

    return replace(record, ranks=tuple(silent(rank) for rank in record.ranks))


def up_to(record: TrainingRecord, step: int, taken_over: Sequence[int] = ()) -> TrainingRecord:
    """Return a record that ends with a step and with the values that the step itself computed."""

    def ended(last: StepRecord) -> StepRecord:
        return last if last.own is None else replace(last, snapshot=last.own)

    def cut(rank: RankRecord) -> RankRecord:
        kept = (*rank.steps[: step - 1], *map(ended, rank.steps[step - 1 : step]))
        return replace(rank, steps=kept, final=None, cut_off=(), results={}, result_steps={})

    cut_off = without_losses(record, [other for other in taken_over if other < step])
    return replace(cut_off, ranks=tuple(cut(rank) for rank in cut_off.ranks))


def _of_step(result: CheckResult, step: int, is_excused: Callable[[Finding], bool]) -> CheckResult:
    """Return the result of a check for only the last step."""
    kept = tuple(
        replace(finding, verified=finding.exact and is_excused(finding))
        for finding in result.findings
        if finding.step == step
    )
    doubtful = result.outcome is Outcome.INCONCLUSIVE and not result.follows
    outcome = Outcome.FAIL if kept else Outcome.INCONCLUSIVE if doubtful else Outcome.NOT_APPLICABLE
    return replace(result, outcome=outcome, findings=kept)


def _joined(whole: CheckResult, own: CheckResult) -> CheckResult:
    worse = min(whole, own, key=lambda result: WORST_FIRST.index(result.outcome))
    return replace(whole, outcome=worse.outcome, reason=worse.reason, findings=(*whole.findings, *own.findings))
