"""Test collectives with time limits and threads, metrics of TensorFlow 1, and programs of several processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading

import numpy as np
import pytest

from suites.properties.test_resolvers import free_address
from suites.properties.test_values import called, distributed, everyone
from suites.properties.variables import local_replicas

HOW = pytest.mark.parametrize("how", ["eager", "function"])


@pytest.mark.ddl(strategies=["mirrored[replicas=3]", "multi_worker_mirrored"], timeout=40)
@pytest.mark.ddl_item("cross_device.options.timeout")
@HOW
def test_a_time_limit_changes_no_value(how, ddl_strategy):
    import tensorflow as tf

    options = tf.distribute.experimental.CommunicationOptions(timeout_seconds=30.0)
    own = distributed(ddl_strategy, lambda replica: [3.0**replica, replica + 1.0])

    def sums(value):
        return tf.distribute.get_replica_context().all_reduce("SUM", tf.identity(value), options=options)

    found = called(how, lambda: ddl_strategy.run(sums, args=(own,)))
    whole = np.sum(everyone(ddl_strategy, lambda replica: [3.0**replica, replica + 1.0]), axis=0)
    for part in ddl_strategy.experimental_local_results(found):
        np.testing.assert_array_equal(part, whole)


# A collective that ends this way ends all later ones of the process.
@pytest.mark.ddl(strategies=["multi_worker_mirrored"], isolation="fresh", timeout=60)
@pytest.mark.ddl_item("cross_device.options.timeout", shows="behavior")
def test_a_rank_that_does_not_come_is_not_waited_for(ddl_strategy):
    import tensorflow as tf

    options = tf.distribute.experimental.CommunicationOptions(timeout_seconds=2.0)
    own = distributed(ddl_strategy, lambda replica: replica + 1.0)

    def sums(value):
        return tf.distribute.get_replica_context().all_reduce("SUM", tf.identity(value), options=options)

    if local_replicas(ddl_strategy) == [0]:
        with pytest.raises(tf.errors.DeadlineExceededError):
            called("function", lambda: ddl_strategy.run(sums, args=(own,)))


@pytest.mark.ddl(strategies=["mirrored[replicas=3]"], isolation="fresh", timeout=60)
@pytest.mark.ddl_item("cross_device.concurrency")
@pytest.mark.parametrize("order", ["one after another", "between"])
def test_collectives_of_two_threads_do_not_mix(order, ddl_strategy, monkeypatch):
    """Each thread has a function and numbers of its own. The second one runs a step while the first one begins one.

    TensorFlow numbers the collectives of each device when a function is called. The test stops the first thread after
    its first device, so that the outcome does not depend on chance. With a lock there, it would go on after a second.
    """
    import tensorflow as tf
    from tensorflow.python.distribute.cross_device_utils import CollectiveKeys

    strategy = ddl_strategy

    def function_of(thread):
        def replica_function(step):
            own = tf.constant(3.0) ** tf.cast(tf.distribute.get_replica_context().replica_id_in_sync_group, "float32")
            return tf.distribute.get_replica_context().all_reduce("SUM", own * (step + 1000.0 * thread))

        function = tf.function(lambda step: strategy.run(replica_function, args=(step,)), autograph=False)

        def call(step):
            found[thread, step] = [
                float(part) for part in strategy.experimental_local_results(function(tf.constant(float(step))))
            ]

        return call

    found = {}
    first, second = map(function_of, (1, 2))
    first(0)
    second(0)
    begun, ended = threading.Event(), threading.Event()
    thread = threading.Thread(target=first, args=(1,))
    original = CollectiveKeys.get_instance_key

    def number(self, group_key, device):
        got = original(self, group_key, device)
        if threading.current_thread() is thread and not begun.is_set():
            begun.set()
            ended.wait(1)
        return got

    monkeypatch.setattr(CollectiveKeys, "get_instance_key", number)
    thread.start()
    if order == "between":
        begun.wait()
    else:
        ended.set()
        thread.join()
    second(1)
    ended.set()
    thread.join()
    whole, replicas = sum(everyone(strategy, lambda replica: 3.0**replica)), strategy.num_replicas_in_sync
    for (number_, step), parts in found.items():
        assert parts == [whole * (step + 1000.0 * number_)] * replicas
    assert begun.is_set()


@pytest.mark.ddl(strategies="one_device", isolation="fresh", timeout=60)
@pytest.mark.ddl_item("rpc.client_server")
def test_functions_that_a_server_offers(ddl_strategy):
    """A client gets the values of a nest, changes a variable of the server, and gets errors with their codes."""
    import tensorflow as tf

    rpc, address = tf.distribute.experimental.rpc, free_address()
    server = rpc.Server.create("grpc", address)
    total = tf.Variable(5, dtype="int64")
    number = tf.TensorSpec([], tf.int64)

    @tf.function(input_signature=[tf.TensorSpec([None], tf.int64), number])
    def scaled(values, factor):
        return {"scaled": values * factor, "sum": tf.reduce_sum(values)}

    @tf.function(input_signature=[number])
    def add(value):
        tf.debugging.assert_positive(value, message="not positive")
        return total.assign_add(value)

    server.register("scaled", scaled)
    server.register("add", add)
    server.start()
    client = rpc.Client.create("grpc", address=address, name="client", timeout_in_ms=20_000)
    specs = {"scaled": tf.TensorSpec([None], tf.int64), "sum": number}
    for factor in (3, 7):
        found = client.call("scaled", [tf.constant([1, 10, 100], tf.int64), tf.constant(factor, tf.int64)], specs)
        assert found.is_ok()
        value = found.get_value()
        assert (value["scaled"].numpy().tolist(), int(value["sum"])) == ([factor, 10 * factor, 100 * factor], 111)
    for given, expected in ((3, 8), (9, 17)):
        assert int(client.call("add", [tf.constant(given, tf.int64)], number).get_value()) == expected
    assert int(total.numpy()) == 17
    wrong = client.call("add", [tf.constant(-1, tf.int64)], number)
    assert not wrong.is_ok()
    assert wrong.get_error()[0] == tf.errors.INVALID_ARGUMENT
    assert client.call("missing", [], number).get_error()[0] != 0


@pytest.mark.ddl_item("dtensor.multi_client")
def test_clients_of_one_mesh():
    """Each of two processes gives the shards of its two devices, and gets the sum of all four."""
    jobs = ",".join(free_address() for _ in range(2))
    own = {"DTENSOR_JOB_NAME": "worker", "DTENSOR_JOBS": jobs, "DTENSOR_NUM_CLIENTS": "2"}
    clients = [
        subprocess.Popen(
            [sys.executable, "-m", "suites.properties.dtensor_client"],
            env={**os.environ, **own, "DTENSOR_CLIENT_ID": str(number)},
            stdout=subprocess.PIPE,
            text=True,
        )
        for number in range(2)
    ]
    try:
        told = [json.loads(client.communicate(timeout=120)[0].splitlines()[-1]) for client in clients]
    finally:
        for client in clients:
            client.kill()
    whole = np.array([[3.0**shard, shard + 1.0] for shard in range(4)])
    for number, found in enumerate(told):
        assert found["client"] == [number, 2, 4]
        assert found["own"] == whole[2 * number : 2 * number + 2].tolist()
        assert found["sum"] == [(whole**2).sum(axis=0).tolist()] * 2


@pytest.mark.ddl(strategies=["one_device", "mirrored[replicas=3]"], isolation="fresh", timeout=60)
@pytest.mark.ddl_item("variables.metrics_v1")
def test_metrics_of_tensorflow_1_are_those_of_the_whole(ddl_strategy):
    """The replicas have batches of other values and weights; a session runs the updates, then reads the results."""
    import tensorflow as tf

    v1, replicas, steps = tf.compat.v1, ddl_strategy.num_replicas_in_sync, 3
    draw = np.random.default_rng(5)
    labels, found = draw.integers(0, 3, (2, steps, replicas, 4))
    weights = draw.integers(1, 5, (steps, replicas, 4)).astype("float32")
    with tf.Graph().as_default(), ddl_strategy.scope():
        step = v1.placeholder(tf.int32, [])

        def own(array):
            replica = tf.distribute.get_replica_context().replica_id_in_sync_group
            return tf.gather(tf.gather(tf.constant(array), step), replica)

        def metrics():
            y, p, w = own(labels), own(found), own(weights)
            return {
                "mean": v1.metrics.mean(p, w),
                "accuracy": v1.metrics.accuracy(y, p, w),
                "mse": v1.metrics.mean_squared_error(tf.cast(y, "float32"), tf.cast(p, "float32")),
            }

        pairs = ddl_strategy.run(metrics)
        results = {name: ddl_strategy.experimental_local_results(pair[0])[0] for name, pair in pairs.items()}
        updates = [ddl_strategy.experimental_local_results(pair[1]) for pair in pairs.values()]
        config = v1.ConfigProto(device_count={"CPU": replicas})
        with v1.Session(config=config) as session:
            session.run([v1.local_variables_initializer(), v1.global_variables_initializer()])
            for number in range(steps):
                session.run(updates, {step: number})
            got = session.run(results)
    expected = {
        "mean": (found * weights).sum() / weights.sum(),
        "accuracy": ((labels == found) * weights).sum() / weights.sum(),
        "mse": ((labels - found) ** 2).mean(),
    }
    # Sums of small whole numbers are exact in float32: one division rounds.
    assert got == pytest.approx(expected, rel=2e-7)
