"""Settings of a benchmark: what is measured, and for how long."""

from __future__ import annotations

from dataclasses import dataclass

SEED = 20_201
LONGEST = 1_000_000.0
"""Largest number of seconds. Waiting for processes counts milliseconds in 32 bits, which allows twice as much."""


@dataclass(frozen=True)
class BenchSpec:
    """Settings for measuring a training function.

    :raises ValueError: if a value is invalid; it names the value.
    """

    batch_per_replica: int | None = None
    """Examples per step and replica, for weak scaling. Give either this or ``global_batch_size``."""
    global_batch_size: int | None = None
    """Examples per step over all replicas, for strong scaling."""
    warm_up: int = 10
    """Steps before timing starts, including the first (traced) one. More follow while the program still traces."""
    steps_per_block: int = 20
    """Steady steps between two readings of the clock."""
    blocks: int = 10
    """Minimum number of measured blocks."""
    seconds: float = 1.0
    """Minimum total seconds of the measured blocks; blocks are added until it is reached."""
    timeout: float = 120.0
    """Seconds for one launch, including everything."""
    pin: bool = False
    """True to give every replica its own cores: as many as the largest variant leaves for each."""
    device: str = "auto"
    """``cpu``, ``gpu``, ``tpu``, or ``auto``, which uses GPUs if there are any."""
    energy: bool = False
    """True to read energy counters around the steady steps."""
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
        """Scaling rule: ``weak`` (batch per replica fixed), ``strong`` (global batch fixed) or ``none``."""
        if self.batch_per_replica is not None:
            return "weak"
        return "strong" if self.global_batch_size is not None else "none"

    def batch_for(self, replicas: int) -> int | None:
        """Return the global batch size for a number of replicas."""
        return self.batch_per_replica * replicas if self.batch_per_replica is not None else self.global_batch_size
