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
VARIED = "varied"
"""Setting, in addition to ``RANDOM``, by which each operation has another number in each step, for all elements."""
NORMALIZATION = "normalization"
"""Setting by which batch normalization takes its statistics over all replicas."""

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
HIGH_LEVEL, LOW_LEVEL = 0.96875, 0.03125
"""Levels of the constants: a uniform number between 0 and 1.

With the high one, dropout keeps all elements, and with the low one none, except at rates close to 0 or 1.
"""
_CUMULATIVE = {HIGH_LEVEL: 0.9693, LOW_LEVEL: 0.0307}
"""Cumulative probabilities at which the high and the low category are chosen.

They are not simple fractions such as 1/8 or 3/4. A sum of equal probabilities is often such a fraction, and rounding
would then decide the choice.
"""
_GOLDEN = (5**0.5 - 1) / 2


def has_levels(name: str) -> bool:
    """Return True if the high and the low constant of a random operation can differ."""
    return name not in _SHUFFLES


def may_choose(name: str, shape: tuple[int, ...], dtype: str) -> bool:
    """Return True if a draw may choose one of several ways to go on, which a high and a low number do not all take."""
    return has_levels(name) and (not shape or dtype.startswith(("int", "uint")) or name in _CATEGORICAL)


def varied_level(position: int, step: int) -> float:
    """Return the level of an operation in a step, between 0 and 1.

    The levels of an operation are evenly spread over its steps, and those of two operations are combined in many ways
    (additive recurrences; Niederreiter, *Random Number Generation and Quasi-Monte Carlo Methods*, 1992, section 3.1).
    """
    return (0.5 + step * ((position + 1) * _GOLDEN % 1.0)) % 1.0


def constant_draw(
    name: str, drawn: Any, original: Callable[..., Any], args: Any, kwargs: Any, *, level: Any = HIGH_LEVEL
) -> Any:
    """Return the constant in place of ``drawn``, the result of a random operation; ``None`` if none is known.

    It is the same for every element. So it depends neither on the replica nor on how the batch was split.

    :param level: uniform number between 0 and 1, perhaps a float64 tensor.
    """
    import tensorflow as tf

    if name in _UNIFORM:
        return tf.fill(tf.shape(drawn), tf.cast(level, drawn.dtype))
    if name in _NORMAL:
        # The constants are 0.5 and -0.5: with 0, a learned standard deviation would have no gradient.
        return tf.fill(tf.shape(drawn), tf.cast((level - 0.5) / (HIGH_LEVEL - LOW_LEVEL), drawn.dtype))
    given = inspect.signature(original).bind(*args, **kwargs).arguments
    if name in _INTEGERS:
        first, end = (tf.cast(given[bound], tf.float64) for bound in ("minval", "maxval"))
        return tf.zeros_like(drawn) + tf.cast(first + tf.floor(level * (end - first)), drawn.dtype)
    if name in _SHUFFLES:
        return tf.identity(given["value"])
    if name in _CATEGORICAL:
        # Choose by cumulative probability: the least likely category may be a masked one.
        cumulative = _CUMULATIVE[level] if isinstance(level, float) else level
        below = tf.cumsum(tf.nn.softmax(tf.cast(given["logits"], tf.float64)), axis=-1) < cumulative
        return tf.zeros_like(drawn) + tf.reduce_sum(tf.cast(below, drawn.dtype), axis=-1)[:, None]
    if name in _POISSON:
        rate = tf.convert_to_tensor(given[_POISSON[name]])
        return tf.zeros_like(drawn) + tf.cast(tf.round(rate * (0.5 + tf.cast(level, rate.dtype))), drawn.dtype)
    if name in _GAMMA:
        alpha = tf.cast(given["alpha"], drawn.dtype)
        return tf.zeros_like(drawn) + alpha * tf.cast(0.5 + level, drawn.dtype)
    return None


def synchronize(model: Any) -> None:
    """Make the batch normalization layers of a model take their statistics over all replicas."""
    for layer in flatten_layers(model):
        if getattr(layer, "synchronized", None) is False and "BatchNormalization" in type(layer).__name__:
            layer.synchronized = True
            if hasattr(layer, "fused"):
                layer.fused = False  # tf_keras: the fused kernel cannot reduce over replicas
