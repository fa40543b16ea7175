"""Switching off what is meant to differ between replicas: random numbers, and statistics of a part of the batch.

A program is the same on one device and under a strategy only up to these. With both off, in both runs, whatever
still differs is a defect.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from pytest_ddl.training.adapter import flatten_layers

RANDOM = "random"
"""Every random operation of a replica function gives the same constant for every element."""
NORMALIZATION = "normalization"
"""Batch normalisation takes its statistics over all replicas."""
REFUSED = "not switched off: "
"""How the note on a random operation begins for which no constant is known."""

_UNIFORM = ("random_uniform", "stateless_random_uniform", "stateless_random_uniform_v2", "stateful_uniform")
_NORMAL = (
    "random_standard_normal",
    "truncated_normal",
    "stateless_random_normal",
    "stateless_random_normal_v2",
    "stateless_truncated_normal",
    "stateless_truncated_normal_v2",
    "stateful_standard_normal_v2",
    "stateful_truncated_normal",
)
_INTEGERS = (
    "random_uniform_int",
    "stateless_random_uniform_int",
    "stateless_random_uniform_int_v2",
    "stateful_uniform_int",
)
_SHUFFLES = ("random_shuffle", "stateless_shuffle")
_CATEGORICAL = ("multinomial", "stateless_multinomial")
_MEANS = {
    "random_gamma": "alpha",
    "stateless_random_gamma_v2": "alpha",
    "stateless_random_gamma_v3": "alpha",
    "random_poisson_v2": "rate",
    "stateless_random_poisson": "lam",
}


def constant_draw(name: str, drawn: Any, original: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """What stands in for ``drawn``, the result of a random operation, or ``None`` where nothing is known to.

    The same for every element, so that it depends neither on the replica nor on how the batch was split.
    """
    import tensorflow as tf

    if name in _UNIFORM:
        # Close to 1: dropout keeps what is drawn above its rate, and a rate of 1 means nothing.
        return tf.fill(tf.shape(drawn), tf.constant(0.96875, drawn.dtype))
    if name in _NORMAL:
        # Not 0: a standard deviation that is learnt keeps its gradient.
        return tf.fill(tf.shape(drawn), tf.constant(0.5, drawn.dtype))
    given = inspect.signature(original).bind(*args, **kwargs).arguments
    if name in _INTEGERS:
        low, high = (tf.cast(given[bound], drawn.dtype) for bound in ("minval", "maxval"))
        return tf.zeros_like(drawn) + low + (high - low) // 2
    if name in _SHUFFLES:
        return tf.identity(given["value"])
    if name in _CATEGORICAL:
        likeliest = tf.cast(tf.argmax(given["logits"], axis=-1), drawn.dtype)
        return tf.zeros_like(drawn) + likeliest[:, None]
    if name in _MEANS:
        return tf.zeros_like(drawn) + tf.cast(given[_MEANS[name]], drawn.dtype)
    return None


def synchronise(model: Any) -> None:
    """Make the batch normalisation layers of a model take their statistics over all replicas."""
    for layer in flatten_layers(model):
        if getattr(layer, "synchronized", None) is False and "BatchNormalization" in type(layer).__name__:
            layer.synchronized = True
            if hasattr(layer, "fused"):
                layer.fused = False  # tf_keras: the fused kernel knows no other replica
