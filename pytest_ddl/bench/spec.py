"""What is to be measured, and how long: the declaration of a benchmark."""

from __future__ import annotations

from dataclasses import dataclass

SEED = 20_201
LONGEST = 1_000_000.0
"""Seconds: what waits for processes counts milliseconds in 32 bits, which is twice as much."""


@dataclass(frozen=True)
class BenchSpec:
    """How a training function is measured.

    :raises ValueError: for a value that cannot be used, naming it.
    """

    batch_per_replica: int | None = None
    """Examples per step and replica: weak scaling. Give either this or ``global_batch_size``."""
    global_batch_size: int | None = None
    """Examples per step over all replicas: strong scaling."""
    warm_up: int = 10
    """Steps before the clock counts, the first (traced) one included; more follow while the program still traces."""
    steps_per_block: int = 20
    """Steady steps between two readings of the clock."""
    blocks: int = 10
    """Blocks that are measured at least."""
    seconds: float = 1.0
    """Blocks are added until they took so long."""
    timeout: float = 120.0
    """Seconds for one launch, everything included."""
    pin: bool = False
    """Give every replica cores of its own: as many as the largest variant leaves each."""
    device: str = "auto"
    """``cpu``, ``gpu``, ``tpu``, or ``auto``: GPUs where there are any."""
    energy: bool = False
    """Read energy counters around the steady steps."""
    seed: int = SEED

    def __post_init__(self) -> None:
        for name in ("warm_up", "steps_per_block", "blocks"):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise ValueError(f"{name}={value!r} must be a whole number, at least 1")
        for name in ("batch_per_replica", "global_batch_size"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
                raise ValueError(f"{name}={value!r} must be a whole number, at least 1, or None")
        if self.batch_per_replica is not None and self.global_batch_size is not None:
            raise ValueError(
                f"batch_per_replica={self.batch_per_replica} and global_batch_size={self.global_batch_size}: "
                "give one of them (the first for weak scaling, the second for strong scaling)"
            )
        for name in ("seconds", "timeout"):
            if not 0 < getattr(self, name) <= LONGEST:
                raise ValueError(
                    f"{name}={getattr(self, name)!r} must be a positive number of seconds, at most {LONGEST:.0f}"
                )

    @property
    def scaling(self) -> str:
        """``weak`` (batch per replica fixed), ``strong`` (global batch fixed) or ``none``."""
        if self.batch_per_replica is not None:
            return "weak"
        return "strong" if self.global_batch_size is not None else "none"

    def batch_for(self, replicas: int) -> int | None:
        """The global batch size for a number of replicas."""
        return self.batch_per_replica * replicas if self.batch_per_replica is not None else self.global_batch_size
