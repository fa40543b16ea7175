"""Read the peak memory of a rank."""

from __future__ import annotations

from pathlib import Path


def peak_bytes() -> int:
    """Return the largest resident set of this process in bytes: ``VmHWM`` of proc(5); 0 if there is no ``/proc``.

    It includes resident pages that are shared with the process from which this one was forked.
    """
    try:
        lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:")), 0)


def device_peak_bytes() -> dict[str, int]:
    """Return the most bytes that TensorFlow had allocated on each GPU (``tf.config.experimental.get_memory_info``)."""
    import tensorflow as tf

    found = {}
    for device in tf.config.list_logical_devices("GPU"):
        short = device.name.removeprefix("/device:")
        found[short] = int(tf.config.experimental.get_memory_info(short)["peak"])
    return found
