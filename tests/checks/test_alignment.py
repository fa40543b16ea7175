"""Examples that workers share within one pass over data that is shuffled anew in every run."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest

from pytest_ddl.equivalence.runs.alignment import align
from pytest_ddl.equivalence.verdict.judge import judge
from pytest_ddl.records import BatchRecord, RankRecord, StepRecord, TrainingRecord
from pytest_ddl.training.settings import RunSettings

BATCH, FEW, MANY = 12, 1, 50
SETTINGS = RunSettings(global_batch_size=BATCH, steps=FEW)
DATA = np.arange(2000)
"""More than all steps consume: every run ends within its first pass."""


def record(*workers: np.ndarray) -> TrainingRecord:
    """A run of which each worker consumes its examples in turn."""
    ranks = []
    for rank, names in enumerate(workers):
        parts = [tuple(map(int, part)) for part in np.split(names, MANY)]
        batches = [BatchRecord(rank, len(part), part) for part in parts]
        steps = tuple(StepRecord(index, None, batches=(batch,)) for index, batch in enumerate(batches, 1))
        ranks.append(RankRecord(rank, f"worker:{rank}", (rank,), steps=steps))
    name = "one_device" if len(workers) == 1 else f"multi_worker_mirrored[workers={len(workers)}]"
    return TrainingRecord(name, len(workers), tuple(ranks), BATCH, "float64", 0)


def cut(whole: TrainingRecord, settings: RunSettings) -> TrainingRecord:
    """The run under a limit of steps."""
    return replace(whole, ranks=tuple(replace(rank, steps=rank.steps[: settings.steps]) for rank in whole.ranks))


def shuffled(seed: int, data: np.ndarray, workers: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).permutation(data)[: BATCH * MANY // workers]


@dataclass(frozen=True)
class Recorded:
    """Program whose runs are known."""

    of_one_device: TrainingRecord
    of_strategy: TrainingRecord
    of_another_run: TrainingRecord

    def reference(self, settings: RunSettings) -> TrainingRecord:
        return cut(self.of_one_device, settings)

    def distributed(self, settings: RunSettings) -> TrainingRecord:
        return cut(self.of_strategy, settings)

    def anew(self, settings: RunSettings) -> TrainingRecord:
        return cut(self.of_another_run, settings)


def judged(reference: TrainingRecord, anew: TrainingRecord, distributed: TrainingRecord) -> tuple[str, set[str | None]]:
    program = Recorded(reference, distributed, anew)
    runs = align(program.reference(SETTINGS), program.distributed(SETTINGS), SETTINGS, program)
    report = runs.explained(judge(runs.reference, runs.distributed))
    return report.verdict, {finding.cause for finding in report.findings if finding.check == "DATA-COVER"}


@pytest.mark.parametrize("seed", range(5))
def test_workers_that_shuffle_all_data_by_themselves_are_found_within_the_pass(seed: int) -> None:
    reference, anew = record(shuffled(seed, DATA)), record(shuffled(seed + 50, DATA))
    own = [shuffled(seed + 100 + worker, DATA, 2) for worker in range(2)]
    verdict, causes = judged(reference, anew, record(*own))
    assert verdict == "fail"
    assert "examples-duplicated" in causes


@pytest.mark.parametrize("seed", range(5))
def test_workers_that_shuffle_their_shards_are_right(seed: int) -> None:
    reference, anew = record(shuffled(seed, DATA)), record(shuffled(seed + 50, DATA))
    right = record(shuffled(seed, DATA[::2], 2), shuffled(seed, DATA[1::2], 2))
    assert judged(reference, anew, right) == ("inconclusive", set())


def test_a_short_shard_that_one_worker_repeats_is_not_reported() -> None:
    reference, anew = record(shuffled(1, DATA)), record(shuffled(2, DATA))
    short = np.resize(DATA[:100], BATCH * MANY // 2)
    assert judged(reference, anew, record(short, shuffled(3, DATA[100:], 2)))[1] == set()


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("population", [2000, 40_000, 400_000])
def test_draws_with_replacement_are_right(seed: int, population: int) -> None:
    draws = [np.random.default_rng(seed + 100 * run).choice(population, BATCH * MANY) for run in range(3)]
    half = BATCH * MANY // 2
    assert judged(record(draws[0]), record(draws[1]), record(draws[2][:half], draws[2][half:]))[1] == set()
