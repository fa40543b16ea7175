"""Make logical devices for several replicas from the physical devices of a process.

TensorFlow freezes the logical devices at first use. These functions therefore work only in a process that has not
used TensorFlow's runtime yet, and workers call them first.
"""

from __future__ import annotations

from pytest_ddl.strategies.base import Machine

VIRTUAL_GPU_MEMORY_MB = 1024
"""Memory in MB of each virtual GPU if one physical GPU is split. It suffices for cuDNN's workspace of a small model."""


def make_logical_devices(device: str, count: int) -> list[str]:
    """Make ``count`` logical devices of a kind and return their names, for example ``["CPU:0", "CPU:1"]``.

    Each device is a physical GPU if there are enough of them. Otherwise each device is a virtual GPU on the first
    physical GPU, so that all replicas are equal.

    :raises RuntimeError: if TensorFlow sees no device of that kind.
    """
    import tensorflow as tf

    kind = device.upper()
    if kind == "CPU":
        tf.config.set_visible_devices([], "GPU")
        return split_device(kind, count, None)
    physical = tf.config.list_physical_devices(kind)
    if len(physical) < count:
        return split_device(kind, count, VIRTUAL_GPU_MEMORY_MB)
    tf.config.set_visible_devices(physical[:count], kind)
    return [f"{kind}:{index}" for index in range(count)]


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


def missing_gpu(device: str, machine: Machine) -> str | None:
    """Return why a strategy for CPUs and GPUs cannot run on a kind of device, or ``None`` if it can."""
    if device == "gpu" and machine.gpus == 0:
        return f"needs a GPU (device=gpu): {machine.gpu_reason or 'TensorFlow sees none'}"
    if device == "tpu":
        return "runs on CPUs and GPUs only (device=tpu selects the strategy 'tpu')"
    return None
