"""Causes of a wrong gradient are recomputed from what optimizers got, if no update can be computed back."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from simulated_gradients import (
    Way,
    coupled,
    global_mean,
    judged_with_slices,
    local_mean,
    masked,
    masked_locally,
    mean_of_means,
    scaled,
)

from pytest_ddl.equivalence.findings import Finding
from pytest_ddl.records import GradientSum, TrainingRecord

ALL = "gradient-scaled-by-replica-count"
UNEVEN = (13, 13, 13)


def of_two_optimizers(record: TrainingRecord) -> TrainingRecord:
    """The record of a program with two optimizers, of which no one knows which weight belongs to which."""
    ranks = []
    for rank in record.ranks:
        steps = tuple(
            replace(step, gradients=tuple(replace(one, summed=GradientSum.ADDED) for one in step.gradients))
            for step in rank.steps
        )
        ranks.append(replace(rank, steps=steps, optimizers=rank.optimizers * 2))
    return replace(record, ranks=tuple(ranks))


def first(right: Way, wrong: Way, replicas: int) -> Finding:
    report = judged_with_slices(right, wrong, replicas, recorded=of_two_optimizers)
    return (report.findings or list(report.approximations))[0]


def _divided(parts: Any, _step: int) -> Any:
    return [scaled(part, 1 / len(parts)) for part in parts]


def _in_turns(weights: Any, batch: Any) -> Any:
    """The gradient of the kernel is a replica's mean. That of the table is made with the new kernel."""
    right, wrong = global_mean(weights, batch), local_mean(weights, batch)
    moved = {**weights, "kernel": weights["kernel"] - np.sign(wrong["kernel"]) * np.abs(wrong["kernel"]) ** 0.5}
    return {**right, "kernel": wrong["kernel"], "table": global_mean(moved, batch)["table"]}


def _in_turns_rightly(weights: Any, batch: Any) -> Any:
    right = global_mean(weights, batch)
    moved = {**weights, "kernel": weights["kernel"] - np.sign(right["kernel"]) * np.abs(right["kernel"]) ** 0.5}
    return {**right, "table": global_mean(moved, batch)["table"]}


PLANTED: list[tuple[str, str, dict[str, Any], dict[str, Any]]] = [
    ("mean per replica", ALL, {}, {"computed": local_mean}),
    ("masked mean per replica", "masked-loss-normalised-per-replica", {"computed": masked},
     {"computed": masked_locally, "handed": _divided}),
    ("masked mean, summed", ALL, {"computed": masked}, {"computed": masked_locally}),
    ("mean of means", "mean-of-replica-means", {"sizes": UNEVEN}, {"computed": mean_of_means}),
    ("coupled", "batch-coupled-loss", {"computed": coupled}, {}),
    ("the second model follows", ALL, {"computed": _in_turns_rightly}, {"computed": _in_turns}),
]  # fmt: skip


@pytest.mark.parametrize("rule", ["SGD", "Adam"])
@pytest.mark.parametrize("replicas", [2, 4])
@pytest.mark.parametrize(("title", "cause", "program", "sin"), PLANTED, ids=[row[0] for row in PLANTED])
def test_a_cause_is_named_although_no_update_is_inverted(
    rule: str, replicas: int, title: str, cause: str, program: dict[str, Any], sin: dict[str, Any]
) -> None:
    way = Way(rule=rule, momentum=0.9, **program)
    assert first(way, replace(way, **sin), replicas).cause == cause, title
