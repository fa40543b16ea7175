"""Compare gradients of operations in replicas with their definitions, for arguments of every type that they take."""

from __future__ import annotations

import numpy as np
import pytest

from suites.parameters.spaces import Wrong
from suites.properties.test_values import distributed
from suites.properties.variables import local_replicas

ROWS = np.array([[1.0, 2.0, 4.0], [3.0, -1.5, 0.5]])


def shares(x):
    powers = np.exp(x)
    return powers / powers.sum(axis=1, keepdims=True)


SLOPES = {
    "reduce_sum": np.ones_like,
    "reduce_mean": lambda x: np.full_like(x, 1 / x.shape[1]),
    "reduce_prod": lambda x: x.prod(axis=1, keepdims=True) / x,
    "reduce_max": lambda x: (x == x.max(axis=1, keepdims=True)).astype(float),
    "reduce_logsumexp": shares,
    "math.reduce_variance": lambda x: 2 * (x - x.mean(axis=1, keepdims=True)) / x.shape[1],
    "math.reduce_euclidean_norm": lambda x: x / np.linalg.norm(x, axis=1, keepdims=True),
}
"""Reductions of rows, and the slopes of their sum."""


@pytest.mark.ddl(strategies=["one_device", "mirrored"])
@pytest.mark.ddl_item("loop.gradient_tape")
@pytest.mark.parametrize("how", ["eager", "function"])
@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_an_axis_of_any_type_has_the_same_gradient(dtype, how, ddl_strategy):
    """In a function, neither the shape nor the axis is known while it is traced."""
    import tensorflow as tf

    wrong = Wrong()
    own = distributed(ddl_strategy, lambda replica: ROWS + replica)
    for name, slopes in SLOPES.items():
        reduction = getattr(tf.math, name.removeprefix("math."))

        def gradient(x, axis, reduction=reduction):
            with tf.GradientTape() as tape:
                tape.watch(x)
                total = tf.reduce_sum(reduction(x, axis=axis))
            return tape.gradient(total, x)

        if how == "function":
            known = [tf.TensorSpec([None, None], tf.float64), tf.TensorSpec([None], dtype)]
            gradient = tf.function(gradient, input_signature=known, autograph=False)
        with wrong.of(name):
            axis = tf.constant([1], dtype)
            # A function with a signature takes no value of all replicas (repros/function_with_signature.py).
            found = ddl_strategy.run(lambda x, call=gradient, axis=axis: call(x, axis), args=(own,))
            for replica, part in zip(
                local_replicas(ddl_strategy), ddl_strategy.experimental_local_results(found), strict=True
            ):
                np.testing.assert_allclose(part, slopes(ROWS + replica), rtol=1e-12, atol=1e-12)
    wrong.check()
