"""Check mixed precision with numbers that 16 bits hold exactly, so that any rounding shows."""

from __future__ import annotations

import numpy as np
import pytest

from suites.linear import COPY_WARNING, check_weights, linear
from suites.models.linear import FEATURES, OUTPUTS, START, Data, gradient, losses
from suites.running import components, each, replicas_of

pytestmark = pytest.mark.filterwarnings(COPY_WARNING)

EXACT = {"rtol": 0, "atol": 0}
POLICIES = [
    pytest.param(name, marks=pytest.mark.ddl_item(f"precision.{name}")) for name in ("mixed_float16", "mixed_bfloat16")
]


def whole_numbers(rows):
    """Return inputs that are small whole numbers, and labels so that all errors are -1, 0 or 1."""
    draw = np.random.default_rng(rows)
    x = draw.integers(-2, 3, (rows, FEATURES)).astype(float)
    return Data(x, x @ START + draw.integers(-1, 2, (rows, OUTPUTS)), np.ones(rows))


@pytest.mark.ddl(strategies=["one_device", "mirrored"])
@pytest.mark.parametrize("policy", POLICIES)
def test_weights_keep_their_precision_in_fit(policy, ddl_strategy):
    """The variables are float32, and what the layer returns has 16 bits. The loss scale changes nothing."""

    def model_of(keras):
        layer = keras.layers.Dense(OUTPUTS, use_bias=False, name="linear", dtype=policy)
        model = keras.Sequential([keras.Input((FEATURES,)), layer])
        model.set_weights([START])
        return model

    given = whole_numbers(8)
    model = linear(ddl_strategy, model_of, rate=0.125)
    layer = model.get_layer("linear")
    assert (layer.variable_dtype, layer.compute_dtype) == ("float32", policy.removeprefix("mixed_"))
    history = model.fit(given.x.astype("float32"), given.y.astype("float32"), batch_size=8, shuffle=False, verbose=0)
    # Halves, quarters and eighths of small whole numbers: all of them are exact in 16 bits.
    assert history.history["loss"] == [losses(START, given).mean()]
    check_weights(ddl_strategy, model, START - 0.125 * gradient(START, given), EXACT)


@pytest.mark.ddl(strategies=["mirrored", "multi_worker_mirrored"])
@pytest.mark.ddl_item("precision.autocast_gradients", "precision.mixed_float16", "precision.mixed_bfloat16")
@pytest.mark.parametrize("how", ["eager", "function"])
def test_gradients_are_added_in_the_precision_of_the_variables(how, ddl_strategy):
    """The replicas' gradients are 4096 and 1, whose sum has more digits than 16 bits hold."""
    import tensorflow as tf

    from suites.subject import keras

    for policy in ("mixed_float16", "mixed_bfloat16"):
        with ddl_strategy.scope():
            layer = keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros", dtype=policy)
            layer.build((None, 1))
            optimizer = keras.optimizers.SGD(1.0)
            optimizer.build(layer.trainable_variables)

        def step(x, layer=layer, optimizer=optimizer):
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(layer(x))
            gradients = tape.gradient(loss, layer.trainable_variables)
            optimizer.apply_gradients(zip(gradients, layer.trainable_variables, strict=True))
            return gradients[0]

        parts = [np.float32([[4096]]), np.float32([[1]])]
        assert replicas_of(ddl_strategy) == len(parts)
        for (found,) in each(ddl_strategy, step, how)([(part,) for part in parts]):
            assert found.dtype == "float32"
        for part in components(ddl_strategy, layer.kernel):
            assert part.item() == -4097
