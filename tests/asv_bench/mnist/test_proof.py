"""A training that did not happen as it should is no measurement: each way in which it can be wrong."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from asv_bench.studies.mnist import measuring
from asv_bench.studies.mnist.measuring import ExperimentError, prove
from tests.asv_bench.mnist.synthetic import training


def of_rank(**changed: Any) -> Any:
    good = training(2, [1.0, 1.0], [0.9, 0.9])
    return replace(good, ranks=(good.ranks[0], replace(good.ranks[1], **changed)))


def test_a_whole_training_is_accepted() -> None:
    prove(training(1, [1.0, 1.0], [0.9, 0.9]))
    prove(training(2, [1.0, 1.0], [0.9, 0.9]))


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"steps": 9}, "worker:1 took 9 steps in 2 whole epochs, not 10 in 2"),
        ({"epoch_seconds": (1.0,)}, "worker:1 took 10 steps in 1 whole epochs"),
        ({"losses": (0.5, float("nan"))}, "losses of worker:1 are not finite from epoch 2 on"),
        ({"test_losses": (float("inf"), 1.0)}, "test_losses of worker:1 are not finite from epoch 1 on"),
        ({"moved": False}, "the training did not change the weights of worker:1"),
        ({"retraces": 3}, "worker:1 traced its step 3 more time"),
        ({"weights": ("other",)}, "2 different sets of weights: they were not kept in sync"),
        ({"weights": ()}, r"found weights of 1 replica\(s\), not of 2"),
    ],
)
def test_what_did_not_train_is_refused(changed: dict[str, Any], words: str) -> None:
    with pytest.raises(ExperimentError, match=words):
        prove(of_rank(**changed))


def test_one_and_several_replicas_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    order = []

    def train_once(_harness: Any, _plan: Any, variant: str, repeat: int) -> Any:
        order.append((repeat, variant))
        return training(1 if variant == "one_device" else 2, [1.0], [0.9])

    monkeypatch.setattr(measuring, "train_once", train_once)
    told: list[str] = []
    plan = measuring.Plan(Path("x.npz"), 64, many="mirrored", repeats=3)
    assert len(measuring.measure(cast("Any", None), plan, told.append)) == 6
    assert order == [
        *((1, "one_device"), (1, "mirrored"), (2, "mirrored"), (2, "one_device"), (3, "one_device"), (3, "mirrored"))
    ]
    assert told[0] == "repeat 1/3, 1 replica(s), one_device: 1.0 s in 1 epochs, accuracy 0.9000"


def test_the_batch_rule() -> None:
    assert measuring.Plan(Path("x.npz"), 64, batch=8).global_batch(2) == 16
    assert measuring.Plan(Path("x.npz"), 64, batch=8, batch_rule="global").global_batch(2) == 8
