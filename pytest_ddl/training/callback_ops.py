"""Add operations to a program's graph that pass tensors to a callback and change nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def add_callback(record: Callable[..., None], tensors: list[Any]) -> None:
    """Call ``record`` with the id of the replica and the values of the tensors, now or each time the graph runs."""
    import tensorflow as tf

    replica = replica_id()
    if tf.executing_eagerly() and all(hasattr(tensor, "numpy") for tensor in tensors):
        record(replica, *[tensor.numpy() for tensor in tensors])
        return
    # Observing must not change gradients: numpy_function has none, and stop_gradient cuts off its inputs too.
    inputs = [tf.cast(replica, tf.int32), *[tf.stop_gradient(tensor) for tensor in tensors]]
    tf.numpy_function(record, inputs, [], stateful=True)


def replica_id() -> Any:
    """Return the global id of the replica that runs here: a number, or a tensor while tracing."""
    import tensorflow as tf

    context = tf.distribute.get_replica_context()
    return 0 if context is None else context.replica_id_in_sync_group


def refuses_callbacks(error: BaseException) -> bool:
    """Return True if the operation of a callback caused an error: PyFunc has no kernel under XLA, for example."""
    text = f"{type(error).__name__}: {error}"
    return "PyFunc" in text or "pyfunc_" in text or "numpy_function" in text
