"""The run with other numbers on each worker, on records."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace

from simulated_training import Program, pair

from pytest_ddl.equivalence.findings import Doubt, Finding
from pytest_ddl.equivalence.probes.unseeded import CAUSE, CHECK, probe, wanted
from pytest_ddl.equivalence.verdict.judge import judge
from pytest_ddl.equivalence.verdict.report import Report
from pytest_ddl.records import RankRecord
from pytest_ddl.training.settings import RunSettings


def _report(*names: str, workers: int = 2, **wrong: float) -> Report:
    reference, distributed = pair(Program(replicas=2, workers=workers), **wrong)
    ranks = tuple(replace(rank, facts={**rank.facts, "unseeded": names}) for rank in distributed.ranks)
    return judge(reference, replace(distributed, ranks=ranks))


def _probed(again: Report) -> Report:
    given = []

    def compare_once(settings: RunSettings, _checks: Collection[str] | None, _runs: int = 1) -> Report:
        given.append(settings.seeds_by_rank)
        return again

    probed = probe(_report("random", "numpy.random"), RunSettings(), compare_once)
    assert given == [True]
    return probed


def test_only_unseeded_numbers_of_several_workers_are_a_question() -> None:
    assert wanted(_report("random"), ())
    assert not wanted(_report(), ())
    assert not wanted(_report("random", workers=1), ())


def test_a_difference_is_due_to_the_numbers() -> None:
    probed = _probed(_report("random", scale=2.0))
    (finding,) = probed.findings
    assert (finding.check, finding.cause, finding.step) == (CHECK, CAUSE, 1)
    assert probed.verdict == "fail"


def test_equal_training_passes() -> None:
    probed = _probed(_report("random"))
    assert probed.passed
    assert len(probed.notes) == len(_report("random").notes) + 1


def _consuming(ids: Callable[[int, int, int], int], scale: float = 1.0) -> Report:
    """A report of workers that consume other examples: a function of the worker, the step and the old id."""
    again = _report("random", scale=scale)
    assert again.distributed is not None

    def changed(rank: RankRecord) -> RankRecord:
        return replace(
            rank,
            steps=tuple(
                replace(
                    step,
                    batches=tuple(
                        replace(batch, example_ids=tuple(ids(rank.rank, number, i) for i in batch.example_ids or ()))
                        for batch in step.batches
                    ),
                )
                for number, step in enumerate(rank.steps)
            ),
        )

    return replace(again, distributed=replace(again.distributed, ranks=tuple(map(changed, again.distributed.ranks))))


def test_workers_may_make_their_examples() -> None:
    assert _probed(_consuming(lambda rank, _step, i: i + 1000 * rank, scale=2.0)).passed


def test_workers_that_make_their_examples_must_stay_together() -> None:
    again = _consuming(lambda rank, _step, i: i + 1000 * rank)
    apart = Finding("REPLICA-EQ", "the copies differ", "workers-diverged", step=1)
    probed = _probed(replace(again, findings=[apart]))
    assert [finding.cause for finding in probed.findings] == [CAUSE]


def test_examples_that_may_be_lost_are_a_doubt() -> None:
    again = _consuming(lambda rank, step, i: i if rank == 0 or step else 10_000 + i, scale=2.0)
    probed = _probed(again)
    assert probed.verdict == "inconclusive"
    assert [doubt.check for doubt in probed.doubts] == [CHECK]


def test_what_cannot_be_decided_is_a_doubt() -> None:
    doubting = replace(_report("random"), doubts=(Doubt("STEP-EQ", "the bound is too wide"),))
    assert _probed(doubting).verdict == "inconclusive"
