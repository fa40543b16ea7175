"""The one place where strategies touch TensorFlow beyond its public API. Tried on TensorFlow 2.16 and 2.21.

Why each is needed is said at its function. TensorFlow is imported inside, as this module is loaded without it too.
"""

from __future__ import annotations

from typing import Any


def composite_tensor() -> Any:
    """The base class of what a ``tf.function`` takes apart when it is called.

    The public ``tf.experimental.ExtensionType`` holds tensors that exist already; an iterator must give
    its next batch at each call.
    """
    import tensorflow as tf

    return tf.__internal__.CompositeTensor


def outermost_graph() -> Any:
    """The graph of the outermost function that is being traced, whose captures are what its caller hands over."""
    import tensorflow as tf

    graph = tf.compat.v1.get_default_graph()
    while isinstance(getattr(graph, "outer_graph", None), tf.__internal__.FuncGraph):
        graph = graph.outer_graph
    return graph


def coordinator_of(strategy: Any) -> Any:
    """The coordinator that a program has made for a strategy, or ``None``.

    ``tf.distribute.coordinator.ClusterCoordinator(strategy)`` makes one, with its threads, where there is none.
    """
    return getattr(strategy, "_cluster_coordinator", None)
