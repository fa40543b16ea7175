"""Check mixed precision with numbers that 16 bits hold exactly, so that any rounding shows."""

from __future__ import annotations

import math
from itertools import product

import numpy as np
import pytest

from suites.linear import COPY_WARNING, check_weights, linear
from suites.models.linear import FEATURES, OUTPUTS, START, Data, gradient, losses
from suites.parameters.spaces import Wrong, find
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


LONG = 4097.0
"""A number with more digits than 16 bits hold, as the numbers beside it have."""
CHANGES = {
    "assign": lambda variable, number: variable.assign(number(LONG)),
    "assign_add": lambda variable, number: (variable.assign(number(LONG + 2)), variable.assign_add(number(-2.0))),
    "assign_sub": lambda variable, number: (variable.assign(number(LONG + 2)), variable.assign_sub(number(2.0))),
    "metric": lambda _variable, _number: None,
}
"""Ways in which a layer sets its variable to this number. Each layer also gives the number to a metric."""


@pytest.mark.ddl(strategies=["one_device", "mirrored"])
@pytest.mark.ddl_item("precision.mixed_float16", "precision.mixed_bfloat16")
@pytest.mark.parametrize("how", ["eager", "function"])
@pytest.mark.parametrize("change", CHANGES)
def test_what_a_layer_keeps_has_the_precision_of_its_variables(change, how, ddl_strategy):
    """A layer of 16 bits, also in another one, changes a variable of float32 by a tensor or a number of Python."""
    import tensorflow as tf

    from suites.subject import keras

    class Keeps(keras.layers.Layer):  # type: ignore[misc]
        def __init__(self, number, **given):
            super().__init__(**given)
            self.number = number

        def build(self, _shape):
            self.kept = self.add_weight(shape=(), initializer="zeros", trainable=False, name="kept")
            self.seen = keras.metrics.Mean()

        def call(self, inputs):
            CHANGES[change](self.kept, self.number)
            self.seen.update_state(tf.constant([LONG], "float32"))
            return inputs

    class Outer(keras.layers.Layer):  # type: ignore[misc]
        def __init__(self, inner, **given):
            super().__init__(**given)
            self.inner = inner

        def call(self, inputs):
            return self.inner(inputs)

    wrong = Wrong()
    numbers = {"number": float, "tensor": lambda value: tf.constant(value, "float32")}
    for policy, (form, number) in product(("mixed_float16", "mixed_bfloat16"), numbers.items()):
        with wrong.of(policy, form):
            with ddl_strategy.scope():
                layer = Keeps(number, dtype=policy)
                outer = Outer(layer, dtype=policy) if form == "tensor" else layer
                layer.build((1, 1))
            given = [(np.float32([[one]]),) for one in range(replicas_of(ddl_strategy))]
            for (found,) in each(ddl_strategy, lambda x, outer=outer: (outer(x),), how)(given):
                assert found.dtype == policy.removeprefix("mixed_")
            assert float(layer.seen.result()) == LONG
            for part in components(ddl_strategy, layer.kept):
                assert part.dtype == "float32"
                assert part.item() == (0 if change == "metric" else LONG)
    wrong.check()


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def exponential_below_zero(x):
    return np.where(x > 0, x, np.expm1(x))


FUNCTIONS = {
    "gelu": lambda x: 0.5 * x * np.vectorize(math.erfc)(-x / np.sqrt(2)),
    "silu": lambda x: x * sigmoid(x),
    "sigmoid": sigmoid,
    "log_sigmoid": lambda x: -np.logaddexp(0, -x),
    "softplus": lambda x: np.logaddexp(0, x),
    "mish": lambda x: x * np.tanh(np.logaddexp(0, x)),
    "tanh": np.tanh,
    "elu": exponential_below_zero,
    "celu": exponential_below_zero,
    "selu": lambda x: 1.0507009873554805 * np.where(x > 0, x, 1.6732632423543772 * np.expm1(x)),
    "exponential": np.exp,
    "softsign": lambda x: x / (1 + abs(x)),
    "softmax": lambda x: np.exp(x - np.logaddexp.reduce(x)),
}
"""Functions of layers, and their definitions."""


@pytest.mark.ddl(strategies=["one_device"])
@pytest.mark.ddl_item("layer.Dense")
@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_is_precise_far_from_zero(name, ddl_strategy):
    """Where it is nearly zero, it has as many right digits as elsewhere, so that its slope is right as well."""
    import tensorflow as tf

    x = np.float32([-12, -8, -6, -5, -4, -3, -2, -1, 1, 2, 4, 8])
    function = find(f"activations.{name}")
    if function is None:
        pytest.skip(f"the installed version has no {name}")
    with ddl_strategy.scope():
        found = np.asarray(function(tf.constant(x[None])))[0]
    # In float32, exp(12) has an error of 12 roundings of 6e-8.
    np.testing.assert_allclose(found, FUNCTIONS[name](x.astype("float64")), rtol=1e-5)
