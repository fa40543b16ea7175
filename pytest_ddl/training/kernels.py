"""Make the operations of a run on a GPU deterministic, or find that one of them has no deterministic kernel.

On a GPU, the gradient of an embedding is a sum of atomic additions, whose order changes from run to run. Copies of one
variable then differ by rounding although the program is right. TensorFlow has deterministic kernels for nearly all
operations (``tf.config.experimental.enable_op_determinism``), and raises for the others.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from pytest_ddl.strategies.adapter import is_deterministic, set_deterministic

_SEEDING = ("tensorflow.python.framework.random_seed", "tensorflow.python.ops.stateful_random_ops")
"""Modules that raise ``RuntimeError`` for random numbers without a seed, only while operations are deterministic."""


@contextmanager
def deterministic(device: str) -> Iterator[bool]:
    """Make operations deterministic while the context is open. Yield whether that changes anything.

    The kernels of CPUs are deterministic anyway for all that a comparison reads exactly.

    :param device: kind of device of the replicas.
    """
    if device != "gpu" or is_deterministic():
        yield False
        return
    set_deterministic(True)
    try:
        yield True
    finally:
        set_deterministic(False)


def refuses_determinism(error: BaseException) -> bool:
    """Return whether an error can be one that only deterministic operations raise.

    TensorFlow raises ``UnimplementedError`` for an operation without a deterministic kernel, and ``RuntimeError`` for a
    generator without a seed. Whoever asks runs the program again without determinism, so a program that raises the same
    for a reason of its own is not blamed for another.
    """
    import tensorflow as tf

    if isinstance(error, tf.errors.UnimplementedError):
        return True
    return any(isinstance(part, RuntimeError) and _raised_in(part) in _SEEDING for part in _chain(error))


def _chain(error: BaseException) -> Iterator[BaseException]:
    """Yield an exception and those in whose handling it was raised. AutoGraph wraps exceptions of a function."""
    part: BaseException | None = error
    seen: set[int] = set()
    while part is not None and id(part) not in seen:
        seen.add(id(part))
        yield part
        part = part.__cause__ or part.__context__


def _raised_in(error: BaseException) -> str:
    """Return the name of the module whose code raised an exception; empty if it was not raised."""
    frame: Any = None
    place = error.__traceback__
    while place is not None:
        frame, place = place.tb_frame, place.tb_next
    return str(frame.f_globals.get("__name__", "")) if frame is not None else ""
