"""Access to private parts of TensorFlow for strategies, kept in this one module.

Each function states why it needs a private part. Tested with TensorFlow 2.16 and 2.21. TensorFlow is imported inside
the functions, because this module is also loaded in processes without it.
"""

from __future__ import annotations

from typing import Any


def composite_tensor() -> Any:
    """Return the base class of arguments that a ``tf.function`` splits into tensors at each call.

    The public ``tf.experimental.ExtensionType`` holds tensors that already exist, but an iterator must produce its
    next batch at each call.
    """
    import tensorflow as tf

    return tf.__internal__.CompositeTensor


def outermost_graph() -> Any:
    """Return the graph of the outermost function that is being traced.

    Its captures are the tensors that the function's caller passes in.
    """
    import tensorflow as tf

    graph = tf.compat.v1.get_default_graph()
    while isinstance(getattr(graph, "outer_graph", None), tf.__internal__.FuncGraph):
        graph = graph.outer_graph
    return graph


def coordinator_of(strategy: Any) -> Any:
    """Return the coordinator that a program has made for a strategy, or ``None``.

    The public ``tf.distribute.coordinator.ClusterCoordinator(strategy)`` would make one, with its threads.
    """
    return getattr(strategy, "_cluster_coordinator", None)


def number_of_workers(strategy: Any) -> int:
    """Return the number of workers of a parameter server strategy.

    Its public ``cluster_resolver`` is ``None`` in TensorFlow 2.21.
    """
    return int(strategy.extended._num_workers)


def is_deterministic() -> bool:
    """Return whether operations are deterministic.

    ``tf.config.experimental.enable_op_determinism`` has no public getter.
    """
    from tensorflow.python.framework import config

    return bool(config.is_op_determinism_enabled())


def set_deterministic(value: bool) -> None:
    """Switch determinism of operations on or off. The public function can only switch it on."""
    from tensorflow.python.framework import config

    config.enable_op_determinism() if value else config.disable_op_determinism()
