"""DATA-COVER on records: what is lost or repeated, and what is merely in another order."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from simulated_training import Program, simulate

from pytest_ddl.equivalence.causes import fix_of
from pytest_ddl.equivalence.checks.batch import check_batch
from pytest_ddl.equivalence.checks.data_cover import check_data_cover
from pytest_ddl.equivalence.evidence.calls import data_calls
from pytest_ddl.equivalence.evidence.comparison import Comparison
from pytest_ddl.equivalence.evidence.coverage import (
    Order,
    contents_are_known,
    contents_by_step,
    coverage,
    replicas_consume_equal_examples,
)
from pytest_ddl.equivalence.evidence.tolerance import Tolerance
from pytest_ddl.equivalence.findings import Outcome
from pytest_ddl.equivalence.verdict.judge import judge
from pytest_ddl.records import BatchRecord, RankRecord, StepRecord, TrainingRecord
from pytest_ddl.step_records import BatchOrigin, InputRecord

Steps = list[list[list[int]]]


def consumed(steps: Steps, by: str = "ids") -> TrainingRecord:
    """A run in which, in each step, each replica consumed these examples."""
    replicas = len(steps[0])
    record = simulate(Program(replicas=replicas, batches=[4] * len(steps)))
    made = []
    for step, batches in zip(record.ranks[0].steps, steps, strict=True):
        names = {"example_ids": by == "ids", "fingerprints": by == "contents"}
        found = [
            BatchRecord(at, len(names_), **{name: tuple(names_) if told else None for name, told in names.items()})
            for at, names_ in enumerate(batches)
        ]
        made.append(replace(step, batches=tuple(found)))
    return replace(record, ranks=(replace(record.ranks[0], steps=tuple(made)),))


def one(*steps: list[int]) -> Steps:
    return [[step] for step in steps]


WHOLE = one([0, 1, 2, 3], [4, 5, 6, 7])


@pytest.mark.parametrize("by", ["ids", "contents"])
@pytest.mark.parametrize(
    ("ours", "theirs", "order"),
    [
        (WHOLE, [[[0, 1], [2, 3]], [[4, 5], [6, 7]]], Order.SAME),
        (WHOLE, [[[3, 1], [2, 0]], [[7, 5], [6, 4]]], Order.SAME),
        (WHOLE, [[[0, 1], [4, 5]], [[2, 3], [6, 7]]], Order.OTHER),
        (WHOLE, [[[0, 1], [1, 2]], [[4, 5], [6, 7]]], Order.WRONG),
        (WHOLE, [[[0, 1], [0, 1]], [[2, 3], [2, 3]]], Order.REPEATED),
        # cut off within the first pass: other examples, none of them twice
        (one([0, 1, 2, 3]), [[[0, 1], [8, 9]]], Order.OTHER),
        (one([0, 1, 2, 3]), [[[0, 9], [8, 9]]], Order.WRONG),
        # two passes, reshuffled
        ([*WHOLE, *WHOLE], [[[0, 1], [4, 5]], [[2, 3], [6, 7]], [[7, 6], [3, 2]], [[0, 1], [4, 5]]], Order.OTHER),
        ([*WHOLE, *WHOLE], [[[0, 1], [0, 5]], [[2, 3], [6, 7]], [[7, 6], [3, 2]], [[4, 1], [4, 5]]], Order.WRONG),
        # the last step of a pass goes on into the next one, and differs there
        (one([0, 1, 2, 3], [4, 5, 1, 0], [2, 3]), [[[0, 1], [2, 3]], [[4, 5], [2, 0]], [[1], [3]]], Order.OTHER),
        # drawn with replacement
        (one([0, 1, 1, 2], [5, 2, 7, 0]), [[[0, 3], [1, 3]], [[4, 2], [2, 7]]], Order.OTHER),
    ],
)  # fmt: skip
def test_order(ours: Steps, theirs: Steps, order: Order, by: str) -> None:
    found = coverage(consumed(ours, by), consumed(theirs, by))
    assert found is not None
    assert found.order is order


def test_what_is_repeated_and_lost_is_named() -> None:
    reference, distributed = consumed(WHOLE), consumed([[[0, 1], [1, 2]], [[4, 5], [6, 7]]])
    result = check_data_cover(Comparison(reference, distributed, Tolerance(reference)))
    assert result.outcome is Outcome.FAIL
    assert [finding.cause for finding in result.findings] == ["examples-duplicated", "examples-dropped"]


def scheduled(steps: Steps, **facts: Any) -> TrainingRecord:
    """A run in which a coordinator had two workers take these steps, and each read the data by itself."""
    record = consumed(steps)
    rank = replace(record.ranks[0], asynchronous=True, facts={"workers": 2, "data_of_workers": True, **facts})
    return replace(record, ranks=(rank,))


def test_workers_of_a_coordinator_may_each_read_all_of_the_data() -> None:
    reference, distributed = consumed(WHOLE), scheduled(one([0, 1, 2, 3], [3, 2, 1, 0]))
    result = check_data_cover(Comparison(reference, distributed, Tolerance(reference)))
    assert [finding.cause for finding in result.findings] == ["examples-duplicated", "examples-dropped"]
    assert all(finding.approximation for finding in result.findings)
    assert all("an example is used up to 2 times, and others are not used" in str(f.evidence) for f in result.findings)


@pytest.mark.parametrize(
    "distributed",
    [
        scheduled(one([0, 1, 2, 3], [3, 2, 1, 0]), data_of_workers=False),
        scheduled(one([0, 1, 2, 3], [3, 2, 1, 9])),
        scheduled(one([0, 0, 0, 1], [1, 2, 3, 4])),
    ],
    ids=["one dataset for all", "another example", "one worker repeats"],
)
def test_examples_that_no_worker_of_a_coordinator_may_repeat_fail(distributed: TrainingRecord) -> None:
    reference = consumed(WHOLE)
    result = check_data_cover(Comparison(reference, distributed, Tolerance(reference)))
    assert result.findings
    assert not any(finding.approximation for finding in result.findings)


def of_concurrent_steps(*batches: list[int]) -> TrainingRecord:
    """A run of two concurrent steps, whose batches cannot be shared out unless there are two."""
    record = scheduled(one([], []))
    (rank,) = record.ranks
    first, last = rank.steps
    taken = tuple(BatchRecord(0, len(ids), example_ids=tuple(ids)) for ids in batches)
    return replace(record, ranks=(replace(rank, steps=(replace(first, batches=()), replace(last, batches=taken))),))


@pytest.mark.parametrize(
    ("batches", "outcome", "said"),
    [
        ([[0, 1], [2, 3], [4, 5, 6, 7]], Outcome.PASS, "2 global batches"),
        ([[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]], Outcome.FAIL, "steps 1 to 2, which ran concurrently, have 12"),
        ([[0, 1, 2, 3]], Outcome.INCONCLUSIVE, "the batches of step 2 were not observed"),
    ],
    ids=["all", "one closure ran again", "one was not observed"],
)
def test_batches_that_cannot_be_shared_out_are_those_of_all_concurrent_steps(
    batches: Steps, outcome: Outcome, said: str
) -> None:
    reference, distributed = consumed(WHOLE), of_concurrent_steps(*batches)
    result = check_batch(Comparison(reference, distributed, Tolerance(reference)))
    assert result.outcome is outcome
    assert said in (result.findings[0].message if result.findings else result.reason or str(result.doubts))


def test_the_same_batch_on_every_replica_is_named() -> None:
    reference, distributed = consumed(WHOLE), consumed([[[0, 1], [0, 1]], [[2, 3], [2, 3]]])
    result = check_data_cover(Comparison(reference, distributed, Tolerance(reference)))
    assert result.findings[0].cause == "examples-duplicated"
    assert "all replicas consume the same examples" in result.findings[0].message
    repeated, missing = result.findings
    assert (repeated.cause, missing.cause) == ("examples-duplicated", "examples-dropped")
    assert missing.fix == fix_of("examples-duplicated")  # whoever splits the data loses nothing


def test_equal_examples_on_all_replicas_decide_nothing_unless_they_are_declared() -> None:
    """The gradient of one replica equals that of all on dummy data, so that the data decides nothing."""
    reference = consumed(one([7, 7, 7, 7], [7, 7, 7, 7]), "contents")
    alike = consumed([[[7, 7], [7, 7]], [[7, 7], [7, 7]]], "contents")
    different = consumed([[[7, 7], [7, 7]], [[7, 7], [7, 8]]], "contents")
    for checks in (["DATA-COVER"], ["STEP-EQ"], None):
        report = judge(reference, alike, checks=checks)
        assert (report.verdict, [doubt.check for doubt in report.doubts]) == ("inconclusive", ["DATA-COVER"])
        assert "numpy.random.default_rng" in report.program_reasons[0]
        declared = judge(reference, alike, checks=checks, expect={"examples-equal": "the data is one constant"})
        assert (declared.verdict, declared.unused_expectations) == ("pass", {})
    assert judge(reference, alike, checks=["BATCH"]).verdict == "pass"
    assert judge(reference, different, checks=["STEP-EQ"], expect=["examples-equal"]).unused_expectations
    assert replicas_consume_equal_examples(alike)
    assert not any(map(replicas_consume_equal_examples, (reference, different, consumed(WHOLE))))


def test_nothing_observed_is_not_a_pass() -> None:
    record = simulate(Program(replicas=2, observe=False))
    assert check_data_cover(Comparison(record, record, Tolerance(record))).outcome is Outcome.NOT_APPLICABLE


def test_contents_by_step() -> None:
    record = consumed([[[0, 1], [2, 3]], [[4, 5], [6, 9]]], "contents")
    assert contents_by_step(record) == ((0, 1, 2, 3), (4, 5, 6, 9))
    assert contents_by_step(consumed(WHOLE)) is None
    assert not contents_are_known(consumed(WHOLE, "contents"), record)


def test_data_that_ends_early_has_lost_examples_though_it_is_in_another_order() -> None:
    reference = consumed(one([0, 1, 2, 3], [4, 5, 6, 7]))
    result = check_data_cover(Comparison(reference, consumed([[[0, 2], [4, 6]]]), Tolerance(reference)))
    assert [finding.cause for finding in result.findings] == ["examples-dropped"]


def test_what_every_replica_is_given_whole_besides_its_share_is_no_batch() -> None:
    reference, distributed = consumed(WHOLE), consumed([[[0, 1], [2, 3]], [[4, 5], [6, 7]]])

    def with_gradients(record: TrainingRecord) -> TrainingRecord:
        (rank,) = record.ranks
        steps = tuple(
            replace(step, batches=tuple(c for b in step.batches for c in (b, replace(b, size=6, example_ids=(9,) * 6))))
            for step in rank.steps
        )
        return replace(record, ranks=(replace(rank, steps=steps),))

    assert data_calls(*map(with_gradients, (reference, distributed))) == (reference, distributed)
    undivided = consumed([[[0, 1, 2, 3]] * 2, [[4, 5, 6, 7]] * 2])
    assert data_calls(reference, undivided) == (reference, undivided)


def _given(
    sizes: list[list[int]], *others: tuple[int, ...], origin: BatchOrigin = BatchOrigin.ARGUMENT
) -> TrainingRecord:
    """One call in each step, whose replicas get a batch of these sizes and other tensors of these shapes in front."""
    steps, first = [], 0
    for step, parts in enumerate(sizes, 1):
        batches = []
        for replica, size in enumerate(parts):
            rows = tuple(hash(("row", first + row)) % 2**63 for row in range(size))
            before = tuple(InputRecord(shape, (7,) * shape[0]) for shape in others)
            inputs = (*before, InputRecord((size, 3), rows))
            head = inputs[0]
            batches.append(BatchRecord(replica, head.rows, head.hashes, inputs=inputs, origin=origin))
            first += size
        steps.append(StepRecord(step, None, batches=tuple(batches)))
    replicas = tuple(range(len(sizes[0])))
    rank = RankRecord(0, "worker:0", replicas, steps=tuple(steps))
    return TrainingRecord("mirrored", len(replicas), (rank,), 8, "float64", 0)


@pytest.mark.parametrize("shape", [(2,), (4,), (8,), (1, 3)])
def test_a_tensor_in_front_of_the_batch_is_no_batch(shape: tuple[int, ...]) -> None:
    reference, distributed = data_calls(_given([[8], [8]], shape), _given([[4, 4], [4, 4]], shape))
    assert [sum(batch.size for batch in record.batches(1)) for record in (reference, distributed)] == [8, 8]
    assert contents_by_step(reference) == contents_by_step(distributed)


def test_a_batch_of_the_wrong_size_behind_a_tensor_is_wrong() -> None:
    reference, distributed = data_calls(_given([[8], [8]], (2,)), _given([[4, 3], [4, 3]], (2,)))
    assert (
        check_batch(Comparison(reference, distributed, Tolerance(reference))).findings[0].cause == "global-batch-wrong"
    )


def test_a_batch_that_the_program_does_not_divide_is_wrong() -> None:
    for origin in BatchOrigin:
        runs = data_calls(_given([[8], [8]], origin=origin), _given([[8, 8], [8, 8]], origin=origin))
        assert check_batch(Comparison(*runs, Tolerance(runs[0]))).findings[0].cause == "global-batch-wrong"


def test_a_tensor_beside_data_of_the_replica_function_is_no_batch() -> None:
    for size in (2, 5):
        reference, distributed = data_calls(_given([[size], [size]]), _given([[size, size], [size, size]]))
        assert [sum(batch.size for batch in record.batches(2)) for record in (reference, distributed)] == [0, 0]


def test_sequences_that_begin_with_time_are_counted_along_the_second_axis() -> None:
    def sequences(batch: int, replicas: int) -> TrainingRecord:
        item = BatchRecord(0, 5, tuple(range(5)), inputs=(InputRecord((5, batch)),))
        batches = tuple(replace(item, replica=replica) for replica in range(replicas))
        rank = RankRecord(0, "worker:0", tuple(range(replicas)), steps=(StepRecord(1, None, batches=batches),))
        return TrainingRecord("mirrored", replicas, (rank,), 8, "float64", 0)

    reference, distributed = data_calls(sequences(8, 1), sequences(4, 2))
    assert check_batch(Comparison(reference, distributed, Tolerance(reference))).outcome is Outcome.PASS
    assert check_data_cover(Comparison(reference, distributed, Tolerance(reference))).outcome is Outcome.NOT_APPLICABLE
    reference, distributed = data_calls(sequences(8, 1), sequences(3, 2))
    assert check_batch(Comparison(reference, distributed, Tolerance(reference))).outcome is Outcome.FAIL


def test_what_is_computed_from_examples_may_differ_by_rounding() -> None:
    computed = BatchOrigin.DERIVED
    reference, distributed = _given([[8]], origin=computed), _given([[4, 4]], origin=computed)
    assert data_calls(reference, distributed) == (reference, distributed)
    (step,) = distributed.ranks[0].steps
    rounded = tuple(replace(batch, fingerprints=(1, 2, 3, 4)) for batch in step.batches)
    other = replace(distributed, ranks=(replace(distributed.ranks[0], steps=(replace(step, batches=rounded),)),))
    runs = data_calls(reference, other)
    assert check_batch(Comparison(*runs, Tolerance(reference))).outcome is Outcome.PASS
    assert check_data_cover(Comparison(*runs, Tolerance(reference))).outcome is Outcome.NOT_APPLICABLE


def test_pieces_of_elements_are_examples_if_one_device_has_them() -> None:
    pieces = BatchOrigin.SELECTED
    reference, distributed = _given([[8]], origin=pieces), _given([[4, 4]], origin=pieces)
    (step,) = distributed.ranks[0].steps
    first = step.batches[0]
    for names, outcome in (
        (step.batches[1].fingerprints, Outcome.PASS),
        (first.fingerprints, Outcome.FAIL),
        ((1, 2, 3, 4), Outcome.NOT_APPLICABLE),  # other features of all examples, for example
    ):
        batches = (first, replace(first, replica=1, fingerprints=names, inputs=()))
        other = replace(distributed, ranks=(replace(distributed.ranks[0], steps=(replace(step, batches=batches),)),))
        runs = data_calls(reference, other)
        assert check_data_cover(Comparison(*runs, Tolerance(reference))).outcome is outcome


def _paired(pairs: list[list[tuple[int, int]]]) -> TrainingRecord:
    """One step whose replicas consume examples of two tensors, known by their contents."""
    names = [[hash(pair) for pair in part] for part in pairs]
    record = consumed([names], "contents")
    (step,) = record.ranks[0].steps
    columns = [tuple(zip(*part, strict=True)) for part in pairs]
    batches = tuple(replace(batch, columns=found) for batch, found in zip(step.batches, columns, strict=True))
    return replace(record, ranks=(replace(record.ranks[0], steps=(replace(step, batches=batches),)),))


RIGHT = [[(10, 1), (11, 2), (12, 3), (13, 4)]]


@pytest.mark.parametrize(
    ("theirs", "cause", "evidence"),
    [
        (
            [[(90, 1), (91, 2)], [(92, 3), (93, 4)]],
            "examples-altered",
            "tensor 1 of the examples is that of one device",
        ),
        ([[(10, 1), (11, 2)], [(12, 1), (13, 2)]], "examples-altered", "and tensor 1 is not"),
        ([[(10, 2), (11, 1)], [(12, 3), (13, 4)]], "examples-altered", "combined to other examples"),
        ([[(90, 7), (91, 8)], [(92, 9), (93, 6)]], None, "weights can be compared only if"),
    ],
    ids=["inputs changed", "labels of others", "mixed up", "other examples"],
)
def test_tensors_that_tell_examples_apart_show_altered_ones(theirs: Any, cause: str | None, evidence: str) -> None:
    ours, others = _paired(RIGHT), _paired(theirs)
    (finding,) = check_data_cover(Comparison(ours, others, Tolerance(ours))).findings
    assert finding.cause == cause
    assert evidence in str(finding.evidence)


def test_labels_of_a_few_classes_do_not_tell_examples_apart() -> None:
    ours, others = _paired([[(10, 0), (11, 1), (12, 0), (13, 1)]]), _paired([[(90, 0), (91, 1)], [(92, 0), (93, 1)]])
    (finding,) = check_data_cover(Comparison(ours, others, Tolerance(ours))).findings
    assert finding.cause is None


def test_a_batch_that_every_replica_gets_as_a_whole_is_to_be_split() -> None:
    ours = consumed(one([0, 1, 2, 3], [4, 5, 6, 7]))
    for theirs, split in (([[0, 1, 2, 3], [0, 1, 2, 3]], True), ([[0, 1, 2, 3], [4, 5, 6, 7]], False)):
        others = consumed([theirs, [[4, 5, 6, 7], [4, 5, 6, 7]]])
        (finding,) = check_batch(Comparison(ours, others, Tolerance(ours))).findings
        assert finding.cause == "global-batch-wrong"
        assert ("experimental_distribute_dataset" in (finding.fix or "")) == split


def test_the_batch_of_another_step_is_named_and_has_the_right_size() -> None:
    ours, others = consumed(one([0, 1, 2, 3], [4, 5])), consumed([[[4], [5]], [[0, 1], [2, 3]]])
    (finding,) = check_data_cover(Comparison(ours, others, Tolerance(ours))).findings
    assert finding.message == "step 1 consumes the global batch of step 2 on one device"
    assert check_batch(Comparison(ours, others, Tolerance(ours))).outcome is Outcome.PASS


def test_a_replica_whose_data_has_ended_has_its_own_cause() -> None:
    ours, others = consumed(one([0, 1, 2, 3], [4, 5, 6, 7])), consumed([[[0, 1], [2, 3]], [[4, 5], []]])
    (finding,) = check_batch(Comparison(ours, others, Tolerance(ours))).findings
    assert finding.cause == "unequal-steps"
    assert "the data of replica 1 has ended" in finding.message
    fewer = consumed([[[0, 1], [2, 3]], [[4], [5]]])
    assert [f.cause for f in check_batch(Comparison(ours, fewer, Tolerance(ours))).findings] == ["global-batch-wrong"]


@pytest.mark.parametrize(
    ("theirs", "workers", "twice"),
    [
        ([[[0, 4], [1, 5]], [[8, 12], [9, 13]]], 2, True),
        ([[[0, 4], [1, 5]], [[8, 12], [9, 13]]], 1, False),
        ([[[0, 4], [1, 5]], [[8, 12], [9]]], 2, False),
        ([[[0, 4], [1, 0]], [[8, 12], [9, 13]]], 2, False),
    ],
    ids=["sharded twice", "one process", "another share", "repeated"],
)
def test_data_that_is_sharded_twice_is_said(theirs: Steps, workers: int, twice: bool) -> None:
    reference = consumed(one(*([first, first + 1, first + 2, first + 3] for first in range(0, 16, 4))))
    record = consumed(theirs)
    (rank,) = record.ranks
    idle = tuple(replace(step, batches=()) for step in rank.steps)
    ranks = (rank, *(replace(rank, rank=number, steps=idle) for number in range(1, workers)))
    result = check_data_cover(Comparison(reference, replace(record, ranks=ranks), Tolerance(reference, ())))
    dropped = [finding for finding in result.findings if finding.cause == "examples-dropped"]
    assert dropped
    assert ("sharded twice" in dropped[0].message) is twice
    assert ("dataset.shard" in str(dropped[0].fix)) is twice


@pytest.mark.parametrize(
    ("shards", "twice"),
    [
        ([((2, 0),), ((2, 1),)], True),
        ([((10, 3), (2, 0)), ((10, 3), (2, 1))], True),
        ([((2, 0),), ((2, 0),)], False),
        ([((3, 0),), ((3, 1),)], False),
        ([(), ()], False),
    ],
    ids=["each its own", "a split and each its own", "a split", "of three workers", "none"],
)
def test_shards_of_shards_are_named_before_the_data_ends(shards: list[Any], twice: bool) -> None:
    reference, record = consumed(one([0, 1, 2, 3])), consumed([[[0, 4], [1, 5]]])
    (rank,) = record.ranks
    idle = replace(rank, rank=1, steps=tuple(replace(step, batches=()) for step in rank.steps))
    ranks = tuple(replace(one, facts={"shards": found}) for one, found in zip((rank, idle), shards, strict=True))
    distributed = replace(record, ranks=ranks)
    (finding,) = check_data_cover(Comparison(reference, distributed, Tolerance(reference, ()))).findings
    assert (finding.cause == "examples-dropped") is twice
    assert ("sharded twice" in finding.message) is twice


@pytest.mark.parametrize(
    ("ours", "theirs", "unread"),
    [
        ([()], [((2, 0),)], True),
        ([((1, 0),)], [((2, 1),)], True),
        ([((4, 0),)], [((4, 0),)], False),
        ([((1, 0),)], [((2, 0),), ((2, 1),)], False),
        ([()], [((2, 0),), ((2, 0),)], True),
        ([()], [((2, 0), (2, 1))], False),
        ([None], [((2, 0),)], False),
    ],
    ids=["one of two", "the other", "a split on both", "each worker its own", "of both workers", "joined", "not seen"],
)
def test_shards_that_nobody_reads_are_found_before_the_data_ends(ours: Any, theirs: Any, unread: bool) -> None:
    reference, record = consumed(one([0, 1, 2, 3])), consumed([[[0, 4], [2, 6]]])

    def of(ranks: tuple[RankRecord, ...], parts: Any) -> tuple[RankRecord, ...]:
        facts: list[Any] = [{} if part is None else {"parts": part} for part in parts]
        return tuple(replace(rank, facts=fact) for rank, fact in zip(ranks, facts, strict=True))

    (rank,) = record.ranks
    idle = replace(rank, rank=1, steps=tuple(replace(step, batches=()) for step in rank.steps))
    distributed = replace(record, ranks=of((rank, idle)[: len(theirs)], theirs))
    reference = replace(reference, ranks=of(reference.ranks, ours))
    (finding,) = check_data_cover(Comparison(reference, distributed, Tolerance(reference, ()))).findings
    assert (finding.cause == "examples-dropped") is unread
    assert (f"distributes only shard {theirs[0][0][1]} of 2" in finding.message) is unread
