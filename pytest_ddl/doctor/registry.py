"""The probes of ``pytest-ddl doctor``: one entry each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pytest_ddl.doctor import clock, connections, devices, environment, imported, limits, storage, versions
from pytest_ddl.doctor.findings import Finding

SECONDS = 1.4
"""Deadline of a probe that may block. All probes run at the same time, so the command ends soon after it."""
BUSY_SECONDS = 20.0
"""Deadline of the others, which only a very busy machine delays. That is no problem of what they ask about."""


@dataclass(frozen=True)
class Probe:
    """Question to the machine on which it runs."""

    name: str
    group: str
    title: str
    """Statement that holds if it finds nothing wrong."""
    run: Callable[[], Finding | Sequence[Finding]]
    waits: bool = False
    """True if it asks something that may never answer: a name server, a disk, another process."""
    own_seconds: float | None = None
    """Deadline, if it differs from that of similar probes."""
    on_request: bool = False
    """True if it runs only if it is asked for, because it takes seconds."""

    @property
    def seconds(self) -> float:
        """Deadline."""
        return self.own_seconds or (SECONDS if self.waits else BUSY_SECONDS)


PROBES: tuple[Probe, ...] = (
    Probe("python", "versions", "Python has a supported version", versions.python),
    Probe("tensorflow", "versions", "TensorFlow has a supported version, and what it requires", versions.tensorflow),
    Probe("keras", "versions", "Keras is installed, in a tested version", versions.keras),
    Probe("tf_keras", "versions", "tf_keras, if installed, fits to TensorFlow", versions.tf_keras),
    Probe("pytest-ddl", "versions", "pytest-ddl is installed, with what it requires", versions.pytest_ddl),
    Probe("loopback", "network", "processes can connect over 127.0.0.1", connections.loopback, waits=True),
    Probe("ports", "network", "ports can be leased, listened on and reached", connections.ports, waits=True),
    Probe("localhost", "network", "`localhost` means 127.0.0.1", connections.localhost, waits=True),
    Probe("host-name", "network", "the host name has an address for other hosts", connections.host_name, waits=True),
    Probe("proxies", "network", "gRPC uses no proxy for 127.0.0.1", connections.proxies),
    Probe("namespace", "network", "`--ddl-network=isolated` is possible", connections.namespace, waits=True),
    Probe("descriptors", "limits", "a process may open enough files", limits.descriptors),
    Probe("processes", "limits", "enough threads may be started", limits.processes),
    Probe("memory", "limits", "enough memory is free, in the container too", limits.memory),
    Probe("cores", "limits", "there is a core for each rank of a cluster of two workers", limits.cores),
    Probe("temporary-folder", "files", "temporary files can be made, with free space", storage.temporary, waits=True),
    Probe("shared-memory", "files", "shared memory is large enough for GPUs", storage.shared_memory, waits=True),
    Probe("gpus", "machine", "TensorFlow can use the GPUs that exist", devices.gpus, waits=True),
    Probe("clock", "machine", "the clock is set, and synchronized", clock.clock),
    Probe("variables", "environment", "no environment variable breaks TensorFlow", environment.variables),
    Probe(
        "import", "versions", "TensorFlow can be imported (`--tensorflow`)", imported.tensorflow,
        waits=True, own_seconds=imported.SECONDS + 1, on_request=True,
    ),
)  # fmt: skip
"""All probes, in the order of the report. To add one, write its function and add an entry here."""
