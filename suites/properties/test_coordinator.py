"""Check the coordinator of parameter servers: what it schedules, its errors, its values by worker, and failures."""

from __future__ import annotations

import numpy as np
import pytest

from pytest_ddl import RankError, current_strategy

SERVERS = "parameter_server"
SEPARATE = "parameter_server[processes=separate]"
here = pytest.mark.ddl(strategies=SERVERS, timeout=60)


@pytest.fixture
def coordinator(ddl_strategy):
    import tensorflow as tf

    return tf.distribute.coordinator.ClusterCoordinator(ddl_strategy)


@pytest.mark.ddl_item("coordinator.schedule", "coordinator.at_least_once", "coordinator.fetch", "coordinator.join")
@here
def test_every_closure_runs_once(coordinator):
    """Each closure adds to an element of its own, so that a lost one and a repeated one both show."""
    import tensorflow as tf

    number = 50
    with coordinator.strategy.scope():
        counts = tf.Variable(tf.zeros([number], tf.int64))

    @tf.function
    def closure(index, factor):
        counts.scatter_add(tf.IndexedSlices(index[None] + 1, index[None]))
        return {"square": index * index, "pair": (index * factor, -index)}

    remote = [
        coordinator.schedule(closure, args=(tf.constant(index, tf.int64),), kwargs={"factor": tf.constant(3, tf.int64)})
        for index in range(number)
    ]
    coordinator.join()
    assert coordinator.done()
    np.testing.assert_array_equal(counts.numpy(), np.arange(number) + 1)
    for index, value in enumerate(coordinator.fetch(remote)):
        assert value == {"square": index * index, "pair": (3 * index, -index)}
    assert coordinator.fetch({"a": remote[3], "b": "as it is"}) == {
        "a": {"square": 9, "pair": (9, -3)},
        "b": "as it is",
    }
    assert remote[4].get()["square"].numpy() == 16


@pytest.mark.ddl_item("coordinator.schedule", "coordinator.done", shows="behavior")
@here
def test_schedule_does_not_wait(coordinator):
    """The closures wait for a variable that changes after all are scheduled."""
    import tensorflow as tf

    with coordinator.strategy.scope():
        gate = tf.Variable(0)

    @tf.function
    def closure(number):
        tf.while_loop(lambda _: tf.equal(gate.read_value(), 0), lambda value: (value,), (number,))
        return number + gate.read_value()

    remote = [coordinator.schedule(closure, args=(tf.constant(number),)) for number in range(4)]
    assert not coordinator.done()
    gate.assign(10)
    assert coordinator.fetch(remote) == [10, 11, 12, 13]
    coordinator.join()
    assert coordinator.done()


@pytest.mark.ddl_item("coordinator.schedule", shows="behavior")
@here
def test_what_schedule_refuses(coordinator):
    import tensorflow as tf

    with pytest.raises(TypeError, match=r"only accepts a `tf\.function` or a concrete function"):
        coordinator.schedule(lambda: 1)
    double = tf.function(lambda value: value * 2)
    value = coordinator.schedule(double, args=(tf.constant(2),))
    with pytest.raises(ValueError, match="RemoteValue"):
        coordinator.schedule(double, args=(value,))
    concrete = double.get_concrete_function(tf.TensorSpec([], tf.int32))
    assert coordinator.fetch(coordinator.schedule(concrete, args=(tf.constant(4),))) == 8
    coordinator.join()


@pytest.fixture
def failing():
    """Return a function that fails for numbers below zero."""
    import tensorflow as tf

    @tf.function
    def root(value):
        tf.debugging.assert_non_negative(value, message="no root")
        return value**0.5

    return root


@pytest.mark.ddl_item("coordinator.join", "coordinator.fetch", shows="behavior")
@here
def test_join_raises_once_and_clears(coordinator, failing):
    import tensorflow as tf

    remote = [coordinator.schedule(failing, args=(tf.constant(value),)) for value in (4.0, -1.0)]
    with pytest.raises(tf.errors.InvalidArgumentError, match="no root"):
        coordinator.join()
    with pytest.raises((tf.errors.InvalidArgumentError, tf.errors.CancelledError)):
        remote[1].fetch()
    with pytest.raises((tf.errors.InvalidArgumentError, tf.errors.CancelledError)):
        remote[1].get()
    coordinator.join()
    assert coordinator.done()
    assert coordinator.fetch(coordinator.schedule(failing, args=(tf.constant(9.0),))) == 3.0
    coordinator.join()


@pytest.mark.ddl_item("coordinator.join")
@here
def test_nothing_runs_after_join_has_raised(coordinator, failing):
    """Closures that were waiting are cancelled.

    A closure that a worker runs when another fails is cancelled too, but its update may be under way to the parameter
    server. So each worker may still complete one.
    """
    import tensorflow as tf

    number, workers = 200, 2
    with coordinator.strategy.scope():
        counts = tf.Variable(tf.zeros([number + 1], tf.int64))

    @tf.function
    def add(index):
        counts.scatter_add(tf.IndexedSlices(tf.ones([1], tf.int64), index[None]))

    def add_many():
        for index in range(number):
            coordinator.schedule(add, args=(tf.constant(index, tf.int64),))
        coordinator.join()

    for _ in range(3):
        coordinator.schedule(failing, args=(tf.constant(-1.0),))
        with pytest.raises(tf.errors.InvalidArgumentError, match="no root"):
            add_many()
        before = counts.numpy()
        coordinator.schedule(add, args=(tf.constant(number, tf.int64),))
        coordinator.join()
        added = counts.numpy() - before
        assert added[number] == 1
        assert set(added) <= {0, 1}
        assert added[:number].sum() <= workers


@pytest.mark.ddl_item("coordinator.done")
@here
def test_nothing_runs_after_done(coordinator):
    """When ``done`` says so, each closure has added its own number. The time limit of the test ends the loop."""
    import tensorflow as tf

    with coordinator.strategy.scope():
        total = tf.Variable(0, dtype="int64")

    @tf.function
    def add(number):
        total.assign_add(number)

    for first in (0, 12):
        for number in range(first, first + 12):
            coordinator.schedule(add, args=(tf.constant(3**number, tf.int64),))
        while not coordinator.done():
            pass
        assert int(total.numpy()) == sum(3**number for number in range(first + 12))


@pytest.mark.ddl_item("coordinator.done", "coordinator.schedule", shows="behavior")
@here
@pytest.mark.parametrize("name", ["done", "schedule"])
def test_other_calls_raise_the_error_too(coordinator, failing, name):
    """The error reaches whichever call comes after it, and only that one. The time limit of the test ends the loop."""
    import tensorflow as tf

    good = tf.constant(4.0)
    call = coordinator.done if name == "done" else lambda: coordinator.schedule(failing, args=(good,))
    coordinator.schedule(failing, args=(tf.constant(-1.0),))

    def repeat():
        while True:
            call()

    with pytest.raises(tf.errors.InvalidArgumentError, match="no root"):
        repeat()
    coordinator.join()
    assert coordinator.fetch(coordinator.schedule(failing, args=(good,))) == 2.0
    coordinator.join()


# TensorFlow warns about its own use of options when a worker gets a distributed dataset.
@pytest.mark.filterwarnings("ignore:To make it possible to preserve tf.data options:UserWarning")
@pytest.mark.ddl_item("coordinator.per_worker_dataset", "coordinator.worker_index")
@here
@pytest.mark.parametrize("source", ["dataset", "function", "distributed", "from_function"])
def test_each_worker_reads_its_own_iterator(coordinator, source):
    """The closures of one worker get the examples of the whole dataset in order, whichever closures those are."""
    import tensorflow as tf

    strategy = coordinator.strategy

    def dataset():
        return tf.data.Dataset.range(100).map(lambda example: example * 7).batch(2, drop_remainder=True)

    given = {
        "dataset": dataset,
        "function": lambda: dataset,
        "distributed": lambda: strategy.experimental_distribute_dataset(dataset()),
        "from_function": lambda: lambda: strategy.distribute_datasets_from_function(lambda context: dataset()),
    }[source]()
    iterator = iter(coordinator.create_per_worker_dataset(given))

    @tf.function
    def closure(iterator):
        index = tf.distribute.coordinator.experimental_get_current_worker_index()
        return index, next(iterator)

    remote = [coordinator.schedule(closure, args=(iterator,)) for _ in range(12)]
    coordinator.join()
    found = [[], []]
    for index, batch in coordinator.fetch(remote):
        found[int(index)].append(np.asarray(batch).tolist())
    assert sum(map(len, found)) == 12
    for batches in found:
        assert sorted(batches) == [[14 * step, 14 * step + 7] for step in range(len(batches))]


@pytest.mark.ddl_item("coordinator.worker_index", shows="behavior")
@here
def test_there_is_no_worker_index_outside_closures(coordinator):
    import tensorflow as tf

    with pytest.raises(RuntimeError, match="Cannot retrieve the worker index"):
        tf.distribute.coordinator.experimental_get_current_worker_index()


@pytest.mark.ddl_item("coordinator.per_worker_value", "coordinator.worker_index")
@here
def test_a_value_for_each_worker(coordinator):
    """A closure gets the component of the worker that runs it, also inside a nest."""
    import tensorflow as tf

    @tf.function
    def make():
        return tf.distribute.coordinator.experimental_get_current_worker_index() * 10 + 3

    values = coordinator._create_per_worker_resources(make)
    assert isinstance(values, tf.distribute.experimental.coordinator.PerWorkerValues)

    @tf.function
    def closure(nest):
        return tf.distribute.coordinator.experimental_get_current_worker_index(), nest["values"], nest["same"]

    remote = [coordinator.schedule(closure, args=({"values": values, "same": tf.constant(5)},)) for _ in range(8)]
    coordinator.join()
    for index, value, same in coordinator.fetch(remote):
        assert (value, same) == (index * 10 + 3, 5)


@pytest.mark.ddl_item("coordinator.run_in_schedule")
@here
def test_run_and_reduce_in_a_closure(coordinator):
    """A worker has one replica here, so its reduction is the value of that replica."""
    import tensorflow as tf

    strategy = coordinator.strategy
    with strategy.scope():
        total = tf.Variable(0, dtype=tf.int64)

    @tf.function
    def closure(value):
        def replica_function():
            total.assign_add(value)
            return value * 2

        found = strategy.run(replica_function)
        return [strategy.reduce(op, found, axis=axis) for op in ("SUM", "MEAN") for axis in (None,)]

    remote = [coordinator.schedule(closure, args=(tf.constant(3**power, tf.int64),)) for power in range(6)]
    coordinator.join()
    assert int(total.numpy()) == sum(3**power for power in range(6))
    assert coordinator.fetch(remote) == [[2 * 3**power] * 2 for power in range(6)]


@pytest.mark.ddl_item("coordinator.numerics")
@here
def test_training_that_is_joined_after_each_step(coordinator):
    """SGD with momentum follows the textbook formula, and counts each step once."""
    import tensorflow as tf

    from suites.subject import keras

    inputs = np.arange(12.0).reshape(4, 3) % 5 - 1.5
    targets = np.array([[1.0], [-2.0], [0.5], [3.0]])
    weights, velocity = np.array([[0.5], [-1.0], [2.0]]), np.zeros([3, 1])
    with coordinator.strategy.scope():
        layer = keras.layers.Dense(1, use_bias=False, dtype="float64")
        layer.build([None, 3])
        layer.kernel.assign(weights)
        optimizer = keras.optimizers.SGD(0.0625, momentum=0.75)
        optimizer.build(layer.trainable_variables)

    def replica_function(row):
        with tf.GradientTape() as tape:
            errors = layer(tf.gather(inputs, [row])) - tf.gather(targets, [row])
            loss = tf.reduce_sum(tf.square(errors))
        variables = layer.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))

    @tf.function
    def step(row):
        coordinator.strategy.run(replica_function, args=(row,))

    for number in range(6):
        row = number % 4
        coordinator.schedule(step, args=(tf.constant(row),))
        coordinator.join()
        gradient = 2 * inputs[row][:, None] * (inputs[row] @ weights - targets[row])
        velocity = 0.75 * velocity - 0.0625 * gradient
        weights = weights + velocity
        assert int(optimizer.iterations.numpy()) == number + 1
    # Each step does about 20 operations, and errors of earlier steps grow by less than 2 each.
    np.testing.assert_allclose(layer.kernel.numpy(), weights, rtol=6 * 20 * 2**6 * np.finfo("float64").eps)


@pytest.mark.ddl_item("coordinator.numerics")
@here
def test_updates_in_any_order_add_up(coordinator):
    """Closures that are not joined add whole numbers, whose sum does not depend on the order."""
    import tensorflow as tf

    with coordinator.strategy.scope():
        weights = tf.Variable(tf.zeros([3], tf.float64))

    @tf.function
    def step(number):
        weights.assign_sub(tf.constant([1.0, 10.0, 100.0], tf.float64) * number)

    for number in range(40):
        coordinator.schedule(step, args=(tf.constant(float(number), tf.float64),))
    coordinator.join()
    np.testing.assert_array_equal(weights.numpy(), -np.array([1.0, 10.0, 100.0]) * sum(range(40)))


def count(number):
    """Schedule closures that read from datasets of the workers, and return what each worker did, and the counts."""
    import tensorflow as tf

    strategy = current_strategy()
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    with strategy.scope():
        counts = tf.Variable(tf.zeros([number], tf.int64))
    iterator = iter(coordinator.create_per_worker_dataset(tf.data.Dataset.range(10**6)))

    @tf.function
    def closure(index, iterator):
        counts.scatter_add(tf.IndexedSlices(index[None] * 0 + 1, index[None]))
        return tf.distribute.coordinator.experimental_get_current_worker_index(), index * 2, next(iterator)

    remote = [coordinator.schedule(closure, args=(tf.constant(i, tf.int64), iterator)) for i in range(number)]
    coordinator.join()
    found = [[int(part) for part in value] for value in coordinator.fetch(remote)]
    return found, counts.numpy().tolist()


@pytest.mark.ddl_item("coordinator.worker_failure", "coordinator.at_least_once", "coordinator.per_worker_dataset")
@pytest.mark.ddl(strategies=SEPARATE, timeout=100)
def test_a_worker_that_is_lost_and_comes_back(ddl_cluster):
    """The others do its work. After its restart, its dataset is made anew, and no closure is lost."""
    number = 40

    def check(found, counts):
        assert [double for _, double, _ in found] == [2 * index for index in range(number)]
        # A closure that had run when its worker was lost may run a second time.
        assert set(counts) <= {1, 2}
        for worker in {worker for worker, _, _ in found}:
            examples = sorted(example for index, _, example in found if index == worker)
            assert len(set(examples)) == len(examples)

    check(*ddl_cluster.run(count, number)[0])
    ddl_cluster.kill("worker:1")
    found, counts = ddl_cluster.run(count, number)[0]
    check(found, counts)
    assert {worker for worker, _, _ in found} == {0}
    ddl_cluster.restart("worker:1")
    check(*ddl_cluster.run(count, number)[0])


@pytest.mark.ddl_item("coordinator.ps_failure", shows="behavior")
@pytest.mark.ddl(strategies=SEPARATE, timeout=100)
def test_a_server_of_variables_that_is_lost(ddl_cluster):
    """The variables are gone, so that the coordinator raises instead of waiting."""
    ddl_cluster.run(count, 2)
    ddl_cluster.kill("ps:0")
    # The message begins with the exception. What follows quotes the source, which may name other ones.
    with pytest.raises(RankError, match=r"^\S*(Unavailable|Aborted)Error on the rank"):
        ddl_cluster.run(count, 2)


def prepare():
    """Run a closure on a variable, and keep both with the strategy. The server of the variable is lost after this."""
    import tensorflow as tf

    strategy = current_strategy()
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    with strategy.scope():
        total = tf.Variable(0, dtype="int64")
    closure = tf.function(lambda number: total.assign_add(number))
    coordinator.schedule(closure, args=(tf.constant(3, tf.int64),))
    coordinator.join()
    # A function is sent to the rank by value, with global variables of its own.
    strategy.kept = coordinator, total, closure
    return int(total.numpy())


def call_until_it_raises(name):
    """Schedule a closure that needs the server, call a method until it raises, and return the name of the error."""
    import tensorflow as tf

    coordinator, _, closure = current_strategy().kept
    one = tf.constant(1, tf.int64)
    calls = {"schedule": lambda: coordinator.schedule(closure, args=(one,)), "join": coordinator.join}
    call = calls.get(name, coordinator.done)
    try:
        coordinator.schedule(closure, args=(one,))
        while True:
            call()
    except tf.errors.OpError as error:
        return type(error).__name__


@pytest.mark.ddl_item("coordinator.ps_failure", shows="behavior")
@pytest.mark.ddl(strategies=SEPARATE, timeout=100)
@pytest.mark.parametrize("name", ["schedule", "join", "done"])
def test_each_call_tells_that_a_server_is_lost(ddl_cluster, name):
    """The time limit of the test ends the loop, and ends a call that waits for ever."""
    assert ddl_cluster.run(prepare) == [3]
    ddl_cluster.kill("ps:0")
    assert ddl_cluster.run(call_until_it_raises, name)[0] in ("UnavailableError", "AbortedError")
