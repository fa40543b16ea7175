"""Choices of an all-reduce that ``tf.distribute`` offers, and one of our own; the functions run in the ranks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any


def _reduction_to_one_device() -> dict[str, Any]:
    import tensorflow as tf

    return {"cross_device_ops": tf.distribute.ReductionToOneDevice()}


def _hierarchical_copy() -> dict[str, Any]:
    import tensorflow as tf

    return {"cross_device_ops": tf.distribute.HierarchicalCopyAllReduce()}


def _nccl_of_mirrored() -> dict[str, Any]:
    import tensorflow as tf

    return {"cross_device_ops": tf.distribute.NcclAllReduce()}


def _ring_of_copies() -> dict[str, Any]:
    from asv_bench.studies.ring import RingOfCopies

    return {"cross_device_ops": RingOfCopies()}


def _implementation(name: str) -> dict[str, Any]:
    import tensorflow as tf

    chosen = tf.distribute.experimental.CommunicationImplementation[name]
    return {"communication_options": tf.distribute.experimental.CommunicationOptions(implementation=chosen)}


@dataclass(frozen=True)
class Choice:
    """All-reduce of one strategy."""

    name: str
    strategy: str
    summary: str
    make: Callable[[], Mapping[str, Any]] | None
    """Function that returns arguments of the strategy's constructor; ``None`` for those of the strategy itself."""
    needs_gpus: bool = False


CHOICES: tuple[Choice, ...] = (
    Choice("default", "mirrored", "what MirroredStrategy chooses itself", None),
    Choice("one device", "mirrored", "tf.distribute.ReductionToOneDevice", _reduction_to_one_device),
    Choice("hierarchical copy", "mirrored", "tf.distribute.HierarchicalCopyAllReduce", _hierarchical_copy),
    Choice("ring of copies", "mirrored", "our subclass of tf.distribute.CrossDeviceOps", _ring_of_copies),
    Choice("nccl", "mirrored", "tf.distribute.NcclAllReduce", _nccl_of_mirrored, needs_gpus=True),
    Choice("auto", "multi_worker_mirrored", "CommunicationImplementation.AUTO", lambda: _implementation("AUTO")),
    Choice("ring", "multi_worker_mirrored", "CommunicationImplementation.RING", lambda: _implementation("RING")),
    Choice(
        "nccl",
        "multi_worker_mirrored",
        "CommunicationImplementation.NCCL",
        lambda: _implementation("NCCL"),
        needs_gpus=True,
    ),
)
"""All choices. To add one, write its function and add an entry here."""
