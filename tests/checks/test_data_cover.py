"""DATA-COVER on records: what is lost or repeated, and what is merely in another order."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from simulated_training import Program, simulate

from pytest_ddl.equivalence.checks.batch import check_batch
from pytest_ddl.equivalence.checks.data_cover import check_data_cover
from pytest_ddl.equivalence.evidence.calls import data_calls
from pytest_ddl.equivalence.evidence.coverage import Order, contents_are_known, contents_by_step, coverage
from pytest_ddl.equivalence.evidence.tolerance import Tolerance
from pytest_ddl.equivalence.findings import Outcome
from pytest_ddl.records import BatchRecord, TrainingRecord

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
    result = check_data_cover(reference, distributed, Tolerance(reference))
    assert result.outcome is Outcome.FAIL
    assert [finding.cause for finding in result.findings] == ["examples-duplicated", "examples-dropped"]


def test_the_same_batch_on_every_replica_is_named() -> None:
    reference, distributed = consumed(WHOLE), consumed([[[0, 1], [0, 1]], [[2, 3], [2, 3]]])
    result = check_data_cover(reference, distributed, Tolerance(reference))
    assert result.findings[0].cause == "examples-duplicated"
    assert "all replicas consume the same examples" in result.findings[0].message


def test_nothing_observed_is_not_a_pass() -> None:
    record = simulate(Program(replicas=2, observe=False))
    assert check_data_cover(record, record, Tolerance(record)).outcome is Outcome.NOT_APPLICABLE


def test_contents_by_step() -> None:
    record = consumed([[[0, 1], [2, 3]], [[4, 5], [6, 9]]], "contents")
    assert contents_by_step(record) == ((0, 1, 2, 3), (4, 5, 6, 9))
    assert contents_by_step(consumed(WHOLE)) is None
    assert not contents_are_known(consumed(WHOLE, "contents"), record)


def test_data_that_ends_early_has_lost_examples_though_it_is_in_another_order() -> None:
    reference = consumed(one([0, 1, 2, 3], [4, 5, 6, 7]))
    result = check_data_cover(reference, consumed([[[0, 2], [4, 6]]]), Tolerance(reference))
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
    (finding,) = check_data_cover(ours, others, Tolerance(ours)).findings
    assert finding.cause == cause
    assert evidence in str(finding.evidence)


def test_labels_of_a_few_classes_do_not_tell_examples_apart() -> None:
    ours, others = _paired([[(10, 0), (11, 1), (12, 0), (13, 1)]]), _paired([[(90, 0), (91, 1)], [(92, 0), (93, 1)]])
    (finding,) = check_data_cover(ours, others, Tolerance(ours)).findings
    assert finding.cause is None


def test_the_batch_of_another_step_is_named_and_has_the_right_size() -> None:
    ours, others = consumed(one([0, 1, 2, 3], [4, 5])), consumed([[[4], [5]], [[0, 1], [2, 3]]])
    (finding,) = check_data_cover(ours, others, Tolerance(ours)).findings
    assert finding.message == "step 1 consumes the global batch of step 2 on one device"
    assert check_batch(ours, others, Tolerance(ours)).outcome is Outcome.PASS


def test_a_replica_whose_data_has_ended_has_its_own_cause() -> None:
    ours, others = consumed(one([0, 1, 2, 3], [4, 5, 6, 7])), consumed([[[0, 1], [2, 3]], [[4, 5], []]])
    (finding,) = check_batch(ours, others, Tolerance(ours)).findings
    assert finding.cause == "unequal-steps"
    assert "the data of replica 1 has ended" in finding.message
    fewer = consumed([[[0, 1], [2, 3]], [[4], [5]]])
    assert [f.cause for f in check_batch(ours, fewer, Tolerance(ours)).findings] == ["global-batch-wrong"]
