"""Build a linear model of Keras under a strategy, for ``suites.models.linear``. It is Keras 3 or tf_keras."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np

from suites.models.linear import BOUND, FEATURES, OUTPUTS, START, Array
from suites.running import components, replicas_of

COPY_WARNING = "ignore:__array__ implementation:DeprecationWarning"
"""Warning of NumPy 2 when Keras makes an array of a distributed variable: TensorFlow 2.21 does not take ``copy``."""


@contextmanager
def in_float64() -> Iterator[None]:
    """Build models in float64, because its rounding errors are far smaller than the effect of any defect."""
    from suites.subject import keras

    # These names are the same in Keras 3 and in tf_keras.
    floatx, policy = keras.backend.floatx(), keras.mixed_precision.global_policy()
    keras.backend.set_floatx("float64")
    keras.mixed_precision.set_global_policy("float64")
    yield
    keras.backend.set_floatx(floatx)
    keras.mixed_precision.set_global_policy(policy)


def strategy_of_many_fits(strategy: Any) -> Any:
    """Return the strategy for a model that is trained a hundred times: TensorFlow's own if there is one replica.

    Under ``OneDeviceStrategy``, Keras drops an iterator in each ``fit`` and ``evaluate``, and TensorFlow 2.21 sometimes
    ends the process then (``repros/dropped_iterator.py``). To keep the iterators until the end of the test does not
    help: each is dropped with its thread of autotuning, for which the process may wait for up to a minute
    (``repros/iterator_waits_for_autotune.py``).
    """
    import tensorflow as tf

    return tf.distribute.get_strategy() if replicas_of(strategy) == 1 else strategy


def linear(
    strategy: Any,
    make: Callable[[Any], Any] | None = None,
    optimizer: Callable[[Any], Any] | None = None,
    *,
    rate: float = 0.125,
    **compiled: Any,
) -> Any:
    """Return a compiled model without a bias.

    :param make: builds the model with the Keras that it is given, in place of one layer.
    :param optimizer: builds the optimizer in place of SGD, in the scope too.
    :param compiled: arguments of ``compile``; without them: the mean squared error, and no XLA.
    """
    from suites.subject import keras

    with strategy.scope():
        model = (make or one_layer)(keras)
        chosen = keras.optimizers.SGD(rate) if optimizer is None else optimizer(keras)
        model.compile(chosen, **({"loss": "mse", "jit_compile": False} | compiled))
    return model


def one_layer(keras: Any, **arguments: Any) -> Any:
    """Return a model with one layer, whose weights are known."""
    dense = keras.layers.Dense(OUTPUTS, use_bias=False, name="linear", **arguments)
    model = keras.Sequential([keras.Input((FEATURES,)), dense])
    model.set_weights([START])
    return model


def check_weights(strategy: Any, model: Any, expected: Array, bound: Any = None) -> None:
    """Compare every component of the weights of the layer "linear"."""
    kernel = model.get_layer("linear").kernel
    for part in components(strategy, kernel):
        np.testing.assert_allclose(part, expected, **(bound or BOUND))


def numbers(logs: Mapping[str, Any]) -> dict[str, float]:
    """Return logs as numbers of Python: old versions of Keras give arrays or tensors."""
    return {name: float(value) for name, value in logs.items()}
