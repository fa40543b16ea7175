"""Check evaluate, predict and the methods for one batch, on any number of examples: in closed form."""

from __future__ import annotations

import numpy as np
import pytest

from suites.linear import COPY_WARNING, check_weights, linear, numbers, one_layer
from suites.models.linear import OUTPUTS, START, data, gradient, losses, train

pytestmark = [pytest.mark.usefixtures("float64"), pytest.mark.filterwarnings(COPY_WARNING)]

RATE = 0.125
BATCH = 6
COUNTS = (12, 13, 14, 17, 7)
"""Numbers of examples. The last batch of three replicas is full, or leaves replicas without examples."""


@pytest.mark.ddl(strategies=["one_device", "mirrored[replicas=3]", "central_storage"])
@pytest.mark.ddl_item("fit.predict", keras=">=3.4")
def test_predictions_are_in_the_order_of_the_examples(ddl_strategy):
    """There is one row for each example, and none for padding. Structures of several outputs are kept.

    Keras 3.3 allows no nested outputs.
    """
    from suites.subject import keras

    def two_outputs(keras):
        inner = one_layer(keras)
        inputs = inner.inputs[0]
        return keras.Model(inputs, {"once": inner(inputs), "twice": [keras.layers.Rescaling(2.0)(inner(inputs))]})

    with ddl_strategy.scope():
        model = two_outputs(keras)
    for count in COUNTS:
        given = data(count)
        found = model.predict(given.x, batch_size=BATCH, verbose=0)
        assert found.keys() == {"once", "twice"}
        np.testing.assert_allclose(found["once"], given.x @ START, rtol=1e-12, atol=1e-12)
        np.testing.assert_allclose(found["twice"][0], 2 * given.x @ START, rtol=1e-12, atol=1e-12)


def predictions(strategy):
    model = linear(strategy)
    for count in (12, 13, 7):
        given = data(count)
        found = model.predict(given.x, batch_size=BATCH, verbose=0)
        np.testing.assert_allclose(found, given.x @ START, rtol=1e-12, atol=1e-12)


@pytest.mark.ddl(strategies=["multi_worker_mirrored"], keras="tf_keras")
@pytest.mark.ddl_item("fit.predict")
def test_predictions_are_in_the_order_of_the_examples_in_tf_keras(ddl_strategy):
    """Every rank gets the rows of all."""
    predictions(ddl_strategy)


def evaluation_is_that_of_all_examples(strategy, counts):
    """Check the loss, a metric, and a metric with weights."""
    model = linear(strategy, metrics=["mae"], weighted_metrics=["mse"])
    for count in counts:
        given = data(count)
        got = model.evaluate(
            given.x, given.y, sample_weight=given.weight, batch_size=BATCH, verbose=0, return_dict=True
        )
        errors = given.x @ START - given.y
        weighted = (errors**2).mean(axis=1) @ given.weight / given.weight.sum()
        expected = {"loss": losses(START, given).mean(), "mae": np.abs(errors).mean(), "mse": weighted}
        assert got == pytest.approx(expected, rel=1e-12), count


@pytest.mark.ddl(strategies=["one_device", "mirrored"])
@pytest.mark.ddl_item("fit.evaluate.uneven")
def test_evaluation_is_that_of_all_examples(ddl_strategy):
    evaluation_is_that_of_all_examples(ddl_strategy, COUNTS)


@pytest.mark.ddl(strategies=["mirrored[replicas=3]", "multi_worker_mirrored"], keras="tf_keras")
@pytest.mark.ddl_item("fit.evaluate.uneven")
def test_evaluation_is_that_of_all_examples_in_tf_keras(ddl_strategy):
    evaluation_is_that_of_all_examples(ddl_strategy, (12, 13, 7))


@pytest.mark.ddl(strategies=["one_device", "mirrored", "central_storage"])
@pytest.mark.ddl_item("fit.on_batch")
@pytest.mark.parametrize("how", ["eager", "function"])
def test_methods_for_one_batch(how, ddl_strategy):
    """Replicas have the whole batch, or equal parts of it in tf_keras: their mean is that of the batch."""
    model = linear(ddl_strategy, rate=RATE, metrics=["mae"], run_eagerly=how == "eager")
    weights = START
    for step in range(3):
        given = data(6, seed=step)
        errors = np.abs(given.x @ weights - given.y).mean()
        tested = model.test_on_batch(given.x, given.y, sample_weight=given.weight, return_dict=True)
        expected = {"loss": losses(weights, given).mean(), "mae": errors}
        assert numbers(tested) == pytest.approx(expected, rel=1e-12)
        trained = model.train_on_batch(given.x, given.y, sample_weight=given.weight, return_dict=True)
        assert numbers(trained) == pytest.approx(expected, rel=1e-12)
        weights = weights - RATE * gradient(weights, given)
        check_weights(ddl_strategy, model, weights)
    assert int(model.optimizer.iterations.numpy()) == 3


@pytest.mark.ddl(strategies=["one_device", "mirrored", "central_storage"])
@pytest.mark.ddl_item("fit.on_batch")
def test_one_batch_has_one_row_for_each_example(ddl_strategy):
    given = data(5)
    np.testing.assert_allclose(linear(ddl_strategy).predict_on_batch(given.x), given.x @ START, rtol=1e-12, atol=1e-12)


@pytest.mark.ddl(strategies=["one_device", "mirrored"])
@pytest.mark.ddl_item("fit.on_batch")
def test_class_weights_of_one_batch(ddl_strategy):
    """The weight of an example is that of its class."""

    def logits(keras):
        return keras.Sequential([one_layer(keras), keras.layers.Softmax()])

    model = linear(ddl_strategy, logits, rate=RATE, loss="sparse_categorical_crossentropy")
    given = data(6)
    labels = np.arange(6) % OUTPUTS
    got = model.train_on_batch(given.x, labels, class_weight={0: 0.5, 1: 3.0}, return_dict=True)
    shares = np.exp(given.x @ START)
    shares /= shares.sum(axis=1, keepdims=True)
    each = -np.log(shares[np.arange(6), labels]) * np.where(labels == 0, 0.5, 3.0)
    # Keras cuts probabilities at 1e-7, which none here is near to.
    assert got["loss"] == pytest.approx(each.mean(), rel=1e-12)


@pytest.mark.ddl(strategies=["one_device", "mirrored"])
@pytest.mark.ddl_item("fit.fit.uneven_last", "fit.fit.sgd")
@pytest.mark.parametrize("rest", [2, 4, 5])
def test_an_uneven_last_batch_trains_as_the_mean_of_its_parts(rest, ddl_strategy):
    """Keras divides by the examples of each replica, and then by the replicas. The first replica has more."""
    replicas = ddl_strategy.num_replicas_in_sync
    given = data(2 * BATCH + rest)

    def mean_of_parts(weights, batch):
        size = -(-len(batch) // replicas)
        return np.mean([gradient(weights, part) for part in batch.batches(size)], axis=0)

    model = linear(ddl_strategy, rate=RATE)
    model.fit(given.x, given.y, batch_size=BATCH, epochs=2, shuffle=False, verbose=0)
    batches = list(given.unweighted.batches(BATCH))
    check_weights(ddl_strategy, model, train(batches, [RATE] * 2, gradient=mean_of_parts).weights)


@pytest.mark.ddl(strategies=["mirrored"])
@pytest.mark.ddl_item("fit.fit.uneven_first")
def test_an_uneven_first_batch(ddl_strategy):
    import tensorflow as tf

    given = data(3)
    dataset = tf.data.Dataset.from_tensor_slices((given.x, given.y)).batch(3)
    model = linear(ddl_strategy, rate=RATE)
    model.fit(dataset, shuffle=False, verbose=0)
    parts = [gradient(START, part) for part in given.unweighted.batches(2)]
    check_weights(ddl_strategy, model, START - RATE * np.mean(parts, axis=0))


@pytest.mark.ddl(strategies=["mirrored"])
@pytest.mark.ddl_item("fit.fit.small_batch")
def test_a_last_batch_with_fewer_examples_than_replicas(ddl_strategy):
    """The replica without an example adds no gradient, and the weights stay finite."""
    given = data(BATCH + 1)
    model = linear(ddl_strategy, rate=RATE)
    history = model.fit(given.x, given.y, batch_size=BATCH, shuffle=False, verbose=0).history
    first = START - RATE * gradient(START, given[:BATCH].unweighted)
    mean = np.concatenate([losses(START, given[:BATCH].unweighted), losses(first, given[BATCH:].unweighted)]).mean()
    assert history["loss"] == [pytest.approx(mean, rel=1e-12)]
    last = RATE * gradient(first, given[BATCH:].unweighted) / ddl_strategy.num_replicas_in_sync
    check_weights(ddl_strategy, model, first - last)


@pytest.mark.ddl(strategies=["mirrored"])
@pytest.mark.ddl_item("fit.fit.small_batch")
def test_a_first_batch_with_fewer_examples_than_replicas(ddl_strategy):
    given = data(1)
    model = linear(ddl_strategy, rate=RATE)
    model.fit(given.x, given.y, batch_size=1, verbose=0)
    last = RATE * gradient(START, given.unweighted) / ddl_strategy.num_replicas_in_sync
    check_weights(ddl_strategy, model, START - last)
