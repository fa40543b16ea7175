"""Compare one step of plain SGD on a linear model with the gradient of the whole batch in closed form."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from suites.running import HOW, SIZES, components, each, padded, replicas_of, split, unpadded
from suites.subject import reduction_in_a_loop, value_of, with_mask
from suites.tables.losses import DERIVATIVES, OUTPUTS, REDUCTIONS, gradient, labels_for

# Keras multiplies losses by float32(1 / replicas), which is exact for these numbers of replicas; another test has 3.
STRATEGIES = ["one_device", "mirrored", "multi_worker_mirrored", "central_storage"]
FIT = ["one_device", "mirrored", "central_storage"]
"""Keras 3 does not support fit on several workers."""

Array = np.ndarray[Any, Any]

pytestmark = pytest.mark.usefixtures("float64")

START = np.array([[0.5, -1.0], [0.25, 0.75], [-0.5, 1.5]])
"""First weights of the model."""
BOUND = {"rtol": 1e-12, "atol": 1e-12}
"""Some hundred operations with numbers of about 1, each with an error of 2e-16."""


def batch(rows: int) -> tuple[Array, Array, Array]:
    """Return inputs, labels and weights; those of later examples, and so of later replicas, are larger."""
    draw = np.random.default_rng(rows)
    growth = np.linspace(0.5, 2, rows)
    inputs = draw.normal(size=(rows, 3)) * growth[:, None]
    return inputs, draw.integers(-3, 4, (rows, OUTPUTS)).astype(float), draw.integers(1, 9, rows) / 4 * np.ceil(growth)


def same_sums(rows: int, parts: int) -> Array:
    """Return weights whose sum is the same in each part."""
    return np.tile(batch(rows // parts)[2], parts)


def made(loss: str, **arguments: Any) -> Any:
    from suites.subject import keras

    logits = {"from_logits": True} if loss.endswith("Crossentropy") else {}
    return getattr(keras.losses, loss)(**logits, **arguments)


WITH_MEANS = pytest.mark.ddl_item("loss.reductions", keras=">=3.7")
ALL_REDUCTIONS = [pytest.param(name, marks=[WITH_MEANS] if name.startswith("mean") else []) for name in REDUCTIONS]


class Linear:
    """A linear model under a strategy, and its steps in a loop or in ``fit``."""

    def __init__(self, strategy: Any) -> None:
        from suites.subject import keras

        self.strategy = strategy
        with strategy.scope():
            self.model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(OUTPUTS, use_bias=False)])
            self.model.set_weights([START])
            self.optimizer = keras.optimizers.SGD(1.0)
            self.optimizer.build(self.model.trainable_variables)

    def loop(self, loss: Callable[..., Any], parts: Any, how: str) -> None:
        """Make one step in which each replica has its part: inputs, labels and further arguments of the loss."""
        import tensorflow as tf

        variables = self.model.trainable_variables

        def step(inputs: Any, *given: Any) -> None:
            with tf.GradientTape() as tape:
                value = loss(given[0], self.model(inputs), *given[1:])
            self.optimizer.apply_gradients(zip(tape.gradient(value, variables), variables, strict=True))

        each(self.strategy, unpadded(step), how)(padded(parts))

    def fit(self, loss: Any, inputs: Array, labels: Array, **arguments: Any) -> None:
        with self.strategy.scope():
            self.model.compile(self.optimizer, loss)
        self.model.fit(inputs, labels, batch_size=len(inputs), epochs=1, shuffle=False, verbose=0, **arguments)

    def check(self, update: Array, bound: Any = None) -> None:
        for part in components(self.strategy, self.model.trainable_variables[0]):
            np.testing.assert_allclose(part, START - update, **(bound or BOUND))


def whole(loss: str, reduction: str, inputs: Array, labels: Array, weights: Array) -> Array:
    """Return the gradient of the whole batch."""
    return gradient(inputs, DERIVATIVES[loss](labels, inputs @ START), REDUCTIONS[reduction](weights))


@pytest.mark.ddl(strategies=STRATEGIES)
@pytest.mark.ddl_item("loss.reductions")
@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("loss", DERIVATIVES)
def test_loss_object_in_a_loop_gives_the_gradient_of_the_whole(loss, how, ddl_strategy):
    rows = 2 * replicas_of(ddl_strategy)
    inputs, labels, weights = batch(rows)
    linear = Linear(ddl_strategy)
    parts = split((inputs, labels_for(loss, labels), weights), [2] * replicas_of(ddl_strategy))
    reduction = reduction_in_a_loop()
    linear.loop(made(loss, reduction=reduction), parts, how)
    linear.check(whole(loss, reduction, inputs, labels, weights))


@pytest.mark.ddl(strategies=["mirrored[replicas=4]", "multi_worker_mirrored"])
@pytest.mark.ddl_item("loss.reductions")
@pytest.mark.parametrize("how", ["function"])
@pytest.mark.parametrize("reduction", ALL_REDUCTIONS)
def test_reduction_in_a_loop_is_that_of_the_whole(reduction, how, ddl_strategy):
    """Give all replicas the same sum of weights, for the reduction that divides by it."""
    replicas = replicas_of(ddl_strategy)
    inputs, labels, _ = batch(2 * replicas)
    weights = same_sums(2 * replicas, replicas)
    linear = Linear(ddl_strategy)
    linear.loop(made("MeanSquaredError", reduction=reduction), split((inputs, labels, weights), [2] * replicas), how)
    linear.check(whole("MeanSquaredError", reduction, inputs, labels, weights))


@pytest.mark.ddl(strategies=FIT)
@pytest.mark.ddl_item("loss.reductions")
@pytest.mark.parametrize("how", ["function"])
@pytest.mark.parametrize("reduction", ALL_REDUCTIONS)
def test_reduction_in_fit_is_that_of_the_whole(reduction, how, ddl_strategy):
    replicas = replicas_of(ddl_strategy)
    inputs, labels, _ = batch(2 * replicas)
    weights = same_sums(2 * replicas, replicas)
    linear = Linear(ddl_strategy)
    linear.fit(made("MeanSquaredError", reduction=reduction), inputs, labels, sample_weight=weights)
    linear.check(whole("MeanSquaredError", reduction, inputs, labels, weights))


@pytest.mark.ddl(strategies=["mirrored"])
@WITH_MEANS
def test_mean_divides_by_the_weights_of_the_whole(ddl_strategy):
    """Give the replicas other sums of weights: each one divides by its own."""
    inputs, labels, weights = batch(4)
    assert weights[:2].sum() != weights[2:].sum()
    linear = Linear(ddl_strategy)
    linear.loop(
        made("MeanSquaredError", reduction="mean_with_sample_weight"),
        split((inputs, labels, weights), [2, 2]),
        "function",
    )
    linear.check(whole("MeanSquaredError", "mean_with_sample_weight", inputs, labels, weights))


def per_example(labels: Any, predicted: Any) -> Any:
    from suites.subject import ops

    return ops.mean((labels - predicted) ** 2, axis=-1)


def scalar(labels: Any, predicted: Any) -> Any:
    from suites.subject import ops

    return ops.mean((labels - predicted) ** 2)


@pytest.mark.ddl(strategies=FIT)
@pytest.mark.ddl_item("loss.reductions")
@pytest.mark.parametrize("loss", [per_example, scalar], ids=lambda loss: loss.__name__)
def test_loss_function_in_fit_gives_the_gradient_of_the_whole(loss, ddl_strategy):
    """Most users write a function that returns a scalar, the mean over the batch."""
    inputs, labels, _ = batch(2 * replicas_of(ddl_strategy))
    linear = Linear(ddl_strategy)
    linear.fit(loss, inputs, labels)
    linear.check(whole("MeanSquaredError", "mean", inputs, labels, np.ones(len(inputs))))


@pytest.mark.ddl(strategies=FIT)
@pytest.mark.ddl_item("loss.reductions")
def test_class_weights_in_fit_are_those_of_the_whole(ddl_strategy):
    inputs, labels, _ = batch(2 * replicas_of(ddl_strategy))
    given = {0: 0.5, 1: 3.0}
    chosen = labels[:, 0] % 2
    linear = Linear(ddl_strategy)
    linear.fit(made("SparseCategoricalCrossentropy"), inputs, chosen, class_weight=given)
    weights = np.where(chosen == 1, given[1], given[0])
    linear.check(whole("CategoricalCrossentropy", "sum_over_batch_size", inputs, labels, weights))


MASKS = {"equal": (3, 3), "unequal": (4, 1)}
"""Numbers of examples that count on the two replicas, of four each."""


@pytest.mark.ddl(strategies=["mirrored", "multi_worker_mirrored", "central_storage"])
@pytest.mark.ddl_item("loss.mask", keras=">=3.6")
@pytest.mark.parametrize("how", ["function"])
@pytest.mark.parametrize("valid", MASKS)
def test_masked_loss_is_that_of_the_examples_that_count(valid, how, ddl_strategy):
    inputs, labels, _ = batch(8)
    mask = np.concatenate([np.arange(4) < number for number in MASKS[valid]])
    reduction = reduction_in_a_loop()
    loss = made("MeanSquaredError", reduction=reduction)

    def masked(labels: Any, predicted: Any, mask: Any) -> Any:
        return loss(labels, with_mask(predicted, mask))

    linear = Linear(ddl_strategy)
    linear.loop(masked, split((inputs, labels, mask), [4, 4]), how)
    # Keras before 3.14 adds 1e-7 to the number of examples that count.
    expected = whole("MeanSquaredError", reduction, inputs[mask], labels[mask], np.ones(mask.sum()))
    linear.check(expected, {"rtol": 1e-7, "atol": 1e-7 * np.abs(expected).max()})


@pytest.mark.ddl(strategies=["mirrored", "multi_worker_mirrored", "central_storage"])
@pytest.mark.ddl_item("loss.reductions")
@pytest.mark.parametrize("how", ["function"])
def test_loss_of_uneven_parts_is_the_mean_of_the_means(how, ddl_strategy):
    """Keras divides by the examples of the replica and by the replicas, because a replica does not know the others'."""
    sizes = SIZES[0][:2]
    inputs, labels, _ = batch(sum(sizes))
    linear = Linear(ddl_strategy)
    parts = split((inputs, labels), sizes)
    linear.loop(made("MeanSquaredError"), parts, how)
    linear.check(np.mean([whole("MeanSquaredError", "mean", *part, np.ones(len(part[0]))) for part in parts], axis=0))


@pytest.mark.ddl(strategies=["mirrored[replicas=3]"])
@pytest.mark.ddl_item("loss.reductions")
@pytest.mark.parametrize("how", ["function"])
def test_loss_is_divided_by_three_replicas_in_its_own_precision(how, ddl_strategy):
    inputs, labels, weights = batch(6)
    linear = Linear(ddl_strategy)
    linear.loop(made("MeanSquaredError"), split((inputs, labels, weights), [2, 2, 2]), how)
    linear.check(whole("MeanSquaredError", "mean", inputs, labels, weights))


@pytest.mark.ddl(strategies=["mirrored"])
@pytest.mark.ddl_item("loss.reductions")
def test_loss_out_of_a_replica_is_not_divided(ddl_strategy):
    """The caller of a loss in the scope, but out of run, has the whole batch."""
    inputs, labels, _ = batch(4)
    with ddl_strategy.scope():
        value = made("MeanSquaredError")(labels, inputs @ START)
    np.testing.assert_allclose(value, ((labels - inputs @ START) ** 2).mean(), **BOUND)


@pytest.mark.ddl(strategies=["one_device", "mirrored[replicas=3]", "multi_worker_mirrored", "central_storage"])
@pytest.mark.ddl_item("loss.nn_helpers")
@pytest.mark.parametrize("how", HOW)
def test_average_loss_of_uneven_parts_is_that_of_the_whole(how, ddl_strategy):
    """Give the size of the global batch, which a replica with its part cannot know."""
    import tensorflow as tf

    sizes = SIZES[0][: replicas_of(ddl_strategy)]
    inputs, labels, weights = batch(sum(sizes))

    def loss(labels: Any, predicted: Any, weights: Any) -> Any:
        losses = tf.reduce_mean((labels - predicted) ** 2, axis=-1)
        return tf.nn.compute_average_loss(losses, sample_weight=weights, global_batch_size=sum(sizes))

    linear = Linear(ddl_strategy)
    linear.loop(loss, split((inputs, labels, weights), sizes), how)
    # TensorFlow multiplies with weights and divides in float32: three roundings of 6e-8 of numbers below 10.
    linear.check(whole("MeanSquaredError", "mean", inputs, labels, weights), {"rtol": 2e-7, "atol": 2e-6})


@pytest.mark.ddl(strategies=["one_device", "mirrored[replicas=3]", "multi_worker_mirrored", "central_storage"])
@pytest.mark.ddl_item("loss.nn_helpers")
@pytest.mark.parametrize("how", HOW)
def test_regularization_counts_once(how, ddl_strategy):
    import tensorflow as tf

    inputs, labels, _ = batch(2 * replicas_of(ddl_strategy))
    linear = Linear(ddl_strategy)

    def loss(labels: Any, predicted: Any) -> Any:
        average = tf.nn.compute_average_loss(tf.reduce_mean((labels - predicted) ** 2, axis=-1))
        return average + tf.nn.scale_regularization_loss(0.125 * value_of(linear.model.trainable_variables[0]) ** 2)

    linear.loop(loss, split((inputs, labels), [2] * replicas_of(ddl_strategy)), how)
    linear.check(whole("MeanSquaredError", "mean", inputs, labels, np.ones(len(inputs))) + 0.25 * START)
