"""Check options and sources of distributed datasets, their reduction, and iterators in checkpoints."""

from __future__ import annotations

from itertools import chain

import numpy as np
import pytest

from pytest_ddl import current_rank, current_strategy
from suites.properties.inputs import MODES, epoch, flat, ids, joined
from suites.properties.test_input_iterators import BATCH, NUMBER, counted, expected

ONE_AND_SEVERAL = ["one_device", "mirrored", "mirrored[replicas=3]", "multi_worker_mirrored"]
SEVERAL = ["mirrored", "mirrored[replicas=3]", "multi_worker_mirrored"]


def options(**given):
    import tensorflow as tf

    return tf.distribute.InputOptions(**{f"experimental_{name}": value for name, value in given.items()})


@pytest.mark.ddl_item("input.options.fetch", "input.options.buffer")
@pytest.mark.ddl(strategies=SEVERAL)
@pytest.mark.parametrize(
    "given", [{"fetch_to_device": True}, {"fetch_to_device": False}, {"per_replica_buffer_size": 3}], ids=str
)
def test_options_change_only_the_placement(ddl_strategy, given):
    """Pieces lie on the devices of their replicas, or on the host. Values and order are those without options."""
    distributed = ddl_strategy.experimental_distribute_dataset(counted(), options(**given))
    assert ids(epoch(ddl_strategy, distributed)) == expected(ddl_strategy)
    parts = ddl_strategy.experimental_local_results(next(iter(distributed)))
    on_host = not given.get("fetch_to_device", True)
    for part, device in zip(parts, ddl_strategy.extended.worker_devices, strict=True):
        assert part.device == (device.rpartition("/")[0] + "/device:CPU:0" if on_host else device)


@pytest.mark.ddl_item("input.options.per_replica")
@pytest.mark.ddl(strategies=["mirrored", "mirrored[replicas=3]"])
@pytest.mark.parametrize("fetch", [True, False], ids=["fetch", "host"])
@pytest.mark.parametrize("how", MODES)
def test_a_pipeline_for_each_replica(ddl_strategy, fetch, how):
    """The function is called once for each replica, and each replica gets all of its own dataset."""
    import tensorflow as tf

    mode = tf.distribute.InputReplicationMode.PER_REPLICA
    contexts = []

    def make(context):
        contexts.append((context.input_pipeline_id, context.num_input_pipelines))
        start = 100 * context.input_pipeline_id
        return tf.data.Dataset.range(start, start + 5).batch(2, drop_remainder=True)

    given = options(replication_mode=mode, fetch_to_device=fetch)
    distributed = ddl_strategy.distribute_datasets_from_function(make, given)
    replicas = range(ddl_strategy.num_replicas_in_sync)
    assert contexts == [(replica, len(replicas)) for replica in replicas]
    assert ids(epoch(ddl_strategy, distributed, how)) == [
        [[100 * replica + first, 100 * replica + first + 1] for replica in replicas] for first in (0, 2)
    ]
    with pytest.raises(NotImplementedError, match="only supported in `distribute_datasets_from_function`"):
        ddl_strategy.experimental_distribute_dataset(counted(), given)


@pytest.mark.ddl_item("input.dynamic_shapes")
@pytest.mark.ddl(strategies=["mirrored", "mirrored[replicas=3]", "multi_worker_mirrored"])
def test_shapes_that_change(ddl_strategy):
    """One trace serves batches of other widths. The replica function sees the real shape."""
    import tensorflow as tf

    strategy = ddl_strategy
    widths = [3, 1, 4, 2]
    replicas = strategy.num_replicas_in_sync
    dataset = tf.data.Dataset.from_generator(
        lambda: (np.arange(2 * replicas * width).reshape(2 * replicas, width) for width in widths),
        output_signature=tf.TensorSpec([None, None], tf.int64),
    )
    traces = []

    @tf.function(reduce_retracing=True)
    def step(iterator):
        traces.append(None)
        return strategy.run(
            lambda part: tf.linalg.matvec(part, tf.range(tf.shape(part)[1], dtype=tf.int64)), args=(next(iterator),)
        )

    iterator = iter(strategy.experimental_distribute_dataset(dataset))
    local = replicas // current_rank().num_ranks
    for width in widths:
        whole = np.arange(2 * replicas * width).reshape(replicas, 2, width) @ np.arange(width)
        for own, part in enumerate(strategy.experimental_local_results(step(iterator))):
            np.testing.assert_array_equal(part, whole[current_rank().rank * local + own])
    assert len(traces) == 1


# TensorFlow warns about its own use of options when a function captures a distributed dataset.
@pytest.mark.filterwarnings("ignore:To make it possible to preserve tf.data options:UserWarning")
@pytest.mark.ddl_item("input.dataset.reduce")
@pytest.mark.ddl(strategies=ONE_AND_SEVERAL)
@pytest.mark.parametrize("how", MODES)
def test_reduce_goes_over_all_steps(ddl_strategy, how):
    """The function gets the steps in order: later ones have a higher weight."""
    import tensorflow as tf

    strategy = ddl_strategy
    distributed = strategy.experimental_distribute_dataset(counted())

    def add(state, value):
        total, step = state
        sums = strategy.run(lambda part: tf.reduce_sum(part + 1), args=(value,))
        return total + strategy.reduce("SUM", sums, axis=None) * 100**step, step + 1

    def reduce():
        return distributed.reduce((tf.constant(0, tf.int64), tf.constant(0, tf.int64)), add)

    total, steps = tf.function(reduce)() if how == "function" else reduce()
    whole = [range(step * BATCH, min(NUMBER, (step + 1) * BATCH)) for step in range(3)]
    assert (int(steps), int(total)) == (3, sum(sum(x + 1 for x in one) * 100**step for step, one in enumerate(whole)))


@pytest.mark.ddl_item("input.iterator_checkpoint", shows="behavior")
@pytest.mark.ddl(strategies=ONE_AND_SEVERAL)
def test_a_distributed_iterator_is_refused_by_checkpoints(ddl_strategy):
    import tensorflow as tf

    iterator = iter(ddl_strategy.experimental_distribute_dataset(counted()))
    with pytest.raises(ValueError, match="was expecting iterator to be a trackable object"):
        tf.train.Checkpoint(iterator=iterator)


@pytest.mark.ddl_item("input.iterator_checkpoint")
@pytest.mark.ddl(strategies=ONE_AND_SEVERAL)
def test_the_iterator_of_a_pipeline_continues(ddl_strategy, tmp_path):
    """The iterator of the dataset of a worker is saved before each step, and restored into a new one."""
    import tensorflow as tf

    def pipeline():
        return iter(tf.data.Dataset.range(100).shuffle(10, seed=4).shard(2, 1).batch(3))

    whole = [batch.numpy().tolist() for batch in pipeline()]
    with ddl_strategy.scope():
        step = tf.Variable(0, dtype=tf.int64)
        for start in (0, 2, 5):
            before = pipeline()
            for _ in range(start):
                next(before)
            step.assign(start)
            prefix = str(tmp_path / f"{current_rank().rank}-{start}")
            path = tf.train.Checkpoint(iterator=before, step=step).write(prefix)
            step.assign(-1)
            after = pipeline()
            tf.train.Checkpoint(iterator=after, step=step).read(path).assert_consumed()
            assert int(tf.convert_to_tensor(step)) == start
            assert next(after).numpy().tolist() == whole[start]


def generated(how):
    """Return the epochs of datasets from a generator and from a Python function, and how often each was called."""
    import tensorflow as tf

    strategy = current_strategy()
    calls = []

    def generate():
        for example in range(11):
            calls.append(example)
            yield example

    def square(example):
        return np.int64(example * example)

    generator = tf.data.Dataset.from_generator(generate, output_signature=tf.TensorSpec([], tf.int64)).batch(4)
    function = tf.data.Dataset.range(11).map(lambda x: tf.ensure_shape(tf.numpy_function(square, [x], tf.int64), []))
    found = [
        ids(epoch(strategy, strategy.experimental_distribute_dataset(dataset), how))
        for dataset in (generator, function.batch(4))
    ]
    return *found, calls


@pytest.mark.ddl_item("input.generator")
@pytest.mark.ddl(strategies=ONE_AND_SEVERAL)
@pytest.mark.parametrize("how", MODES)
def test_python_generators_and_functions(ddl_cluster, how):
    """Each worker reads the whole generator once, and keeps its own part of each batch."""
    ranks = ddl_cluster.run(generated, how)
    assert flat(joined([rank[0] for rank in ranks])) == list(range(11))
    assert flat(joined([rank[1] for rank in ranks])) == [example**2 for example in range(11)]
    for _, _, calls in ranks:
        assert calls == list(range(11))


def from_service(address, mode):
    """Return the epoch of a rank that reads from a tf.data service. The job is common to all ranks."""
    import tensorflow as tf

    strategy = current_strategy()
    dataset = tf.data.Dataset.range(24)
    dataset = dataset.apply(
        tf.data.experimental.service.distribute(processing_mode=mode, service=address, job_name="job")
    )
    options = tf.data.Options()
    # The service shards. A policy of the strategy would discard examples a second time.
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    dataset = dataset.batch(6).with_options(options)
    return ids(epoch(strategy, strategy.experimental_distribute_dataset(dataset)))


@pytest.mark.ddl_item("input.tf_data_service")
@pytest.mark.ddl(strategies=["one_device", "mirrored", "multi_worker_mirrored"])
@pytest.mark.parametrize("mode", ["distributed_epoch", "parallel_epochs"])
def test_a_service_on_this_machine(ddl_cluster, mode):
    """Two workers of the service share an epoch, or each of them gives a whole one."""
    import tensorflow as tf

    service = tf.data.experimental.service
    dispatcher = service.DispatchServer(service.DispatcherConfig(port=0))
    address = dispatcher.target.split("://")[1]
    servers = [service.WorkerServer(service.WorkerConfig(dispatcher_address=address)) for _ in range(2)]
    found = [flat(steps) for steps in ddl_cluster.run(from_service, dispatcher.target, mode)]
    times = 1 if mode == "distributed_epoch" else len(servers)
    assert sorted(chain(*found)) == sorted(list(range(24)) * times)
    for server in servers:
        server._stop()
    dispatcher._stop()
