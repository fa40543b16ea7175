"""Published numbers as they were printed, and a setting that the publication does not give."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Published:
    """Times of 30 epochs, rounded as printed. Everything else follows from them."""

    epochs: int = 30
    replicas: int = 2
    single_seconds: float = 109.5
    many_seconds: float = 78.6
    accuracy: float = 0.9948
    """Accuracy of both trainings."""
    printed_efficiency: float = 0.6963
    """Efficiency as printed. It was computed from unrounded times; the rounded ones give 0.6966."""


PUBLISHED = Published()
"""Numbers from issue 4, point 7."""

BATCH_PER_REPLICA = 64
"""Batch size per replica in TensorFlow's guides, which train such a network; the publication does not give one."""
