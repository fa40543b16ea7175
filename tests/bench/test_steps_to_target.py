"""Training to a target with several batch sizes."""

from __future__ import annotations

import math
from typing import Any

import pytest
from target_programs import fit, regress, silent

from pytest_ddl.bench.launching.ranks import BenchError
from pytest_ddl.bench.metrics.batch_size import Regime
from pytest_ddl.bench.training_to_target import StepsToTarget, TargetTrial, steps_to_target


def trial(batch: int, rate: float, steps: int | None) -> TargetTrial:
    return TargetTrial(batch, rate, steps, steps or 1000, 0.1 if steps else math.nan)


def test_best_rate_of_every_batch_counts() -> None:
    found = StepsToTarget(
        0.1,
        tuple(
            trial(batch, rate, int(10 * (1 + 64 / batch) * (1 if rate == 0.1 else 3)))
            for batch in (1, 64, 4096)
            for rate in (0.01, 0.1, 1.0)
        ),
    )
    assert [(batch, each.learning_rate, each.steps) for batch, each in found.best.items()] == [
        (1, 0.1, 650),
        (64, 0.1, 20),
        (4096, 0.1, 10),
    ]
    assert found.scaling.regimes == tuple(Regime)
    assert found.notes == ()


def test_untuned_batches_are_reported() -> None:
    found = StepsToTarget(
        0.1, (trial(8, 0.1, 50), trial(8, 0.2, 40), trial(16, 0.1, None), trial(32, 0.1, 9), trial(64, 0.1, 9))
    )
    assert found.notes == (
        "batch 8: its best learning rate 0.2 is the largest one tried: try values beyond it",
        "batch 16 never reached 0.1: try more steps or other learning rates",
        "batch 32: only one learning rate was tried, so its steps cannot be compared",
        "batch 64: only one learning rate was tried, so its steps cannot be compared",
    )


def test_too_few_batches_say_so_instead_of_regimes() -> None:
    text = str(StepsToTarget(0.1, (trial(8, 0.1, 50), trial(16, 0.1, None))))
    assert "batch 8: 50 steps to 0.1 (learning rate 0.1)" in text
    assert "3 batch sizes or more" in text


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"batch_sizes": []}, "batch_sizes"),
        ({"batch_sizes": [0]}, "batch_sizes"),
        ({"learning_rates": {8: [0.1]}}, "no positive learning rates for batch 16"),
        ({"learning_rates": [0.0]}, "no positive learning rates for batch 8"),
        ({"variant": "multi_worker_mirrored"}, "give one of one_device"),
        ({"max_steps": 0}, "max_steps=0"),
    ],
)
def test_wrong_arguments_are_refused(given: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        steps_to_target(**{"train": regress, "target": 0.1, "batch_sizes": [8, 16], "learning_rates": [0.1], **given})


@pytest.mark.slow
def test_training_to_a_target() -> None:
    found = steps_to_target(regress, 0.1, [8, 64, 256], [0.003, 0.1, 30.0], max_steps=60, window=256, device="cpu")
    assert len(found.trials) == 9
    assert list(found.best) == [8, 64, 256]
    assert {each.learning_rate for each in found.best.values()} == {0.1}
    for each in found.trials:
        if each.learning_rate == 30.0:
            assert each.steps is None, "it diverged"
            assert each.taken < 60, "and was given up as soon as it did"
        if each.learning_rate == 0.003:
            assert (each.steps, each.taken) == (None, 60)
    # One whole window is seen before anything counts.
    assert (found.best[8].steps or 0) >= 32
    assert (found.best[8].steps or 0) > (found.best[256].steps or 0)


@pytest.mark.slow
@pytest.mark.parametrize(("program", "words"), [(fit, "mean loss over the epoch so far"), (silent, "reported no loss")])
def test_program_without_losses_of_steps_is_refused(program: Any, words: str) -> None:
    with pytest.raises(BenchError, match=words):
        steps_to_target(program, 0.1, [8], [0.1], device="cpu", max_steps=10)
