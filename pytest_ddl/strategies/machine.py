"""What this machine offers: installed versions, GPUs and TPUs, found without importing TensorFlow here."""

from __future__ import annotations

import glob
import importlib.metadata
import importlib.util
import os
import sys
from collections.abc import Callable

from pytest_ddl.strategies.base import Machine

_GPU_NODES = ("/dev/nvidia[0-9]*", "/dev/dxg", "/dev/kfd")
_TPU_NODES = ("/dev/accel*", "/dev/vfio/[0-9]*")
TENSORFLOW_PACKAGES = (
    "tensorflow",
    "tensorflow-cpu",
    "tensorflow-intel",
    "tensorflow-macos",
    "tf-nightly",
    "tf-nightly-cpu",
)
MISSING_TENSORFLOW = (
    "pytest-ddl needs TensorFlow 2.16 or newer, and this Python has none: "
    "pip install 'pytest-ddl[cpu]' (or 'pytest-ddl[gpu]')"
)


def tensorflow_version() -> str | None:
    """The installed TensorFlow's version, whatever the name of its package; ``None`` where it cannot be imported."""
    if importlib.util.find_spec("tensorflow") is None:
        return None
    for package in TENSORFLOW_PACKAGES:
        try:
            return importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return "unknown"


def keras_version() -> str | None:
    """The installed Keras 3's version, if any."""
    try:
        return importlib.metadata.version("keras")
    except importlib.metadata.PackageNotFoundError:
        return None


def look_around(probe: Callable[[], tuple[int, int]]) -> Machine:
    """Describe this machine; ``probe`` (which costs an import of TensorFlow) only runs where device files exist.

    :param probe: asks TensorFlow, in a process of its own, for its numbers of GPUs and TPUs.
    """
    gpu_nodes = [node for pattern in _GPU_NODES for node in glob.glob(pattern)]
    tpu_nodes = [node for pattern in _TPU_NODES for node in glob.glob(pattern)]
    tpu_name = os.environ.get("TPU_NAME", "")
    gpus = tpus = 0
    if gpu_nodes or tpu_nodes or tpu_name:
        gpus, tpus = probe()
    return Machine(
        gpus=gpus,
        tpus=tpus,
        gpu_reason=(
            f"TensorFlow sees no GPU although {gpu_nodes[0]} exists; is this a CPU build of TensorFlow?"
            if gpu_nodes
            else "this machine has no GPU device (/dev/nvidia*)"
        ),
        tpu_reason=(
            "TPU_NAME or a TPU device is there, but TensorFlow sees no TPU"
            if tpu_nodes or tpu_name
            else "TPU_NAME is not set and this machine has no TPU device (/dev/accel*)"
        ),
        tensorflow=tensorflow_version(),
        keras=keras_version(),
    )


def count_devices() -> tuple[int, int]:
    """Ask TensorFlow for the numbers of GPUs and TPUs; to be called in a worker process."""
    import tensorflow as tf

    gpus = len(tf.config.list_physical_devices("GPU"))
    tpus = len(tf.config.list_physical_devices("TPU"))
    if not tpus and (os.environ.get("TPU_NAME") or glob.glob(_TPU_NODES[0])):
        try:
            resolver = tf.distribute.cluster_resolver.TPUClusterResolver(tpu=os.environ.get("TPU_NAME", "local"))
            tpus = sum(resolver.num_accelerators().values())
        except Exception as error:
            # Any failure to reach it means that there is no TPU to run on; the reason goes to the log.
            sys.stderr.write(f"no TPU answers: {error}\n")
    return gpus, tpus
