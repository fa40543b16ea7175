"""Check how a global batch is split over replicas: by arithmetic for all sizes, and in real strategies."""

from __future__ import annotations

import numpy as np
import pytest

from pytest_ddl import current_strategy
from suites.properties.inputs import MODES, batches, epoch, even_sizes, ids, joined, pieces

SYNCHRONOUS = ["mirrored", "mirrored[replicas=3]", "multi_worker_mirrored", "central_storage"]
WITH_ONE = ["one_device", *SYNCHRONOUS]


def sizes_for_worker(batch, workers, replicas, worker):
    """Return what TensorFlow's own arithmetic says. The function is private; only this adapter knows its place."""
    from tensorflow.python.data.experimental.ops import distribute

    return distribute.batch_sizes_for_worker(batch, workers, replicas, worker).numpy().tolist()


@pytest.mark.ddl_item("input.dataset.rebatch")
@pytest.mark.parametrize("workers", range(1, 5))
@pytest.mark.parametrize("replicas", range(1, 5))
def test_batch_sizes_of_a_worker(workers, replicas):
    """Each worker rotates the same sizes by its own replicas, so that each global step has a whole batch."""
    for batch in range(1, 41):
        expected = even_sizes(batch, workers * replicas)
        shares = [sizes_for_worker(batch, workers, replicas, worker) for worker in range(workers)]
        for worker, share in enumerate(shares):
            assert share == np.roll(expected, -worker * replicas).tolist(), (batch, worker)
        for step in range(workers):
            here = [share[step * replicas : (step + 1) * replicas] for share in shares]
            assert sum(map(sum, here)) == batch, (batch, step)


@pytest.mark.ddl_item("input.dataset.rebatch")
def test_batch_sizes_of_a_size_that_is_a_tensor():
    """A batch size that is known only in a function takes another path."""
    import tensorflow as tf
    from tensorflow.python.data.experimental.ops import distribute

    @tf.function(input_signature=[tf.TensorSpec([], tf.int64)])
    def sizes(batch):
        return [distribute.batch_sizes_for_worker(batch, 3, 2, worker) for worker in range(3)]

    for batch in range(1, 20):
        for worker, share in enumerate(sizes(batch)):
            assert share.numpy().tolist() == np.roll(even_sizes(batch, 6), -worker * 2).tolist()


CASES = [(1, 2, False), (7, 6, False), (7, 2, False), (7, 2, True), (5, 6, True), (12, 6, True), (9, 5, False)]
"""Numbers of examples, batch sizes, and whether the rest is dropped. Some last batches leave replicas idle."""


def read_sizes(how):
    """Return the epochs of datasets that count from 0."""
    import tensorflow as tf

    strategy = current_strategy()
    found = []
    for number, batch, drop_remainder in CASES:
        dataset = tf.data.Dataset.range(number).batch(batch, drop_remainder)
        found.append(ids(epoch(strategy, strategy.experimental_distribute_dataset(dataset), how)))
    return found


@pytest.mark.ddl_item("input.dataset.uneven", "input.dataset.rebatch", "input.iterator.get_next")
@pytest.mark.ddl(strategies=WITH_ONE)
@pytest.mark.parametrize("how", MODES)
def test_every_example_once_in_order(ddl_cluster, how):
    """Pieces of a batch are consecutive, and replica r gets piece r. Only a dropped rest is lost."""
    replicas = ddl_cluster.num_replicas
    for (number, batch, drop_remainder), *found in zip(CASES, *ddl_cluster.run(read_sizes, how), strict=True):
        expected = batches(range(number), batch, drop_remainder)
        steps = joined(found)
        assert [[example for part in parts for example in part] for parts in steps] == expected, (number, batch)
        assert steps == [pieces(one, replicas) for one in expected], (number, batch)


@pytest.mark.ddl_item("input.dataset.rebatch")
@pytest.mark.ddl(strategies=SYNCHRONOUS)
def test_replicas_get_nearly_the_same_number(ddl_strategy):
    """The sizes of the pieces of one batch differ by one at most."""
    import tensorflow as tf

    for batch in (3, 4, 7):
        dataset = tf.data.Dataset.range(2 * batch).batch(batch)
        allowed = set(even_sizes(batch, ddl_strategy.num_replicas_in_sync))
        for parts in epoch(ddl_strategy, ddl_strategy.experimental_distribute_dataset(dataset)):
            sizes = [len(part) for part in parts]
            assert allowed.issuperset(sizes), f"of a batch of {batch}, the replicas here got {sizes}"
