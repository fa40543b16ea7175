"""Energy that a machine used while steady steps ran: NVML's counters for GPUs, RAPL's for processors."""

from __future__ import annotations

from pytest_ddl.bench.records import EnergyReading


class EnergyMeter:
    """Reads energy counters at the start and at the end of a window."""

    def start(self) -> None:
        """Begin the window."""

    def stop(self) -> EnergyReading:
        """End the window."""
        return EnergyReading(None, reason="no energy counter is read yet")
