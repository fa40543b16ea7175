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
LOW = "low"
"""Besides ``RANDOM``: the constants are low numbers. Without it they are high ones."""
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
_GAMMA = ("random_gamma", "stateless_random_gamma_v2", "stateless_random_gamma_v3")
_POISSON = {"random_poisson_v2": "rate", "stateless_random_poisson": "lam"}
_UNIT = {False: 0.96875, True: 0.03125}
"""A uniform number between 0 and 1 of each level: dropout keeps all, then nothing; a rate of 0 or 1 means nothing."""
_SIGNED = {False: 0.5, True: -0.5}
"""A normal number of each level. Not 0: a standard deviation that is learnt keeps its gradient."""
_CUMULATIVE = {False: 0.9693, True: 0.0307}
"""The part of the probability up to a category. No power of 2: categories of equal probability often sum up to one."""


def has_levels(name: str) -> bool:
    """Say whether the high and the low constant of a random operation can differ."""
    return name not in _SHUFFLES


def constant_draw(
    name: str, drawn: Any, original: Callable[..., Any], args: Any, kwargs: Any, *, low: bool = False
) -> Any:
    """Return what stands in for ``drawn``, the result of a random operation, or ``None`` if nothing is known to.

    It is the same for every element. So it depends neither on the replica nor on how the batch was split.
    """
    import tensorflow as tf

    if name in _UNIFORM:
        return tf.fill(tf.shape(drawn), tf.constant(_UNIT[low], drawn.dtype))
    if name in _NORMAL:
        return tf.fill(tf.shape(drawn), tf.constant(_SIGNED[low], drawn.dtype))
    given = inspect.signature(original).bind(*args, **kwargs).arguments
    if name in _INTEGERS:
        first, end = (tf.cast(given[bound], drawn.dtype) for bound in ("minval", "maxval"))
        margin = (end - first) // 32
        return tf.zeros_like(drawn) + (first + margin if low else end - 1 - margin)
    if name in _SHUFFLES:
        return tf.identity(given["value"])
    if name in _CATEGORICAL:
        # By probability, not the least likely one: a category may be masked.
        below = tf.cumsum(tf.nn.softmax(tf.cast(given["logits"], tf.float64)), axis=-1) < _CUMULATIVE[low]
        return tf.zeros_like(drawn) + tf.reduce_sum(tf.cast(below, drawn.dtype), axis=-1)[:, None]
    if name in _POISSON:
        rate = tf.convert_to_tensor(given[_POISSON[name]])
        return tf.zeros_like(drawn) + tf.cast(tf.floor(rate / 2) if low else tf.math.ceil(rate * 1.5), drawn.dtype)
    if name in _GAMMA:
        alpha = tf.cast(given["alpha"], drawn.dtype)
        return tf.zeros_like(drawn) + alpha * (0.5 if low else 1.5)
    return None


def synchronise(model: Any) -> None:
    """Make the batch normalisation layers of a model take their statistics over all replicas."""
    for layer in flatten_layers(model):
        if getattr(layer, "synchronized", None) is False and "BatchNormalization" in type(layer).__name__:
            layer.synchronized = True
            if hasattr(layer, "fused"):
                layer.fused = False  # tf_keras: the fused kernel knows no other replica
