"""What was published, as it was printed, and what of the experiment the publication leaves open."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Published:
    """Times of 30 epochs, rounded as printed; everything else follows from them."""

    epochs: int = 30
    replicas: int = 2
    single_seconds: float = 109.5
    many_seconds: float = 78.6
    accuracy: float = 0.9948
    """Of both trainings."""
    printed_efficiency: float = 0.6963
    """As printed; the rounded times give 0.6966, as it was computed from unrounded ones."""


PUBLISHED = Published()
"""Issue 4, point 7."""

BATCH_PER_REPLICA = 64
"""Not given with the published numbers: that of TensorFlow's guides, which train such a network."""
