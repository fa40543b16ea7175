"""Check what users add to a model: losses of layers, losses of their own, and settings between trainings."""

from __future__ import annotations

import numpy as np
import pytest

from suites import subject
from suites.linear import COPY_WARNING, check_weights, linear, one_layer
from suites.models.linear import FEATURES, OUTPUTS, START, data, gradient, losses, train
from suites.running import components

pytestmark = [pytest.mark.usefixtures("float64"), pytest.mark.filterwarnings(COPY_WARNING)]

KERAS_3 = ["one_device", "mirrored"]
BATCH, RATE = 6, 0.125
TRAIN = data(4 * BATCH).unweighted
BATCHES = list(TRAIN.batches(BATCH))
GIVEN = {"batch_size": BATCH, "shuffle": False, "verbose": 0}


def with_penalty(weights, batch):
    """Return the gradient of the loss and of half the mean, over the examples, of the squares of the outputs."""
    return gradient(weights, batch) + batch.x.T @ (batch.x @ weights) / len(batch)


def penalized(kind):
    """Return a function that builds a linear model with this penalty, as a loss of a layer or as a regularizer."""

    def make(keras):
        from suites.subject import ops

        class Penalty(keras.layers.Layer):
            def call(self, x):
                self.add_loss(0.5 * ops.mean(ops.sum(x**2, axis=-1)))
                return x

        if kind == "add_loss":
            model = keras.Sequential([*one_layer(keras).layers, Penalty()])
            model.build((None, FEATURES))
        else:
            model = one_layer(keras, activity_regularizer=keras.regularizers.L2(0.5))
        model.set_weights([START])
        return model

    return make


@pytest.mark.ddl(strategies=KERAS_3)
@pytest.mark.ddl_item("fit.compute_loss")
@pytest.mark.parametrize("kind", ["add_loss", "activity"])
def test_a_penalty_of_outputs_is_that_of_the_whole(kind, ddl_strategy):
    """Each replica adds the mean over its examples. All have as many, so that the mean of the means is that of all."""
    model = linear(ddl_strategy, penalized(kind), rate=RATE)
    history = model.fit(TRAIN.x, TRAIN.y, **GIVEN).history
    trained = train(BATCHES, [RATE], gradient=with_penalty)
    check_weights(ddl_strategy, model, trained.weights)
    weights, told = START, []
    for batch in BATCHES:
        told.append(losses(weights, batch).mean() + 0.5 * ((batch.x @ weights) ** 2).sum(axis=1).mean())
        weights = weights - RATE * with_penalty(weights, batch)
    np.testing.assert_allclose(history["loss"], [np.mean(told)], rtol=1e-12)


@pytest.mark.ddl(strategies=KERAS_3)
@pytest.mark.ddl_item("loss.reductions")
def test_a_class_of_the_user_is_a_loss(ddl_strategy):
    from suites.subject import keras, ops

    class Own(keras.losses.Loss):
        def call(self, y_true, y_pred):
            return ops.mean((y_true - y_pred) ** 2, axis=-1)

    with ddl_strategy.scope():
        own = Own()
    model = linear(ddl_strategy, rate=RATE, loss=own)
    history = model.fit(TRAIN.x, TRAIN.y, **GIVEN).history
    trained = train(BATCHES, [RATE])
    np.testing.assert_allclose(history["loss"], trained.loss, rtol=1e-12)
    check_weights(ddl_strategy, model, trained.weights)


@pytest.mark.ddl(strategies=KERAS_3)
@pytest.mark.ddl_item("fit.compute_loss")
def test_a_model_computes_its_own_loss(ddl_strategy):
    """The model triples the loss that Keras computes. Gradients have the factor, and logs too."""

    def tripled(keras):
        class Own(keras.Sequential):
            def compute_loss(self, *args, **kwargs):
                return 3 * super().compute_loss(*args, **kwargs)

        model = Own([keras.Input((FEATURES,)), keras.layers.Dense(OUTPUTS, use_bias=False, name="linear")])
        model.set_weights([START])
        return model

    model = linear(ddl_strategy, tripled, rate=RATE)
    history = model.fit(TRAIN.x, TRAIN.y, **GIVEN).history
    trained = train(BATCHES, [3 * RATE])
    check_weights(ddl_strategy, model, trained.weights)
    # tf_keras reports the loss with which it was compiled.
    factor = 3 if subject.name() == subject.KERAS_3 else 1
    np.testing.assert_allclose(history["loss"], factor * np.array(trained.loss), rtol=1e-12)


@pytest.mark.ddl(strategies=KERAS_3)
@pytest.mark.ddl_item("optimizer.lr_schedule", "fit.fit.sgd")
def test_weights_and_rates_that_are_set_between_fits(ddl_strategy):
    """The step was traced before. It must read the new values, on each replica."""
    model = linear(ddl_strategy, rate=RATE)
    for number, rate in enumerate((RATE, RATE / 4, RATE * 2)):
        with ddl_strategy.scope():
            model.optimizer.learning_rate = rate
            model.set_weights([START * (number + 1)])
        model.fit(TRAIN.x, TRAIN.y, **GIVEN)
        check_weights(ddl_strategy, model, train(BATCHES, [rate], start=START * (number + 1)).weights)
    assert int(model.optimizer.iterations.numpy()) == 3 * len(BATCHES)


@pytest.mark.ddl(strategies=KERAS_3)
@pytest.mark.ddl_item("fit.fit.steps_per_execution", "optimizer.lr_schedule", "optimizer.iterations")
@pytest.mark.parametrize(("steps", "unrolled"), [(2, 1), (3, 1), (3, 2)])
# Keras before 3.7 warns after an execution of fewer steps. It has trained all of them.
@pytest.mark.filterwarnings("ignore:Your input ran out of data:UserWarning")
def test_a_schedule_counts_each_step_of_an_execution(steps, unrolled, ddl_strategy):
    """Every step has a rate of its own. The second execution of three steps has one step."""
    rates = [0.5, 0.25, 0.125, 0.0625]

    def scheduled(keras):
        return keras.optimizers.SGD(keras.optimizers.schedules.PiecewiseConstantDecay([0, 1, 2], rates))

    model = linear(ddl_strategy, optimizer=scheduled, steps_per_execution=steps)
    model.unrolled_steps_per_execution = unrolled
    model.fit(TRAIN.x, TRAIN.y, **GIVEN)
    weights = START
    for batch, rate in zip(BATCHES, rates, strict=True):
        weights = weights - rate * gradient(weights, batch)
    check_weights(ddl_strategy, model, weights)
    for part in components(ddl_strategy, model.optimizer.iterations):
        assert int(part) == len(BATCHES)


@pytest.mark.ddl(strategies=["one_device", "mirrored[replicas=3]"])
@pytest.mark.ddl_item("fit.predict", "fit.evaluate.uneven")
@pytest.mark.parametrize("count", [1, 2])
def test_fewer_examples_than_replicas_are_predicted_and_evaluated(count, ddl_strategy):
    """The first batch leaves replicas without an example."""
    given = data(count).unweighted
    model = linear(ddl_strategy, metrics=["mae"])
    found = model.predict(given.x, batch_size=BATCH, verbose=0)
    np.testing.assert_allclose(found, given.x @ START, rtol=1e-12, atol=1e-12)
    got = model.evaluate(given.x, given.y, batch_size=BATCH, verbose=0, return_dict=True)
    assert got["mae"] == pytest.approx(np.abs(given.x @ START - given.y).mean(), rel=1e-12)


def everywhere(strategy, parts):
    """Return what the replicas of all ranks have, from the parts of this one."""
    import tensorflow as tf

    left = iter(parts)
    own = strategy.experimental_distribute_values_from_function(lambda _: tf.constant(next(left))[None])
    return list(strategy.gather(own, axis=0).numpy())


@pytest.mark.ddl(strategies=["one_device", "mirrored[replicas=3]", "multi_worker_mirrored"], keras="keras")
@pytest.mark.ddl_item("precision.overwrite_with_gradient")
@pytest.mark.parametrize("how", ["eager", "function"])
def test_variables_that_gradients_overwrite_are_equal_on_replicas(how, ddl_strategy):
    """The replicas give different values, as for scales of float8, and all keep one value. Others train as usual."""
    from suites.running import each, replicas_of
    from suites.subject import keras

    with ddl_strategy.scope():
        scale, weight = keras.Variable([1.0, 2.0]), keras.Variable([4.0, 8.0])
        scale.overwrite_with_gradient = True
        optimizer = keras.optimizers.SGD(RATE)
        optimizer.build([scale, weight])

    def apply(new, change):
        optimizer.apply_gradients([(new, scale), (change, weight)])

    replicas = range(replicas_of(ddl_strategy))
    given = [(np.array([3.0**replica, replica + 5.0]), np.array([replica + 1.0, 2.0])) for replica in replicas]
    low, high = np.min([new for new, _ in given], axis=0), np.max([new for new, _ in given], axis=0)
    whole = np.sum([change for _, change in given], axis=0)
    step = each(ddl_strategy, apply, how)
    for number in (1, 2):
        step(given)
        parts = everywhere(ddl_strategy, components(ddl_strategy, scale))
        assert len({part.tobytes() for part in parts}) == 1, parts
        assert ((low <= parts[0]) & (parts[0] <= high)).all(), parts
        for part in components(ddl_strategy, weight):
            np.testing.assert_allclose(part, np.array([4.0, 8.0]) - number * RATE * whole, rtol=1e-12)
