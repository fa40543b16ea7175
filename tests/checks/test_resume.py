"""RESUME on records: what an interrupted run went on with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from simulated_training import Program, simulate

from pytest_ddl.equivalence.checks.resume import check_resume
from pytest_ddl.equivalence.checks.seed import check_seed
from pytest_ddl.equivalence.evidence.comparison import Comparison
from pytest_ddl.equivalence.evidence.tolerance import Tolerance
from pytest_ddl.equivalence.findings import CheckResult, Outcome
from pytest_ddl.equivalence.runs.resuming import joined
from pytest_ddl.equivalence.verdict.judge import judge
from pytest_ddl.records import BatchRecord, DrawRecord, RankRecord, Snapshot, TrainingRecord, VariableKind

AFTER = 2
PROGRAM = Program(replicas=2, workers=2, momentum=0.9, batches=(4, 4, 4, 4))


def change(kinds: tuple[VariableKind, ...], to: Callable[[np.ndarray], np.ndarray]) -> Callable[..., Snapshot]:
    def changed(rank: RankRecord, values: Snapshot) -> Snapshot:
        concerned = {variable.index for variable in rank.variables if variable.kind in kinds}
        return {at: tuple(map(to, parts)) if at in concerned else parts for at, parts in values.items()}

    return changed


def interrupted(
    resume: Callable[[RankRecord, Snapshot], Snapshot] | None = None,
    ranks: tuple[int, ...] = (0, 1),
    data: int = 0,
) -> tuple[TrainingRecord, TrainingRecord]:
    """A run that went on with changed values; its later steps are off by as much, and their data by some steps."""
    reference = with_contents(simulate(replace(PROGRAM, replicas=1, workers=1)))
    distributed = with_contents(simulate(PROGRAM))
    made = []
    for rank in distributed.ranks:
        apply = resume if resume is not None and rank.rank in ranks else (lambda _rank, values: values)
        steps = list(rank.steps)
        for at in range(AFTER, len(steps)):
            batches = rank.steps[max(0, min(at + data, len(steps) - 1))].batches
            steps[at] = replace(steps[at], snapshot=apply(rank, steps[at].snapshot), batches=batches)
        values = apply(rank, rank.steps[AFTER - 1].snapshot)
        made.append(replace(rank, steps=tuple(steps), resumed={AFTER: values}))
    return reference, replace(distributed, ranks=tuple(made))


def with_contents(record: TrainingRecord) -> TrainingRecord:
    def told(batch: BatchRecord) -> BatchRecord:
        return replace(batch, fingerprints=tuple(int(name) for name in batch.example_ids or ()))

    ranks = tuple(
        replace(rank, steps=tuple(replace(s, batches=tuple(map(told, s.batches))) for s in rank.steps))
        for rank in record.ranks
    )
    return replace(record, ranks=ranks)


def earlier(rank: RankRecord, _values: Snapshot) -> Snapshot:
    return rank.steps[0].snapshot


SLOTS = change((VariableKind.SLOT,), np.zeros_like)
WEIGHTS = change((VariableKind.TRAINABLE,), lambda value: value + 0.5)
COUNT = change((VariableKind.ITERATIONS,), lambda value: value - 1)
ENDED = {"no_loop": True}
"""Fact about a program that was started again after a fault and made no step."""


def test_a_run_that_goes_on_where_it_was_passes() -> None:
    report = judge(*interrupted())
    assert report.passed, str(report)
    result = next(result for result in report.results if result.check == "RESUME")
    assert result.outcome is Outcome.PASS


@pytest.mark.parametrize(
    ("given", "cause", "also"),
    [
        ({"resume": SLOTS}, "resume-lost-state", ()),
        ({"resume": WEIGHTS}, "resume-lost-state", ()),
        ({"resume": change((VariableKind.ITERATIONS,), np.zeros_like)}, "resume-lost-state", ()),
        ({"resume": COUNT}, "resume-step-wrong", ()),
        ({"resume": COUNT, "data": -1}, "resume-step-wrong", ()),
        ({"resume": earlier}, "resume-step-wrong", ()),
        ({"resume": WEIGHTS, "ranks": (1,)}, "workers-diverged", ("resume-lost-state",)),
        ({"data": -2}, "resume-data-wrong", ()),
        ({"data": -1}, "resume-step-wrong", ("resume-data-wrong",)),
        ({"data": 1}, "resume-data-wrong", ("resume-step-wrong",)),
    ],
)
def test_what_is_wrong_is_named_first(given: dict[str, object], cause: str, also: tuple[str, ...]) -> None:
    report = judge(*interrupted(**given))  # type: ignore[arg-type]
    first = report.findings[0]
    assert (first.check, first.cause, first.also) == ("RESUME", cause, also), str(report)
    assert len(report.findings) == 1, str(report)


def test_state_that_is_made_anew_is_lost_and_not_of_the_first_step() -> None:
    # Some state keeps its initial value in the first step, for example a loss scale.
    reference, distributed = interrupted()
    slots = {item.index for item in distributed.variables if item.kind is VariableKind.SLOT}
    made = []
    for rank in distributed.ranks:
        initial = {at: parts for at, parts in rank.initial.items() if at in slots}
        first = replace(rank.steps[0], snapshot={**rank.steps[0].snapshot, **initial})
        steps = [first, *rank.steps[1:AFTER]]
        steps += [replace(step, snapshot={**step.snapshot, **initial}) for step in rank.steps[AFTER:]]
        resumed = {AFTER: {**rank.resumed[AFTER], **initial}}
        made.append(replace(rank, steps=tuple(steps), resumed=resumed))
    result = check_resume(Comparison(reference, replace(distributed, ranks=tuple(made)), Tolerance(reference)))
    assert [finding.cause for finding in result.findings] == ["resume-lost-state"]


def test_a_rate_that_is_set_before_each_step_is_not_lost() -> None:
    reference, distributed = interrupted()
    rate = change((VariableKind.LEARNING_RATE,), np.zeros_like)
    ranks = tuple(replace(r, resumed={AFTER: rate(r, r.resumed[AFTER])}) for r in distributed.ranks)
    assert (
        check_resume(Comparison(reference, replace(distributed, ranks=ranks), Tolerance(reference))).outcome
        is Outcome.PASS
    )


@pytest.mark.parametrize("resumed", [{}, {AFTER: {}}])
def test_nothing_to_compare_is_not_a_pass(resumed: dict[int, Snapshot]) -> None:
    reference, distributed = interrupted()
    ranks = tuple(replace(rank, resumed=resumed) for rank in distributed.ranks)
    result = check_resume(Comparison(reference, replace(distributed, ranks=ranks), Tolerance(reference)))
    assert result.outcome is Outcome.NOT_APPLICABLE


def after_the_last_step(resume: Callable[[RankRecord, Snapshot], Snapshot], steps: int) -> tuple[TrainingRecord, ...]:
    """Records of a run that is interrupted after ``steps`` of its 4 steps, and makes no step after that."""
    reference, whole = interrupted()
    made = []
    for rank in whole.ranks:
        values = resume(rank, rank.steps[steps - 1].snapshot)
        made.append(replace(rank, steps=rank.steps[:steps], resumed={steps: values}, final=values, facts=ENDED))
    return reference, replace(whole, ranks=tuple(made))


def test_after_the_last_step_the_restored_values_decide() -> None:
    reference, good = after_the_last_step(lambda _rank, values: values, steps=4)
    assert check_resume(Comparison(reference, good, Tolerance(reference))).outcome is Outcome.PASS
    reference, ended_early = after_the_last_step(lambda _rank, values: values, steps=3)
    assert check_resume(Comparison(reference, ended_early, Tolerance(reference))).outcome is Outcome.INCONCLUSIVE
    reference, lost = after_the_last_step(SLOTS, steps=4)
    found = check_resume(Comparison(reference, lost, Tolerance(reference))).findings
    assert [finding.cause for finding in found] == ["resume-lost-state"]


def test_a_program_that_restarts_itself_needs_a_further_step() -> None:
    reference, limited = after_the_last_step(lambda _rank, values: values, steps=4)
    limited = replace(limited, ranks=tuple(replace(rank, facts={}) for rank in limited.ranks))
    result = check_resume(Comparison(reference, limited, Tolerance(reference)))
    assert result.outcome is Outcome.INCONCLUSIVE
    assert "no step was recorded after the interruption that followed step 4" in result.reason


def test_what_cannot_be_compared_after_the_last_step_is_named() -> None:
    reference, good = after_the_last_step(lambda _rank, values: values, steps=4)
    slot = next(item for item in good.variables if item.kind is VariableKind.SLOT)
    local = replace(slot, kind=VariableKind.STATE, synchronization="on_read", aggregation="mean")
    read = tuple(
        replace(rank, variables=tuple(local if item == slot else item for item in rank.variables))
        for rank in good.ranks
    )
    late = tuple(
        replace(rank, resumed={4: {at: parts for at, parts in rank.resumed[4].items() if at != slot.index}})
        for rank in good.ranks
    )
    for ranks in (read, late):
        result = check_resume(Comparison(reference, replace(good, ranks=ranks), Tolerance(reference)))
        assert result.outcome is Outcome.INCONCLUSIVE
        assert f"so {slot.name} cannot be compared" in result.reason


def test_more_than_two_attempts_are_joined_into_one_run() -> None:
    whole = simulate(PROGRAM).ranks[0]
    parts = [
        replace(whole, steps=whole.steps[first:last], resumed={first: {}} if first else {})
        for first, last in ((0, 1), (1, 2), (2, 4))
    ]
    rank = joined(joined(parts[0], parts[1], 1), parts[2], 2)
    assert [step.index for step in rank.steps] == [1, 2, 3, 4]
    assert sorted(rank.resumed) == [1, 2]


def with_draws(record: TrainingRecord, digest: Callable[[int], int], size: int = 6, **fields: object) -> TrainingRecord:
    """Let all replicas draw the same numbers, of which there are as many for any batch."""

    def drawn(replica: int, step: int) -> DrawRecord:
        return DrawRecord(replica, 0, "random_normal", "noise", digest(step), size, (size,), "float32", size, **fields)  # type: ignore[arg-type]

    def changed(rank: RankRecord) -> RankRecord:
        steps = (replace(s, draws=tuple(drawn(r, s.index) for r in rank.replicas)) for s in rank.steps)
        return replace(rank, steps=tuple(steps))

    return replace(record, ranks=tuple(map(changed, record.ranks)))


def judged_draws(
    ours: Callable[[int], int], theirs: Callable[[int], int], **fields: int | None
) -> tuple[CheckResult, CheckResult]:
    reference, distributed = interrupted()
    records = with_draws(reference, ours, **fields), with_draws(distributed, theirs, **fields)
    comparison = Comparison(*records, Tolerance(reference))
    return check_resume(comparison), check_seed(comparison)


def anew(step: int) -> int:
    return step if step <= AFTER else step - AFTER


@pytest.mark.parametrize("fields", [{}, {"size": 1, "seeds": 7}], ids=["numbers", "seeds"])
def test_numbers_that_come_again_after_the_interruption_belong_to_another_step(fields: dict[str, int]) -> None:
    result, seed = judged_draws(lambda step: step, anew, **fields)
    (finding,) = result.findings
    assert (finding.cause, finding.step) == ("resume-random-wrong", AFTER)
    assert "draws in step 3 the numbers of step 1 again" in finding.message
    assert not seed.findings


def test_numbers_that_repeat_without_an_interruption_are_no_matter_of_resuming() -> None:
    for ours, theirs in (
        (anew, anew),  # one device repeats them too
        (lambda _step: 1, lambda _step: 1),
        (lambda step: step, lambda step: step),
        (lambda step: step, lambda step: 10 * step),  # another order, without repeats
    ):
        assert judged_draws(ours, theirs)[0].outcome is Outcome.PASS


def test_few_numbers_that_come_again_prove_nothing() -> None:
    assert judged_draws(lambda step: step, anew, size=2)[0].outcome is Outcome.PASS


def with_states(record: TrainingRecord, state: Callable[[int], int]) -> TrainingRecord:
    def changed(rank: RankRecord) -> RankRecord:
        return replace(rank, facts={"generators": {step.index: (f"{state(step.index)}",) for step in rank.steps}})

    return replace(record, ranks=tuple(map(changed, record.ranks)))


@pytest.mark.parametrize(
    ("ours", "theirs", "lost"),
    [
        (lambda step: step, anew, True),
        (lambda step: step, lambda step: step, False),
        (lambda _step: 1, lambda _step: 1, False),  # it is not used in steps
        (anew, anew, False),
    ],
)
def test_a_generator_that_begins_anew_is_named(
    ours: Callable[[int], int], theirs: Callable[[int], int], lost: bool
) -> None:
    reference, distributed = interrupted()
    records = with_states(reference, ours), with_states(distributed, theirs)
    result = check_resume(Comparison(*records, Tolerance(reference)))
    assert [finding.cause for finding in result.findings] == (["resume-random-wrong"] if lost else [])


def test_states_of_generators_of_both_attempts_are_joined() -> None:
    reference, _distributed = interrupted()
    rank = reference.ranks[0]
    first, second = (replace(rank, facts={"generators": {step: (f"{step}",)}}) for step in (1, 2))
    assert joined(first, second, 1).facts["generators"] == {1: ("1",), 2: ("2",)}


@pytest.mark.parametrize(
    "fact",
    [
        {"unwatched": ["head/kernel"]},
        {"own_strategies": [{"type": "MirroredStrategy", "replicas": 1, "used": True}]},
        {"draws_unseen": {3: ("RandomUniform", (4,))}},
        {"drew_unseen": True},
        {"shards": [(2, 0)]},
    ],
)
def test_what_the_interrupted_attempt_left_open_stays_open(fact: dict[str, object]) -> None:
    first, second = (replace(simulate(PROGRAM).ranks[0], facts=facts) for facts in (fact, {"takes_more": False}))
    for facts in (joined(first, second, AFTER).facts, joined(second, first, AFTER).facts):
        assert {name: facts[name] for name in fact} == fact  # type: ignore[literal-required]
    assert joined(first, second, AFTER).facts["takes_more"] is False


def test_a_weight_that_only_the_interrupted_attempt_trained_unwatched_is_no_pass() -> None:
    reference, distributed = interrupted()
    assert judge(reference, distributed).verdict == "pass"
    open_ = [replace(rank, facts={**rank.facts, "unwatched": ["head/kernel"]}) for rank in distributed.ranks]
    ranks = tuple(joined(one, rank, AFTER) for one, rank in zip(open_, distributed.ranks, strict=True))
    ranks = tuple(replace(rank, steps=one.steps, resumed=one.resumed) for rank, one in zip(ranks, open_, strict=True))
    assert judge(reference, replace(distributed, ranks=ranks)).verdict == "inconclusive"
