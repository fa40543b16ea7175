"""SEED on records: repeated streams are named, but not those that may be shared or are too small to decide."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from simulated_training import Program, simulate

from pytest_ddl.equivalence.checks.seed import ACROSS_REPLICAS, ACROSS_STEPS, check_seed
from pytest_ddl.equivalence.evidence.comparison import Comparison
from pytest_ddl.equivalence.evidence.tolerance import Tolerance
from pytest_ddl.equivalence.findings import CheckResult, Outcome
from pytest_ddl.records import DrawRecord, TrainingRecord
from pytest_ddl.strategies.spec import Capabilities

Digest = Callable[[int, int], int]
FEATURES = 8


def _with_draws(record: TrainingRecord, digest: Digest, shape: tuple[int, ...], **fields: object) -> TrainingRecord:
    def draw(replica: int, step: int) -> DrawRecord:
        size = 1
        for length in shape:
            size *= length
        given = {"op": "stateless_random_uniform_v2", "dtype": "float32", "distinct": size, "size": size, **fields}
        given = {name: value(replica, step) if callable(value) else value for name, value in given.items()}
        return DrawRecord(replica, 0, name="dropout/uniform", digest=digest(replica, step), shape=shape, **given)

    ranks = tuple(
        replace(
            rank,
            steps=tuple(replace(step, draws=tuple(draw(r, step.index) for r in rank.replicas)) for step in rank.steps),
        )
        for rank in record.ranks
    )
    return replace(record, ranks=ranks)


def _judged(
    digest: Digest,
    shape: Callable[[int], tuple[int, ...]] = lambda size: (size, FEATURES),
    replicas: int = 2,
    workers: int = 1,
    steps: int = 3,
    **fields: object,
) -> CheckResult:
    reference = _with_draws(simulate(Program(batches=(12,) * steps)), digest, shape(12), **fields)
    program = Program(replicas=replicas, workers=workers, batches=(12,) * steps)
    distributed = _with_draws(simulate(program), digest, shape(12 // replicas), **fields)
    return check_seed(Comparison(reference, distributed, Tolerance(reference)))


def _causes(result: CheckResult) -> list[str | None]:
    return [finding.cause for finding in result.findings]


def test_streams_of_their_own_pass() -> None:
    result = _judged(lambda replica, step: 10 * replica + step)
    assert result.outcome is Outcome.PASS
    assert "on 2 replica(s)" in result.reason


@pytest.mark.parametrize("workers", [1, 2])
def test_the_same_stream_on_all_replicas_is_named(workers: int) -> None:
    result = _judged(lambda _replica, step: step, workers=workers)
    assert _causes(result) == [ACROSS_REPLICAS]
    finding = result.findings[0]
    assert (finding.step, finding.replica, finding.worker) == (1, 1, workers - 1)
    assert not finding.approximation


def test_the_same_numbers_in_every_step_are_named_also_on_one_replica() -> None:
    assert _causes(_judged(lambda replica, _step: replica)) == [ACROSS_STEPS]
    assert _causes(_judged(lambda replica, _step: replica, replicas=1)) == [ACROSS_STEPS]


@pytest.mark.parametrize("follows", [False, True])
def test_a_loop_over_the_examples_has_rows(follows: bool) -> None:
    """Each execution draws for one example if one device executes the operation as many times more."""

    def drawn(program: Program, digest: Digest, times: int) -> TrainingRecord:
        return _with_draws(simulate(program), digest, (4,), size=4 * times, distinct=4 * times)

    def judged(digest: Digest) -> CheckResult:
        reference = drawn(Program(batches=(12,) * 3), digest, 12 if follows else 6)
        distributed = drawn(Program(replicas=2, batches=(12,) * 3), digest, 6)
        return check_seed(Comparison(reference, distributed, Tolerance(reference)))

    shared, own = judged(lambda _replica, step: step), judged(lambda replica, step: 10 * replica + step)
    assert _causes(shared) == ([ACROSS_REPLICAS] if follows else [])
    assert own.outcome is (Outcome.PASS if follows else Outcome.NOT_APPLICABLE)


def test_two_of_four_replicas_are_enough() -> None:
    result = _judged(lambda replica, step: 100 * max(replica, 1) + step, replicas=4)
    assert _causes(result) == [ACROSS_REPLICAS]
    assert "replicas 0, 1" in result.findings[0].message
    assert _causes(_judged(lambda replica, step: 100 * min(replica, 2) + step, replicas=4)) == [ACROSS_REPLICAS]


def test_the_same_many_numbers_in_one_step_are_no_chance() -> None:
    result = _judged(lambda replica, step: 999 if step == 2 else 10 * replica + step)
    assert _causes(result) == [ACROSS_REPLICAS]
    assert result.findings[0].step == 2
    assert "in step 2" in result.findings[0].message


@pytest.mark.parametrize(
    ("size", "found"), [(2, False), (6, False), (12, True)], ids=["too few", "chance in one step", "many bits"]
)
def test_few_whole_numbers_that_are_equal_in_one_step_may_be_chance(size: int, found: bool) -> None:
    """A repeat proves something only if chance would not give it: 6 numbers of 16 have 24 bits, 12 have 48."""
    result = _judged(
        lambda replica, step: 999 if step == 2 else 10 * replica + step,
        lambda examples: (examples, size // 6) if size >= 6 else (examples // 6 * size,),
        dtype="int32",
        distinct=16,
    )
    assert _causes(result) == ([ACROSS_REPLICAS] if found else [])


def test_a_few_numbers_that_are_equal_in_all_steps_are_no_chance() -> None:
    result = _judged(lambda _replica, step: step, lambda size: (size,), dtype="int32", distinct=16)
    assert _causes(result) == [ACROSS_REPLICAS]


def test_equal_seeds_prove_what_few_numbers_do_not() -> None:
    def judged(seeds: Digest, digest: Digest = lambda _replica, step: step, **fields: object) -> CheckResult:
        return _judged(digest, lambda size: (size,), seeds=seeds, **{"dtype": "int32", "distinct": 2, **fields})

    for shared in (judged(lambda _replica, step: step), judged(lambda _replica, step: step, size=1, distinct=1)):
        assert _causes(shared) == [ACROSS_REPLICAS]
        assert "same seed" in (shared.findings[0].evidence or "")
    assert _causes(judged(lambda replica, _step: replica, lambda _replica, _step: 7)) == [ACROSS_STEPS]
    by_chance = judged(lambda replica, step: 10 * replica + step)
    assert by_chance.outcome is Outcome.PASS
    one_value = judged(lambda _replica, _step: 7, lambda _replica, _step: 7, distinct=1)
    assert one_value.outcome is Outcome.PASS


def test_a_replica_that_draws_a_step_later_what_another_drew_is_named() -> None:
    result = _judged(lambda replica, step: step + replica)
    assert _causes(result) == [ACROSS_REPLICAS]
    assert "on replica 1 in step 1 and on replica 0 in step 2" in result.findings[0].message


@pytest.mark.parametrize("period", [2, 3])
def test_numbers_that_come_again_after_some_steps_are_named(period: int) -> None:
    result = _judged(lambda replica, step: 10 * replica + step % period, steps=5)
    assert _causes(result) == [ACROSS_STEPS]
    assert f"again after every {period} steps" in result.findings[0].message


def test_numbers_that_come_again_once_are_named() -> None:
    result = _judged(lambda replica, step: 10 * replica + (1 if step == 4 else step), steps=5)
    assert _causes(result) == [ACROSS_STEPS]
    assert "in step 1 and in step 4" in result.findings[0].message


@pytest.mark.parametrize(
    ("shape", "fields"),
    [
        (lambda _size: (FEATURES, 4), {}),  # random features: a fixed projection, shared on purpose
        (lambda _size: (), {}),
    ],
)
def test_what_has_no_row_per_example_may_be_shared(shape: Callable[[int], tuple[int, ...]], fields: dict) -> None:
    assert _judged(lambda _replica, _step: 7, shape, **fields).outcome is Outcome.NOT_APPLICABLE


@pytest.mark.parametrize("fields", [{"dtype": "int32", "distinct": 2}, {"distinct": 1}])
def test_too_little_to_tell_is_no_finding(fields: dict) -> None:
    assert _judged(lambda _replica, _step: 7, lambda size: (size,), **fields).outcome is Outcome.PASS


def test_nothing_drawn_is_not_applicable() -> None:
    reference, distributed = simulate(Program()), simulate(Program(replicas=2))
    result = check_seed(Comparison(reference, distributed, Tolerance(reference)))
    assert result.outcome is Outcome.NOT_APPLICABLE
    sharded = replace(distributed, strategy="model_parallel[model=2]", capabilities=Capabilities(global_view=True))
    assert "model_parallel" in check_seed(Comparison(reference, sharded, Tolerance(reference))).reason


def test_a_global_seed_that_the_check_itself_set_alike_on_all_workers_is_tolerated() -> None:
    def judged(**given: object) -> CheckResult:
        return _judged(lambda _replica, step: step, workers=2, **given)

    assert judged(op="random_uniform").findings[0].approximation
    assert not judged(op="random_uniform", seeded=True).findings[0].approximation
    assert not _judged(lambda _replica, step: step, op="random_uniform").findings[0].approximation
    nested = _judged(lambda _replica, step: step, op="random_uniform", nested=True)
    assert nested.findings[0].approximation


@pytest.mark.parametrize(("rows", "outcome"), [(12, Outcome.FAIL), (7, Outcome.NOT_APPLICABLE)])
def test_a_draw_for_the_global_batch_may_repeat_over_replicas_and_not_over_steps(rows: int, outcome: Outcome) -> None:
    result = _judged(lambda _replica, _step: 1, lambda _size: (rows, FEATURES))
    assert result.outcome is outcome
    assert _causes(result) == ([ACROSS_STEPS] if outcome is Outcome.FAIL else [])
    assert _judged(lambda _replica, step: step, lambda _size: (rows, FEATURES)).outcome is not Outcome.FAIL
