"""Kernels that round differently, or not the same way twice: what a GPU does to right programs, on records."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from simulated_training import Program, pair

from pytest_ddl.equivalence.verdict.judge import judge
from pytest_ddl.notes import NoteKind
from pytest_ddl.records import TrainingRecord

GPU = {"device": "gpu"}
REFUSED = {**GPU, "not_deterministic": "UnimplementedError: no deterministic kernel"}
REPLICAS = Program(replicas=2)


def _on(record: TrainingRecord, facts: Mapping[str, Any]) -> TrainingRecord:
    return replace(record, ranks=tuple(replace(rank, facts={**rank.facts, **facts}) for rank in record.ranks))


def _with_copy_moved(record: TrainingRecord, distance: float) -> TrainingRecord:
    """Move the second copy of the first weight after each step by a distance relative to its largest number."""

    def moved(snapshot: Mapping[int, Any]) -> dict[int, Any]:
        first, second = snapshot[0]
        return {**snapshot, 0: (first, second + distance * np.abs(second).max())}

    (rank,) = record.ranks
    steps = tuple(replace(step, snapshot=moved(step.snapshot)) for step in rank.steps)
    return replace(record, ranks=(replace(rank, steps=steps),))


def _causes(reference: TrainingRecord, distributed: TrainingRecord) -> set[str]:
    return {str(finding.cause) for finding in judge(reference, distributed).findings}


def _started_apart(facts: Mapping[str, Any], **sins: Any) -> tuple[TrainingRecord, TrainingRecord]:
    """A run whose initial weights are moved by one ulp, and one device."""
    reference, distributed = pair(REPLICAS, perturbation=1, **sins)
    return _on(reference, facts), _on(distributed, facts)


def test_initial_weights_of_other_kernels_agree_to_rounding() -> None:
    assert judge(*_started_apart(GPU)).passed


def test_initial_weights_of_the_same_kernels_are_identical() -> None:
    assert _causes(*_started_apart({})) == {"initial-weights-differ"}


def test_other_initial_weights_are_found_on_a_gpu() -> None:
    assert _causes(*_started_apart(GPU, initial_shift=1e-9)) == {"initial-weights-differ"}


def test_a_gradient_is_judged_as_strictly_if_initial_weights_differ_by_rounding() -> None:
    found = _causes(*_started_apart(GPU, scale=1.0001))
    assert found
    assert "initial-weights-differ" not in found


def test_copies_agree_to_rounding_if_an_operation_is_not_deterministic() -> None:
    reference, distributed = pair(REPLICAS)
    report = judge(_on(reference, GPU), _with_copy_moved(_on(distributed, REFUSED), 2**-53))
    assert report.passed
    assert any(note.kind is NoteKind.HOW and REFUSED["not_deterministic"] in note for note in report.notes)


def test_copies_are_identical_if_all_operations_are_deterministic() -> None:
    reference, distributed = pair(REPLICAS)
    moved = _with_copy_moved(_on(distributed, GPU), 2**-53)
    assert _causes(_on(reference, GPU), moved) == {"replicas-diverged"}


def test_copies_that_drift_apart_are_found_although_an_operation_is_not_deterministic() -> None:
    reference, distributed = pair(REPLICAS)
    moved = _with_copy_moved(_on(distributed, REFUSED), 1e-9)
    assert "replicas-diverged" in _causes(_on(reference, REFUSED), moved)
