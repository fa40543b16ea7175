"""Switch off the intended differences between replicas: random numbers, and statistics of a part of the batch.

These two may differ between a run on one device and a run under a strategy. If both are off in both runs, any
difference that remains is a defect.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from pytest_ddl.training.adapter import flatten_layers

RANDOM = "random"
"""Setting by which every random operation of a replica function returns the same constant for every element."""
LOW = "low"
"""Setting, in addition to ``RANDOM``, by which the constants are low numbers. Otherwise they are high numbers."""
NORMALIZATION = "normalization"
"""Setting by which batch normalization takes its statistics over all replicas."""
REFUSED = "not switched off: "
"""Start of the note on a random operation for which no constant is known."""

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
"""High (False) and low (True) constant for a uniform number between 0 and 1.

With the high one, dropout keeps all elements, and with the low one none, except at rates close to 0 or 1.
"""
_SIGNED = {False: 0.5, True: -0.5}
"""High and low constant for a normal number. With 0, a learned standard deviation would have no gradient."""
_CUMULATIVE = {False: 0.9693, True: 0.0307}
"""Cumulative probabilities at which the high and the low category are chosen.

They are not simple fractions such as 1/8 or 3/4. A sum of equal probabilities is often such a fraction, and rounding
would then decide the choice.
"""


def has_levels(name: str) -> bool:
    """Return True if the high and the low constant of a random operation can differ."""
    return name not in _SHUFFLES


def constant_draw(
    name: str, drawn: Any, original: Callable[..., Any], args: Any, kwargs: Any, *, low: bool = False
) -> Any:
    """Return the constant in place of ``drawn``, the result of a random operation; ``None`` if none is known.

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
        # Choose by cumulative probability: the least likely category may be a masked one.
        below = tf.cumsum(tf.nn.softmax(tf.cast(given["logits"], tf.float64)), axis=-1) < _CUMULATIVE[low]
        return tf.zeros_like(drawn) + tf.reduce_sum(tf.cast(below, drawn.dtype), axis=-1)[:, None]
    if name in _POISSON:
        rate = tf.convert_to_tensor(given[_POISSON[name]])
        return tf.zeros_like(drawn) + tf.cast(tf.floor(rate / 2) if low else tf.math.ceil(rate * 1.5), drawn.dtype)
    if name in _GAMMA:
        alpha = tf.cast(given["alpha"], drawn.dtype)
        return tf.zeros_like(drawn) + alpha * (0.5 if low else 1.5)
    return None


def synchronize(model: Any) -> None:
    """Make the batch normalization layers of a model take their statistics over all replicas."""
    for layer in flatten_layers(model):
        if getattr(layer, "synchronized", None) is False and "BatchNormalization" in type(layer).__name__:
            layer.synchronized = True
            if hasattr(layer, "fused"):
                layer.fused = False  # tf_keras: the fused kernel cannot reduce over replicas
