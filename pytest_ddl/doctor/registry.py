"""The probes of ``pytest-ddl doctor``: one entry each."""

from __future__ import annotations

from pytest_ddl.doctor import connections, environment, gpu_state, imported, machine, versions
from pytest_ddl.doctor.examination import DoctorProbe

PROBES: tuple[DoctorProbe, ...] = (
    DoctorProbe("python", "versions", "Python has a supported version", versions.python),
    DoctorProbe(
        "tensorflow", "versions", "TensorFlow has a supported version, and what it requires", versions.tensorflow
    ),
    DoctorProbe("keras", "versions", "Keras is installed, in a tested version", versions.keras),
    DoctorProbe("tf_keras", "versions", "tf_keras, if installed, fits to TensorFlow", versions.tf_keras),
    DoctorProbe("pytest-ddl", "versions", "pytest-ddl is installed, with what it requires", versions.pytest_ddl),
    DoctorProbe("loopback", "network", "processes can connect over 127.0.0.1", connections.loopback, waits=True),
    DoctorProbe("ports", "network", "ports can be leased, listened on and reached", connections.ports, waits=True),
    DoctorProbe("localhost", "network", "`localhost` means 127.0.0.1", connections.localhost, waits=True),
    DoctorProbe(
        "host-name", "network", "the host name has an address for other hosts", connections.host_name,
        waits=True, is_needed=False,
    ),
    DoctorProbe("proxies", "network", "gRPC uses no proxy for 127.0.0.1", connections.proxies),
    DoctorProbe(
        "namespace", "network", "`--ddl-network=isolated` is possible", connections.namespace,
        waits=True, is_needed=False,
    ),
    DoctorProbe("descriptors", "limits", "a process may open enough files", machine.descriptors),
    DoctorProbe("processes", "limits", "enough threads may be started", machine.processes),
    DoctorProbe("memory", "limits", "enough memory is free, in the container too", machine.memory),
    DoctorProbe("cores", "limits", "there is a core for each rank of a cluster of two workers", machine.cores),
    DoctorProbe(
        "temporary-folder", "files", "temporary files can be made, with free space", machine.temporary, waits=True
    ),
    DoctorProbe("shared-memory", "files", "shared memory is large enough for GPUs", machine.shared_memory, waits=True),
    DoctorProbe("gpus", "machine", "TensorFlow can use the GPUs that exist", gpu_state.gpus, waits=True),
    DoctorProbe(
        "gpu-state", "machine", "each GPU has free memory and no errors (`--tensorflow`)", gpu_state.gpu_state,
        waits=True, own_seconds=gpu_state.SECONDS, on_request=True,
    ),
    DoctorProbe("clock", "machine", "the clock is set, and synchronized", machine.clock),
    DoctorProbe("variables", "environment", "no environment variable breaks TensorFlow", environment.variables),
    DoctorProbe(
        "import", "versions", "TensorFlow can be imported, and its GPUs compute (`--tensorflow`)", imported.tensorflow,
        waits=True, own_seconds=imported.SECONDS + 1, on_request=True,
    ),
)  # fmt: skip
"""All probes, in the order of the report. To add one, write its function and add an entry here."""
