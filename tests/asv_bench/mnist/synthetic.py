"""Experiments out of given numbers, for tests of what is said of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from asv_bench.studies.mnist.results import Experiment, RankTraining, Training
from pytest_ddl.bench.launching.records import EnergyReading


def training(replicas: int, epoch_seconds: Sequence[float], accuracies: Sequence[float], **given: Any) -> Training:
    """A training under ``multi_worker_mirrored``, or on one device, whose ranks all measured the same."""
    epochs = len(epoch_seconds)
    rank = RankTraining(
        rank=0,
        task="worker:0",
        epoch_seconds=tuple(epoch_seconds),
        losses=tuple(1 / (epoch + 1) for epoch in range(epochs)),
        test_losses=tuple(1.5 / (epoch + 1) for epoch in range(epochs)),
        test_accuracies=tuple(accuracies),
        steps=epochs * 10 // replicas,
        build_seconds=0.5,
        evaluation_seconds=0.1,
        weights=("abc",),
        moved=True,
        retraces=0,
        peak_memory_bytes=2**29,
        energy=EnergyReading(None, reason="no counters here"),
    )
    fields: dict[str, Any] = {
        "strategy": "one_device" if replicas == 1 else f"multi_worker_mirrored[workers={replicas},replicas=1]",
        "replicas": replicas,
        "repeat": 1,
        "seed": 1,
        "global_batch_size": 64 * replicas,
        "epochs": epochs,
        "steps_per_epoch": 10 // replicas,
        "ranks": tuple(replace(rank, rank=index, task=f"worker:{index}") for index in range(replicas)),
        "wall_seconds": 30.0,
        "pinned": True,
        "machine": {"cpu": "a <CPU>", "cores": "2", "load": "0.10"},
        "versions": {"tensorflow": "2.21.0"},
    }
    return Training(**{**fields, **given})


def experiment(*trainings: Training, **given: Any) -> Experiment:
    """An experiment of trainings; by default one on 1 replica and one on 2, that took the published times."""
    found = trainings or (
        training(1, [10.5, *[99 / 29] * 29], [0.9, *[0.99] * 29]),
        training(2, [8.6, *[70 / 29] * 29], [0.8, *[0.99] * 29]),
    )
    fields: dict[str, Any] = {
        "trainings": found,
        "batch": 64,
        "batch_rule": "replica",
        "epochs": found[0].epochs,
        "data": "made up",
        "train_images": 640,
        "test_images": 360,
        "check": "matches one device",
    }
    return Experiment(**{**fields, **given})
