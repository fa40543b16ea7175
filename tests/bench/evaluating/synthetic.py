"""Evaluations out of given numbers, for tests of what is computed from them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pytest_ddl.bench.evaluating.records import CellVerdict, EvaluatedCell, Evaluation, Identity, TrainingCurve
from pytest_ddl.bench.launching.records import Counters, EnergyReading
from pytest_ddl.bench.training_to_target import TargetTrial
from tests.bench import made

ONE = EvaluatedCell("one_device", 1, "one_device", 32)
TWO = EvaluatedCell("mirrored", 2, "mirrored[replicas=2]", 64)
WORKERS = EvaluatedCell(
    "parameter_server", 2, "parameter_server[workers=2,ps=1,processes=shared]", 32, kind="asynchronous"
)
COPIES = EvaluatedCell("central_storage", 2, "central_storage[replicas=2]", 64, kind="copies")
ABSENT = EvaluatedCell("tpu", 1, "tpu", 32, reason="needs a TPU, and this machine has none")
SEEDS = (1, 2, 3, 4, 5)
EPOCH = 4
"""Steps of an epoch with a batch of 32."""


def options(**given: Any) -> dict[str, Any]:
    plain = {
        "batch": 32,
        "batch_rule": "replica",
        "seeds": 5,
        "launches": 3,
        "steps": None,
        "check_steps": None,
        "target": None,
        "metric": "",
        "batch_sizes": [16, 32, 64],
        "device": "cpu",
        "timeout": 300.0,
        "seconds": 1.0,
        "strategies": "all",
        "replicas": [1, 2],
    }
    return {**plain, **given}


def identity(**given: Any) -> Identity:
    fields = {
        "target": "train:train",
        "digest": "abc",
        "options": options(),
        "versions": {"tensorflow": "2.21.0", "python": "3.11.2"},
        "machine": {"host": "here", "cores": "2"},
    }
    return Identity(**{**fields, **given})


def curve(
    cell: EvaluatedCell, seed: int, accuracy: float | None = 0.9, epochs: int = 6, speed: float = 0.5, **given: Any
) -> TrainingCurve:
    """A training whose loss falls by ``speed`` in each epoch; the seed moves it a little."""
    length = max(1, EPOCH * ONE.batch // cell.batch)
    losses = [(1 + 0.01 * seed) * speed ** (step / length) for step in range(1, length * epochs + 1)]
    marks = [length * epoch for epoch in range(epochs)]
    values = {}
    if accuracy is not None:
        values["test_accuracy"] = tuple(
            (length * epoch, round(accuracy - 0.1 / epoch + 0.01 * (seed % 2), 6)) for epoch in range(1, epochs + 1)
        )
    return TrainingCurve(cell.variant, cell.batch, seed, tuple(losses), tuple(marks), values, **given)


def curves(
    cell: EvaluatedCell, accuracy: float | None = 0.9, seeds: Sequence[int] = SEEDS, **given: Any
) -> tuple[TrainingCurve, ...]:
    return tuple(curve(cell, seed, accuracy, **given) for seed in seeds)


def references(accuracy: float | None = 0.9, seeds: Sequence[int] = SEEDS) -> tuple[TrainingCurve, ...]:
    """Trainings of one device with the batches of all cells, without an effect of rounding."""
    found: tuple[TrainingCurve, ...] = ()
    for batch in (32, 64):
        cell = EvaluatedCell("one_device", 1, "one_device", batch)
        found += curves(cell, accuracy, seeds) + curves(cell, accuracy, seeds[:3], moved=True)
    return found


def evaluation(
    times: dict[str, Sequence[float]] | None = None,
    cells: Sequence[EvaluatedCell] = (ONE, TWO, WORKERS, COPIES, ABSENT),
    **given: Any,
) -> Evaluation:
    """A complete evaluation in which everything is correct; further fields by name."""
    ran = [cell for cell in cells if not cell.reason]
    seconds = times or {cell.variant: [0.0010, 0.00102, 0.00101] for cell in ran}
    launches = tuple(
        made.launch(
            cell.variant,
            seconds[cell.variant][turn],
            cell.replicas if cell.kind == "" else 1 if cell.kind == "asynchronous" else cell.replicas,
            cell.batch,
            peak_memory_bytes=(400 + turn) * 2**20,
            energy=EnergyReading(None, reason="no RAPL"),
            counters=Counters(
                collectives={"all_reduce": 1},
                reduced_bytes=4096 if cell.kind == "" else 0,
                uncounted=("steps run on workers: transfers were not counted",) if cell.kind == "asynchronous" else (),
            ),
        )
        for turn in range(3)
        for cell in ran
        if cell.variant in seconds
    )
    trained: tuple[TrainingCurve, ...] = references()
    for cell in ran:
        if not cell.is_reference:
            stale = {"0": 20, "1": 4} if cell.kind == "asynchronous" else None
            trained += curves(cell, staleness=stale)
    fields = {
        "identity": identity(),
        "cells": tuple(cells),
        "started": "2026-01-01 00:00 UTC",
        "command": "pytest-ddl evaluate train:train",
        "curves": trained,
        "verdicts": {cell.variant: CellVerdict("pass", "matches one device") for cell in ran if not cell.is_reference},
        "launches": launches,
        "trials": tuple(TargetTrial(batch, 0.1, steps, steps, 0.2) for batch, steps in ((16, 40), (32, 22), (64, 14))),
        "swept": (16, 32, 64),
        "target": 0.3,
        "complete": True,
        "seconds": 120.0,
    }
    return Evaluation(**{**fields, **given})
