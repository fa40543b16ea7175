"""Check loops that programs write themselves: functions in functions, control flow, and metrics of Keras in them."""

from __future__ import annotations

import numpy as np
import pytest

from suites.linear import COPY_WARNING, check_weights, one_layer
from suites.models.linear import START, data, losses, train
from suites.properties.test_values import distributed, everyone
from suites.properties.variables import local_replicas
from suites.running import components

STRATEGIES = ["one_device", "mirrored[replicas=3]", "multi_worker_mirrored"]
pytestmark = [pytest.mark.ddl(strategies=STRATEGIES, timeout=60), pytest.mark.filterwarnings(COPY_WARNING)]
HOW = pytest.mark.parametrize("how", ["eager", "function"])


def sequence(replica, step):
    """Return the number of times that a replica goes round in a step, and what it adds each time."""
    return replica + step + 1, 3.0**replica + step


@pytest.mark.ddl_item("loop.nested_functions", "strategy.run.eager_vs_function")
@pytest.mark.ddl(strategies=[*STRATEGIES, "central_storage"], timeout=60)
@HOW
def test_functions_in_functions_with_loops_of_their_own(how, ddl_strategy):
    """Each replica goes round as often as its own value says, and takes the branch that its own value chooses."""
    import tensorflow as tf

    strategy, steps = ddl_strategy, 3
    given = [
        tuple(distributed(strategy, lambda replica, at=at, step=step: sequence(replica, step)[at]) for at in (0, 1))
        for step in range(steps)
    ]

    @tf.function
    def looped(times, value):
        return tf.while_loop(lambda i, _: i < times, lambda i, sum_: (i + 1, sum_ + value), (0.0, 0.0))[1]

    @tf.function
    def chosen(times, value):
        found = looped(tf.cast(times, "float32"), tf.cast(value, "float32"))
        return tf.cond(found > 10.0, lambda: -found, lambda: found)

    def step(times, value):
        return strategy.run(tf.function(chosen) if how == "function" else chosen, args=(times, value))

    outer = tf.function(step) if how == "function" else step
    for number, pair in enumerate(given):
        expected = [times * value for times, value in (sequence(replica, number) for replica in range(9))]
        found = [float(part) for part in strategy.experimental_local_results(outer(*pair))]
        assert found == [
            -expected[replica] if expected[replica] > 10 else expected[replica] for replica in local_replicas(strategy)
        ]


@pytest.mark.ddl_item("loop.nested_functions")
@HOW
def test_a_function_that_runs_many_steps(how, ddl_strategy):
    """One call of a function runs three steps. Each adds to a state of the replica, and to a sum of all replicas."""
    import tensorflow as tf

    strategy = ddl_strategy
    reads, sums = tf.VariableSynchronization.ON_READ, tf.VariableAggregation.SUM
    with strategy.scope():
        own = tf.Variable(0.0, trainable=False, synchronization=reads, aggregation=sums)
        shared = tf.Variable(1.0, trainable=False, aggregation=sums)
    given = distributed(strategy, lambda replica: 3.0**replica, "float32")

    @tf.function
    def count(value):
        own.assign_add(value)
        return own.read_value()

    def replica_function(value):
        shared.assign_add(value * count(value))

    def steps(value):
        # AutoGraph makes this a loop of the graph.
        for _ in tf.range(3):
            strategy.run(replica_function, args=(value,))

    (tf.function(steps) if how == "function" else steps)(given)
    values = np.array(everyone(strategy, lambda replica: 3.0**replica))
    expected = 1 + sum((values * number * values).sum() for number in (1, 2, 3))
    for replica, part in zip(local_replicas(strategy), strategy.experimental_local_results(own), strict=True):
        assert float(part.read_value()) == 3 * 3.0**replica
    for part in strategy.experimental_local_results(shared):
        assert float(part.read_value()) == expected


BATCH, RATE = 12, 0.125
"""2 and 3 replicas divide it."""
TRAIN, VALIDATION = data(3 * BATCH).unweighted, data(2 * BATCH + 5, seed=1).unweighted


@pytest.mark.usefixtures("float64")
@pytest.mark.ddl_item("loop.metrics_in_loop", "loop.nested_functions", "metric.contexts")
@pytest.mark.parametrize("over", ["steps", "epochs"])
# TensorFlow warns about its own use of options when a tf.function gets a distributed dataset.
@pytest.mark.filterwarnings("ignore:To make it possible to preserve tf.data options:UserWarning")
def test_metrics_of_a_loop_are_those_of_all_examples(over, ddl_strategy):
    """A function for each step, or for each epoch. No number of replicas divides the last batch of the validation."""
    import tensorflow as tf
    from tensorflow import keras

    strategy = ddl_strategy
    with strategy.scope():
        model, optimizer = one_layer(keras), keras.optimizers.SGD(RATE)
        optimizer.build(model.trainable_variables)
        mean, error = keras.metrics.Mean(), keras.metrics.MeanAbsoluteError()
    kernel = model.get_layer("linear").kernel

    def examples(given):
        whole = tf.data.Dataset.from_tensor_slices((given.x, given.y)).batch(BATCH)
        return strategy.experimental_distribute_dataset(whole)

    def update(x, y):
        predicted = model(x)
        loss = tf.reduce_mean((predicted - y) ** 2, axis=1)
        mean.update_state(loss)
        error.update_state(y, predicted)
        return loss

    def train_step(x, y):
        with tf.GradientTape() as tape:
            loss = tf.nn.compute_average_loss(update(x, y), global_batch_size=BATCH)
        variables = model.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))

    def looped(step):
        if over == "steps":
            function = tf.function(lambda x, y: strategy.run(step, args=(x, y)), autograph=False)

            def by_step(batches):
                for batch in batches:
                    function(*batch)

            return by_step

        @tf.function
        def by_epoch(batches):
            for batch in batches:
                strategy.run(step, args=batch)

        return by_epoch

    def evaluate_step(x, y):
        update(x, y)

    training, evaluating = looped(train_step), looped(evaluate_step)
    weights = START
    for _ in range(2):
        training(examples(TRAIN))
        epoch = train(list(TRAIN.batches(BATCH)), [RATE], start=weights)
        assert float(mean.result()) == pytest.approx(epoch.loss[0], rel=1e-12)
        weights = epoch.weights
        check_weights(strategy, model, weights)
        for metric in (mean, error):
            metric.reset_state()
        evaluating(examples(VALIDATION))
        assert float(mean.result()) == pytest.approx(losses(weights, VALIDATION).mean(), rel=1e-12)
        away = np.abs(VALIDATION.x @ weights - VALIDATION.y).mean()
        assert float(error.result()) == pytest.approx(away, rel=1e-12)
        for metric in (mean, error):
            metric.reset_state()
    assert len({part.tobytes() for part in components(strategy, kernel)}) == 1


@pytest.mark.usefixtures("float64")
@pytest.mark.ddl(strategies=["one_device"], keras="keras", timeout=60)
@pytest.mark.ddl_item("loop.keras_distribution", shows="parity")
def test_a_distribution_of_keras_changes_nothing(ddl_strategy):
    """Keras distributes with JAX only. With TensorFlow, it lists the devices and trains as on one of them."""
    import keras
    import tensorflow as tf

    devices = keras.distribution.list_devices("cpu")
    assert devices == [f"cpu:{number}" for number in range(len(tf.config.list_logical_devices("CPU")))]
    model = one_layer(keras)
    model.compile(keras.optimizers.SGD(RATE), "mse", jit_compile=False)
    with keras.distribution.DataParallel(devices=devices).scope():
        inside = one_layer(keras)
        inside.compile(keras.optimizers.SGD(RATE), "mse", jit_compile=False)
        inside.fit(TRAIN.x, TRAIN.y, batch_size=BATCH, shuffle=False, verbose=0)
    model.fit(TRAIN.x, TRAIN.y, batch_size=BATCH, shuffle=False, verbose=0)
    expected = train(list(TRAIN.batches(BATCH)), [RATE]).weights
    for trained in (model, inside):
        np.testing.assert_allclose(trained.get_weights()[0], expected, rtol=1e-12, atol=1e-12)
