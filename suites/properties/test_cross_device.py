"""Test every class of cross-device operations, one of a user's own, packs and broadcasts, with MirroredStrategy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from pytest_ddl import current_strategy
from suites.properties.test_replica_context import dense, slices_of_replicas
from suites.properties.test_values import called, distributed, everyone

HOW = pytest.mark.parametrize("how", ["eager", "function"])


def hierarchical() -> dict[str, Any]:
    import tensorflow as tf

    return {"cross_device_ops": tf.distribute.HierarchicalCopyAllReduce(num_packs=2)}


def nccl() -> dict[str, Any]:
    """Return operations for NVIDIA's GPUs; they reduce what is on CPUs on one device."""
    import tensorflow as tf

    return {"cross_device_ops": tf.distribute.NcclAllReduce()}


def one_device() -> dict[str, Any]:
    import tensorflow as tf

    return {"cross_device_ops": tf.distribute.ReductionToOneDevice()}


def accumulating() -> dict[str, Any]:
    """Return operations that add three times what the replicas give."""
    import tensorflow as tf

    return {"cross_device_ops": tf.distribute.ReductionToOneDevice(accumulation_fn=lambda parts: 3.0 * tf.add_n(parts))}


def own() -> dict[str, Any]:
    """Return operations that add five times what the replicas give."""
    import tensorflow as tf

    class Own(tf.distribute.CrossDeviceOps):
        def reduce_implementation(self, reduce_op, per_replica_value, destinations, options):
            total = 5.0 * tf.add_n(per_replica_value.values)
            if reduce_op == tf.distribute.ReduceOp.MEAN:
                total /= len(per_replica_value.values)
            return self.broadcast(total, destinations)

        def batch_reduce_implementation(self, reduce_op, value_destination_pairs, options):
            return [self.reduce_implementation(reduce_op, *pair, options) for pair in value_destination_pairs]

    return {"cross_device_ops": Own()}


def check_reductions(how: str, factor: float, sparse: bool) -> None:
    """Reduce one value and a batch of values of different sizes, dense and sparse, to all replicas."""
    import tensorflow as tf

    strategy = current_strategy()
    sizes, lengths = (1, 3, 7), (1, 4, 2)

    def value_of(replica: int, size: int) -> Any:
        return (np.arange(size) + 1.0) * (replica + 1) * 6

    values = [distributed(strategy, lambda replica, size=size: value_of(replica, size)) for size in sizes]
    with strategy.scope():
        destination = tf.Variable(0.0)
    if sparse:
        values.append(slices_of_replicas(strategy, lengths))
    wholes = [np.stack(everyone(strategy, lambda replica, size=size: value_of(replica, size))) for size in sizes]
    wholes.append(dense(strategy, lengths))
    for op in ("SUM", "MEAN"):
        kind = tf.distribute.ReduceOp[op]

        def batch(kind: Any = kind) -> Any:
            operations = strategy.extended._cross_device_ops
            with strategy.scope():
                one = operations.reduce(kind, values[0], destination)
                rest = operations.batch_reduce(kind, [(value, destination) for value in values])
            return [list(map(tf.convert_to_tensor, strategy.experimental_local_results(each))) for each in (one, *rest)]

        found = called(how, batch)
        for parts, whole in zip(found, [wholes[0], *wholes], strict=False):
            expected = factor * (whole.sum(axis=0) if op == "SUM" else whole.mean(axis=0))
            assert len(parts) == strategy.num_replicas_in_sync
            for part in parts:
                # Three operations: a sum, a factor and a quotient, which a graph may write in another order.
                np.testing.assert_allclose(part, expected, rtol=4 * np.finfo("float64").eps)


CASES: dict[str, tuple[Callable[[], dict[str, Any]], float, bool, tuple[str, ...]]] = {
    "hierarchical": (
        hierarchical,
        1.0,
        True,
        ("cross_device.HierarchicalCopyAllReduce.reduce", "cross_device.num_packs"),
    ),
    "nccl": (nccl, 1.0, True, ("cross_device.NcclAllReduce.reduce",)),
    "one_device": (one_device, 1.0, True, ("cross_device.ReductionToOneDevice.reduce",)),
    "accumulating": (accumulating, 3.0, False, ("cross_device.ReductionToOneDevice.accumulation_fn",)),
    "own": (own, 5.0, False, ("cross_device.custom",)),
    "collective": (dict, 1.0, True, ("cross_device.collective.reduce", "cross_device.collective.batch")),
}


def made_by(case: str) -> Any:
    """Return the test of one class; the marker's arguments belong to a whole test."""
    make, factor, sparse, items = CASES[case]

    @pytest.mark.ddl(strategies=["mirrored[replicas=3]"], arguments={"mirrored": make}, timeout=40)
    @pytest.mark.ddl_item(*items)
    @HOW
    def test(how, ddl_cluster):
        ddl_cluster.run(check_reductions, how, factor, sparse)

    return test


test_hierarchical = made_by("hierarchical")
test_nccl_falls_back = made_by("nccl")
test_reduction_to_one_device = made_by("one_device")
test_accumulation_by_a_function = made_by("accumulating")
test_own_subclass = made_by("own")
test_collective = made_by("collective")


@pytest.mark.ddl(strategies=["mirrored[replicas=3]"], arguments={"mirrored": one_device})
@pytest.mark.ddl_item("cross_device.broadcast")
@HOW
def test_broadcast(how, ddl_strategy):
    import tensorflow as tf

    operations = ddl_strategy.extended._cross_device_ops
    with ddl_strategy.scope():
        everywhere = tf.Variable(0.0)
    found = called(how, lambda: operations.broadcast(tf.constant([1.0, 7.0]), everywhere))
    parts = ddl_strategy.experimental_local_results(found)
    assert {tuple(part.numpy().tolist()) for part in parts} == {(1.0, 7.0)}
    # A tf.function returns one of the equal parts.
    assert len(parts) == (ddl_strategy.num_replicas_in_sync if how == "eager" else 1)
