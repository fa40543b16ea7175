"""Defects of Keras 3 in variables, losses, metrics, optimizers and layers."""

from __future__ import annotations

import numpy as np
import pytest

from suites.running import each, split

pytestmark = pytest.mark.filterwarnings("ignore")
"""Old versions warn about what newer packages changed, which is not what a test here is about."""


@pytest.mark.ddl_regression("1")
@pytest.mark.ddl_item("layer.Dropout_family")
@pytest.mark.ddl(strategies="mirrored")
def test_1_dropout_is_made_in_a_scope(ddl_strategy):
    import keras

    rate, number = 0.25, 4000
    with ddl_strategy.scope():
        layer = keras.layers.Dropout(rate)
    ones = np.ones((2, number), np.float32)
    for (found,) in each(ddl_strategy, lambda one: layer(one, training=True), "function")(split((ones,), [1, 1])):
        kept = np.count_nonzero(found)
        np.testing.assert_allclose(np.asarray(found)[np.asarray(found) != 0], 1 / (1 - rate), rtol=1e-6)
        # Five standard deviations of a binomial number.
        assert abs(kept - number * (1 - rate)) < 5 * np.sqrt(number * rate * (1 - rate))


@pytest.mark.ddl_regression("2")
@pytest.mark.ddl_item("metric.long")
@pytest.mark.ddl(strategies="mirrored")
def test_2_a_metric_counts_each_example_once(ddl_strategy):
    import keras

    with ddl_strategy.scope():
        metric = keras.metrics.Sum()
    step = each(ddl_strategy, metric.update_state, "function")
    values = np.float32([[3, 8, -2], [1, 16, 5]])
    for number in range(1, 9):
        step(split((values,), [1, 1]))
        # Whole numbers below 2**24 have no rounding error.
        np.testing.assert_array_equal(metric.result(), number * values.sum(), err_msg="sum of all steps")


@pytest.mark.ddl_regression("3")
@pytest.mark.ddl_item("fit.fit.history")
@pytest.mark.ddl(strategies="mirrored")
def test_3_fit_shows_the_loss_of_constant_data(ddl_strategy):
    """A state that the replicas add to each other is infinite in float32 after 128 steps."""
    import keras

    with ddl_strategy.scope():
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1, kernel_initializer="ones")])
        model.compile(keras.optimizers.SGD(0.0), "mse", metrics=["mae"])
    inputs, labels = np.ones((300, 3), np.float32), np.full((300, 1), 5, np.float32)
    history = model.fit(inputs, labels, batch_size=2, verbose=0).history
    found = [history["loss"][0], history["mae"][0]]
    np.testing.assert_array_equal(found, [(5 - 3) ** 2, 5 - 3], err_msg="loss and error of constant data")


@pytest.mark.ddl_regression("6")
@pytest.mark.ddl_item("loss.reductions")
@pytest.mark.ddl(strategies="mirrored")
def test_6_a_loss_is_divided_by_the_replicas(ddl_strategy):
    """The sum over the replicas is the loss of the whole batch, without a division in the loop."""
    import keras

    labels, predicted = np.float32([[1, 2], [3, 4]]), np.float32([[2, 4], [6, 8]])
    with ddl_strategy.scope():
        loss = keras.losses.MeanSquaredError()
    parts = each(ddl_strategy, loss, "function")(split((labels, predicted), [1, 1]))
    found = sum(float(part) for (part,) in parts)
    np.testing.assert_array_equal(found, np.mean((labels - predicted) ** 2), err_msg="loss of the whole")


@pytest.mark.ddl_regression("17")
@pytest.mark.ddl_item("optimizer.loss_scale", "optimizer.iterations")
@pytest.mark.ddl(strategies="mirrored")
def test_17_the_outer_optimizer_counts_steps(ddl_strategy):
    import keras
    import tensorflow as tf

    with ddl_strategy.scope():
        weight = keras.Variable([1.0, 2.0])
        optimizer = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.5), initial_scale=8.0)
        optimizer.build([weight])
    step = each(ddl_strategy, lambda part: optimizer.apply_gradients([(part[0], weight)]), "function")
    for number in range(1, 4):
        step(split((np.float32([[8, 16], [24, -8]]),), [1, 1]))
        assert int(tf.convert_to_tensor(optimizer.iterations)) == number, "number of steps"


@pytest.mark.ddl_regression("25")
@pytest.mark.ddl_item("layer.BatchNormalization_local_statistics")
@pytest.mark.ddl(strategies="mirrored")
def test_25_a_mask_for_whole_examples_masks_all_their_rows(ddl_strategy):
    import keras

    with ddl_strategy.scope():
        layer = keras.layers.BatchNormalization()
        layer.build((None, 5, 2))
    inputs = np.random.default_rng(0).normal([3, -1], [1, 4], (8, 5, 2)).astype(np.float32)
    inputs[4:] += 2
    mask = np.array([[1], [1], [0], [1], [0], [0], [1], [1]], bool)

    def call(inputs, mask):
        return layer(inputs, training=True, mask=mask)

    found = each(ddl_strategy, call, "function")(split((inputs, mask), [4, 4]))
    for number, (part,) in enumerate(found):
        own, chosen = np.split(inputs, 2)[number], np.split(mask, 2)[number][:, 0]
        mean, variance = own[chosen].mean(axis=(0, 1)), own[chosen].var(axis=(0, 1))
        expected = (own - mean) / np.sqrt(variance + layer.epsilon)
        # Keras adds 1e-7 to the number of rows; sums of 20 float32 numbers have errors of some 1e-6.
        np.testing.assert_allclose(part, expected, rtol=1e-5, atol=1e-5, err_msg="normalized by the rows that count")


@pytest.mark.ddl_regression("37")
@pytest.mark.ddl_item("loop.guide")
@pytest.mark.ddl(strategies="mirrored", timeout=120)
def test_37_the_loop_of_the_tutorial_ends(ddl_strategy):
    """Lion moves by the sign of the gradient, because Keras 3.4 did not add up the gradients of the replicas."""
    import keras
    import tensorflow as tf

    with ddl_strategy.scope():
        model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")])
        optimizer = keras.optimizers.Lion(1.0)
        optimizer.build(model.trainable_variables)
    inputs = np.random.default_rng(0).uniform(1, 2, (24, 2)).astype(np.float32)
    data = ddl_strategy.experimental_distribute_dataset(tf.data.Dataset.from_tensor_slices(inputs).batch(4))

    def train_step(inputs):
        with tf.GradientTape() as tape:
            loss = tf.nn.compute_average_loss(model(inputs, training=True), global_batch_size=4)
        variables = model.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))

    step = tf.function(lambda batch: ddl_strategy.run(train_step, args=(batch,)))
    for _epoch in range(3):
        for batch in data:
            step(batch)
    np.testing.assert_array_equal(model.get_weights()[0], np.full((2, 1), -18), err_msg="weights after 18 steps")
