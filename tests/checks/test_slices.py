"""Selection of the parts of a global batch on which a separate training is useful."""

from __future__ import annotations

from dataclasses import replace

from simulated_training import Program, pair

from pytest_ddl.equivalence.runs.slices import slices_to_recompute
from pytest_ddl.equivalence.verdict.judge import judge

UNEVEN = Program(replicas=2, batches=(13, 13))


def test_rows_of_the_replicas_make_up_the_global_batch():
    reference, distributed = pair(UNEVEN, mean_of_means=True)
    ((step, rows),) = slices_to_recompute(judge(reference, distributed))
    assert step == 1
    assert set(rows) == {0, 1}
    assert sorted(row for part in rows.values() for row in part) == list(range(13))
    assert sorted(len(part) for part in rows.values()) == [6, 7]


def test_nothing_is_recomputed_for_a_pass_or_an_exact_cause():
    assert slices_to_recompute(judge(*pair(UNEVEN))) == []
    assert slices_to_recompute(judge(*pair(Program(replicas=2), scale=2.0))) == []


def test_nothing_can_be_recomputed_where_the_examples_were_not_observed():
    reference, distributed = pair(UNEVEN, mean_of_means=True)
    blind = tuple(
        replace(
            rank,
            steps=tuple(
                replace(
                    step, batches=tuple(replace(batch, fingerprints=None, example_ids=None) for batch in step.batches)
                )
                for step in rank.steps
            ),
        )
        for rank in distributed.ranks
    )
    assert slices_to_recompute(judge(reference, replace(distributed, ranks=blind))) == []
