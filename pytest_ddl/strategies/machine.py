"""Find the versions, GPUs and TPUs of this machine, and make logical devices for replicas from the physical devices.

The functions that import TensorFlow run only in worker processes.
"""

from __future__ import annotations

import ctypes
import glob
import importlib.util
import math
import os
import sys
from collections.abc import Callable
from typing import NamedTuple

from pytest_ddl.installing import install_line, installed, version_of
from pytest_ddl.strategies.base import Machine

_GPU_NODES = ("/dev/nvidia[0-9]*", "/dev/dxg", "/dev/kfd")
_TPU_NODES = ("/dev/accel*", "/dev/vfio/[0-9]*")
MISSING_TENSORFLOW = (
    f"pytest-ddl needs TensorFlow 2.16 or newer, and this Python has none: {install_line('cpu')}, or with [gpu]"
)
VIRTUAL_GPU_MEMORY_MB = 1024
"""Memory in MB of each virtual GPU if one physical GPU is split. It suffices for cuDNN's workspace of a small model."""
GPU_PROCESS_MB = 2560
"""Memory in MB of a process that uses a GPU: two virtual GPUs, and 0.5 GB for the context and the libraries of CUDA."""
FULL_CLUSTERS = 4
"""Clusters of one process of pytest that may be full at the same time. Idle ones hold little more than a context."""
GPU_GROWTH = "TF_FORCE_GPU_ALLOW_GROWTH"
"""Environment variable of TensorFlow, which by default takes all memory of a GPU at its first operation there."""
GPU_LOADING = "CUDA_MODULE_LOADING"
"""Environment variable of CUDA, which loads each kernel at its first use if it is LAZY: contexts start sooner."""
GPU_MEMORY = "_PYTEST_DDL_GPU_MEMORY"
"""Environment variable between the pool and a rank: most memory in MB that a rank may take of a GPU that it shares."""
_UNKNOWN_GPU_MB = 15_000
"""Memory in MB of a GPU that does not report it: that of the smallest GPU that clouds lend for training (T4)."""


def tensorflow_version() -> str | None:
    """Return the version of the installed TensorFlow, or ``None`` if it cannot be imported.

    Several packages contain TensorFlow. The version is ``"unknown"`` if none of the known packages is installed.
    """
    if importlib.util.find_spec("tensorflow") is None:
        return None
    return version_of("tensorflow") or "unknown"


def look_around(probe: Callable[[], tuple[int, int, int]]) -> Machine:
    """Describe this machine.

    :param probe: function that finds, in a separate process, what :func:`count_devices` returns. It has to import
        TensorFlow, so it is called only if device files or ``TPU_NAME`` hint at such a device.
    """
    gpu_nodes = [node for pattern in _GPU_NODES for node in glob.glob(pattern)]
    tpu_nodes = [node for pattern in _TPU_NODES for node in glob.glob(pattern)]
    tpu_name = os.environ.get("TPU_NAME", "")
    gpus = tpus = memory = 0
    if gpu_nodes or tpu_nodes or tpu_name:
        gpus, tpus, memory = probe()
    return Machine(
        gpus=gpus,
        tpus=tpus,
        gpu_memory_mb=memory,
        gpu_reason=(
            f"TensorFlow sees no GPU although {gpu_nodes[0]} exists; is this a CPU build of TensorFlow?"
            if gpu_nodes
            else "this machine has no GPU device (/dev/nvidia*)"
        ),
        tpu_reason=(
            "TPU_NAME is set or a TPU device exists, but TensorFlow sees no TPU"
            if tpu_nodes or tpu_name
            else "TPU_NAME is not set and this machine has no TPU device (/dev/accel*)"
        ),
        tensorflow=tensorflow_version(),
        keras=installed("keras"),
    )


class GpuShare(NamedTuple):
    """Share of a machine's GPUs that each of several processes of pytest may take."""

    processes: int
    """Number of ranks on GPUs at once, idle ones included."""
    memory_mb: int
    """Most memory in MB that one rank may take of one GPU."""


def gpu_share(machine: Machine, runners: int, limit: float = 0.0) -> GpuShare:
    """Divide the GPUs of a machine between several processes of pytest.

    A rank that asks for more memory fails by itself. Without a limit it takes what all others need.

    :param limit: most memory in MB that a rank may take; 0 for a part of what each process of pytest has.
    """
    memory = machine.gpu_memory_mb or _UNKNOWN_GPU_MB
    each = memory // math.ceil(runners / max(1, machine.gpus))
    processes = machine.gpus * (memory // GPU_PROCESS_MB) // runners
    return GpuShare(max(1, processes), int(limit) or max(VIRTUAL_GPU_MEMORY_MB, each // FULL_CLUSTERS))


def count_devices() -> tuple[int, int, int]:
    """Ask TensorFlow for the numbers of GPUs and TPUs. Call this in a worker process.

    Return both, and the memory in MB of the GPU that has the least; 0 if it is not known.
    """
    import tensorflow as tf

    gpus = len(tf.config.list_physical_devices("GPU"))
    tpus = len(tf.config.list_physical_devices("TPU"))
    if not tpus and (os.environ.get("TPU_NAME") or glob.glob(_TPU_NODES[0])):
        try:
            resolver = tf.distribute.cluster_resolver.TPUClusterResolver(tpu=os.environ.get("TPU_NAME", "local"))
            tpus = sum(resolver.num_accelerators().values())
        except Exception as error:
            # Whatever the error is, no test can run on a TPU that does not answer. The log gets the reason.
            sys.stderr.write(f"no TPU answers: {error}\n")
    return gpus, tpus, _gpu_memory_mb(gpus)


def _gpu_memory_mb(gpus: int) -> int:
    """Return the smallest memory of the first GPUs, as CUDA's driver gives it (``cuDeviceTotalMem``); 0 if unknown."""
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return 0
    sizes = []
    for number in range(gpus):
        device, size = ctypes.c_int(), ctypes.c_size_t()
        if cuda.cuDeviceGet(ctypes.byref(device), number) or cuda.cuDeviceTotalMem_v2(ctypes.byref(size), device):
            return 0
        sizes.append(size.value >> 20)
    return min(sizes, default=0)


def make_logical_devices(device: str, count: int, *, process: int = 0, processes: int = 1) -> list[str]:
    """Make ``count`` logical devices of a kind and return their names, for example ``["CPU:0", "CPU:1"]``.

    Each device is a physical GPU if there are enough of them. Otherwise each device is a virtual GPU on the first
    physical GPU, so that all replicas are equal. If there are enough physical GPUs for all processes, each process
    takes its own. On several hosts, a process sees only its own ones. The pool limits the memory that this process
    takes of each GPU, by an environment variable.

    :param process: number of this process, from 0.
    :param processes: number of processes that need as many devices each.
    :raises RuntimeError: if TensorFlow sees no device of that kind.
    """
    import tensorflow as tf

    kind = device.upper()
    if kind == "CPU":
        tf.config.set_visible_devices([], "GPU")
        return split_device(kind, count, None)
    physical = tf.config.list_physical_devices(kind)
    limit = int(os.environ.get(GPU_MEMORY, 0))
    if len(physical) < count:
        return split_device(kind, count, max(limit // count, VIRTUAL_GPU_MEMORY_MB))
    first = process * count if len(physical) >= processes * count else 0
    own = physical[first : first + count]
    tf.config.set_visible_devices(own, kind)
    for gpu in own if limit else ():
        tf.config.set_logical_device_configuration(gpu, [tf.config.LogicalDeviceConfiguration(memory_limit=limit)])
    return [f"{kind}:{index}" for index in range(count)]


def server_memory_fraction() -> float:
    """Return which part of its GPU's memory a server of TensorFlow may take; 0, TensorFlow's default, without a limit.

    A server makes its devices by itself, and does not read how the devices of its process are split.
    """
    limit = int(os.environ.get(GPU_MEMORY, 0))
    memory = _gpu_memory_mb(1) if limit else 0
    return min(1.0, limit / memory) if memory else 0.0


def split_device(kind: str, count: int, memory_mb: int | None) -> list[str]:
    """Split the first physical device of a kind into ``count`` logical ones and return their names.

    :param memory_mb: memory of each device in MB; ``None`` for CPUs, which have no memory of their own.
    :raises RuntimeError: if TensorFlow sees no device of that kind.
    """
    import tensorflow as tf

    physical = tf.config.list_physical_devices(kind)
    if not physical:
        raise RuntimeError(f"TensorFlow sees no {kind} in this worker, although the test was selected for one")
    slices = [tf.config.LogicalDeviceConfiguration(memory_limit=memory_mb) for _ in range(count)]
    tf.config.set_visible_devices(physical[:1], kind)
    tf.config.set_logical_device_configuration(physical[0], slices)
    return [f"{kind}:{index}" for index in range(count)]
