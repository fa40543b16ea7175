"""Defects of collectives, of ``Strategy.run`` and of what a strategy says of its replicas."""

from __future__ import annotations

from typing import Any

from suites.defects.registry import defect, put, replace, twice

_COLLECTIVES = r"test_(collectives|replica_context)\.py"
_VALUES = r"test_(values|contexts)\.py"


def _reversed(value: Any) -> Any:
    """Return a distributed value with the replicas' parts in reverse order."""
    return type(value)(tuple(reversed(value.values))) if hasattr(value, "values") else value


def _scaled(value: Any, factor: float) -> Any:
    import tensorflow as tf

    if isinstance(value, tf.IndexedSlices):
        return tf.IndexedSlices(_scaled(value.values, factor), value.indices, value.dense_shape)
    return value * tf.cast(factor, value.dtype)


@defect(
    _COLLECTIVES
    + r"|test_wrong_use\.py::test_options|test_preemption\.py::test_a_worker_that"
    + r"|test_reductions\.py::test_(sum|mean)|test_values\.py::test_functions_that_run"
)
def all_reduce_of_own_value() -> None:
    """A sum is the number of replicas times the own value, and a mean is the own value."""
    import tensorflow as tf

    def make(original: Any) -> Any:
        def all_reduce(self: Any, reduce_op: Any, value: Any, options: Any = None) -> Any:
            factor = self.num_replicas_in_sync if str(reduce_op).upper().endswith("SUM") else 1
            return tf.nest.map_structure(lambda one: _scaled(one, factor), value)

        return all_reduce

    replace(tf.distribute.ReplicaContext, "all_reduce", make)


@defect(_COLLECTIVES)
def all_reduce_without_gradient() -> None:
    """The gradient through a reduction is 0."""
    import tensorflow as tf

    def make(original: Any) -> Any:
        def constant(value: Any) -> Any:
            return value if isinstance(value, tf.IndexedSlices) else tf.stop_gradient(value) + 0 * value

        return lambda *args, **kwargs: tf.nest.map_structure(constant, original(*args, **kwargs))

    replace(tf.distribute.ReplicaContext, "all_reduce", make)


@defect(_COLLECTIVES)
def all_gather_in_reverse() -> None:
    """The parts of the replicas are gathered in reverse order of their elements."""
    import tensorflow as tf

    def make(original: Any) -> Any:
        def all_gather(self: Any, value: Any, axis: int, options: Any = None) -> Any:
            found = original(self, value, axis, options)
            return tf.nest.map_structure(lambda one: tf.reverse(one, [axis]), found)

        return all_gather

    replace(tf.distribute.ReplicaContext, "all_gather", make)


@defect(_COLLECTIVES)
def sparse_reduction_loses_rows() -> None:
    """A sum of slices counts only the first of two rows with one index."""
    import tensorflow as tf

    def make(original: Any) -> Any:
        def all_reduce(self: Any, reduce_op: Any, value: Any, options: Any = None) -> Any:
            def halved(one: Any) -> Any:
                return _scaled(one, 0.5) if isinstance(one, tf.IndexedSlices) else one

            found = original(self, reduce_op, value, options)
            return tf.nest.map_structure(halved, found)

        return all_reduce

    replace(tf.distribute.ReplicaContext, "all_reduce", make)


@defect(_COLLECTIVES + r"|test_values\.py|test_strategies\.py::test_central")
def merge_call_in_reverse() -> None:
    """merge_call hands over the values of the replicas in reverse order."""
    import tensorflow as tf

    def make(original: Any) -> Any:
        def merge_call(self: Any, merge_fn: Any, args: Any = (), kwargs: Any = None) -> Any:
            def merged(strategy: Any, *given: Any, **named: Any) -> Any:
                return merge_fn(strategy, *map(_reversed, given), **named)

            return original(self, merged, args, kwargs)

        return merge_call

    replace(tf.distribute.ReplicaContext, "merge_call", make)


@defect(_VALUES + r"|test_splitting\.py")
def reduce_of_first_value() -> None:
    """Strategy.reduce returns the value of the first replica."""
    import tensorflow as tf

    def make(original: Any) -> Any:
        def reduce(self: Any, reduce_op: Any, value: Any, axis: Any = None) -> Any:
            found = original(self, reduce_op, value, axis)
            first = self.experimental_local_results(value)[0]
            return first if getattr(first, "shape", None) == getattr(found, "shape", ()) else found * 2

        return reduce

    replace(tf.distribute.Strategy, "reduce", make)


@defect(
    _VALUES
    + r"|test_strategies\.py::test_one_device|test_preemption\.py::test_replicas_are"
    + r"|test_reductions\.py::test_(axes|a_gather|a_scalar)"
)
def gather_in_reverse() -> None:
    """Strategy.gather returns the elements in reverse order."""
    import tensorflow as tf

    def make(original: Any) -> Any:
        return lambda self, value, axis: tf.reverse(original(self, value, axis), [axis])

    replace(tf.distribute.Strategy, "gather", make)


@defect(_VALUES)
def run_with_arguments_of_another_replica() -> None:
    """Strategy.run gives the arguments of the last replica to the first one, and the reverse."""
    import tensorflow as tf
    from tensorflow.python.distribute.values import PerReplica

    def make(original: Any) -> Any:
        def run(self: Any, fn: Any, args: Any = (), kwargs: Any = None, options: Any = None) -> Any:
            swapped = tuple(_reversed(one) if isinstance(one, PerReplica) else one for one in args)
            return original(self, fn, args=swapped, kwargs=kwargs, options=options)

        return run

    for kind in (tf.distribute.Strategy, tf.distribute.MultiWorkerMirroredStrategy, tf.distribute.MirroredStrategy):
        if "run" in vars(kind) or kind is tf.distribute.Strategy:
            replace(kind, "run", make)


@defect(_VALUES)
def replica_id_within_worker() -> None:
    """Each worker counts its replicas from 0."""
    import tensorflow as tf
    from tensorflow.python.distribute.distribute_lib import ReplicaContextBase

    original = ReplicaContextBase.replica_id_in_sync_group.fget

    def within(self: Any) -> Any:
        local = len(self.strategy.extended.worker_devices)
        found = original(self)
        return found % local if isinstance(found, int) else tf.math.floormod(found, local)

    put(ReplicaContextBase, "replica_id_in_sync_group", property(within))


@defect(_VALUES + r"|test_strategies\.py::test_update")
def update_twice() -> None:
    """StrategyExtended.update calls its function twice."""
    from tensorflow.python.distribute.distribute_lib import StrategyExtendedV2

    def make(original: Any) -> Any:
        def update(self: Any, var: Any, fn: Any, *args: Any, **kwargs: Any) -> Any:
            original(self, var, fn, *args, **kwargs)
            return original(self, var, fn, *args, **kwargs)

        return update

    replace(StrategyExtendedV2, "update", make)


@defect(r"test_(values|losses)\.py")
def average_loss_of_own_batch() -> None:
    """compute_average_loss divides by the number of the replica's own examples."""
    import tensorflow as tf

    def make(original: Any) -> Any:
        return lambda losses, *args, **kwargs: tf.reduce_mean(losses)

    replace(tf.nn, "compute_average_loss", make)


@defect(r"test_values\.py::test_(each_replica_gets|objects_of|run_gives)")
def local_results_in_reverse() -> None:
    """experimental_local_results returns the values of the replicas in reverse order."""
    import tensorflow as tf

    def make(original: Any) -> Any:
        return lambda self, value: original(self, value)[::-1]

    replace(tf.distribute.Strategy, "experimental_local_results", make)


@defect(r"test_values\.py::test_devices_of_replicas")
def devices_of_the_first_replica() -> None:
    """Each replica's context has the device of the first one."""
    from tensorflow.python.distribute.distribute_lib import ReplicaContextBase

    put(ReplicaContextBase, "devices", property(lambda self: (self.strategy.extended.worker_devices[0],)))


@defect(r"test_contexts\.py::test_truth_table")
def never_in_cross_replica_context() -> None:
    """in_cross_replica_context is always false."""
    import tensorflow as tf

    put(tf.distribute, "in_cross_replica_context", lambda: False)


@defect(r"test_cross_device\.py")
def cross_device_operations_swap_sum_and_mean() -> None:
    """Classes of cross-device operations take the mean for a sum, and send twice the value."""
    import tensorflow as tf
    from tensorflow.python.distribute import cross_device_ops as operations

    def swapped(original: Any) -> Any:
        def reduce(self: Any, reduce_op: Any, *args: Any, **kwargs: Any) -> Any:
            kinds = tf.distribute.ReduceOp
            return original(self, kinds.SUM if reduce_op == kinds.MEAN else kinds.MEAN, *args, **kwargs)

        return reduce

    def sent_twice(original: Any) -> Any:
        return lambda self, tensor, destinations: original(self, _scaled(tensor, 2.0), destinations)

    replace(operations.CrossDeviceOps, "broadcast", sent_twice)
    for kind in (operations.ReductionToOneDevice, operations.AllReduceCrossDeviceOps, operations.CollectiveAllReduce):
        for name in ("reduce_implementation", "batch_reduce_implementation"):
            if name in vars(kind):
                replace(kind, name, swapped)


@defect(r"test_wrong_use\.py::test_what_a_strategy_of_several")
def each_worker_saves() -> None:
    """Each worker saves checkpoints, not the chief only."""
    from tensorflow.python.distribute.collective_all_reduce_strategy import CollectiveAllReduceExtended

    put(CollectiveAllReduceExtended, "should_checkpoint", property(lambda self: True))


@defect(r"test_contexts\.py::\S*(creators|current_strategy)")
def scope_makes_variables_that_average() -> None:
    """The scope of MirroredStrategy makes variables that average what they should add up."""
    import tensorflow as tf
    from tensorflow.python.distribute.mirrored_strategy import MirroredExtended

    def make(original: Any) -> Any:
        def create(self: Any, next_creator: Any, **arguments: Any) -> Any:
            del arguments["aggregation"]
            return original(self, next_creator, aggregation=tf.VariableAggregation.MEAN, **arguments)

        return create

    replace(MirroredExtended, "_create_variable", make)


@defect(r"test_(limits|contexts|cross_device)\.py|test_loops\.py::test_functions_in")
def run_returns_the_results_in_reverse() -> None:
    """Strategy.run returns the results of the replicas in reverse order, and doubles those of one device."""
    import tensorflow as tf
    from tensorflow.python.distribute.distribute_lib import StrategyBase

    def make(original: Any) -> Any:
        def run(self: Any, *args: Any, **kwargs: Any) -> Any:
            found = original(self, *args, **kwargs)
            if hasattr(found, "values"):
                return _reversed(found)
            return found * 2 if isinstance(found, tf.Tensor) else found

        return run

    replace(StrategyBase, "run", make)


@defect(r"test_limits\.py::\S*(time_limit|two_threads|does_not_come)|test_contexts\.py::\S*asks_for")
def all_reduce_waits_for_nobody() -> None:
    """A reduction by a replica returns twice its own value at once."""
    import tensorflow as tf

    replace(
        tf.distribute.ReplicaContext, "all_reduce", lambda original: lambda self, op, value, options=None: value * 2
    )


@defect(r"test_limits\.py::\S*(server_offers|clients_of_one_mesh)")
def remote_numbers_are_doubled() -> None:
    """A client of a server gets numbers twice as large, and so does a client of a mesh."""
    import tensorflow as tf
    from tensorflow.experimental import dtensor
    from tensorflow.python.distribute.experimental.rpc import rpc_ops

    def make(original: Any) -> Any:
        return lambda *args, **kwargs: tf.nest.map_structure(lambda one: one * 2, original(*args, **kwargs))

    replace(rpc_ops.StatusOrResult, "get_value", make)
    replace(dtensor, "unpack", make)


@defect(r"test_limits\.py::\S*tensorflow_1")
def metrics_without_weights() -> None:
    """Metrics of TensorFlow 1 do not weight their values."""
    import tensorflow as tf

    for name in ("mean", "accuracy", "mean_squared_error"):
        replace(tf.compat.v1.metrics, name, lambda original: lambda *args, **kwargs: original(*args[:-1], **kwargs))


@defect(r"test_cross_device\.py::\S*nccl")
def reduction_to_one_device_doubles() -> None:
    """A reduction on one device gives twice the sum."""
    import tensorflow as tf

    def make(original: Any) -> Any:
        def reduce(self: Any, reduce_op: Any, value: Any, destinations: Any, options: Any) -> Any:
            found = original(self, reduce_op, value, destinations, options)
            return type(found)(tuple(_scaled(one, 2) for one in found.values)) if hasattr(found, "values") else found

        return reduce

    replace(tf.distribute.ReductionToOneDevice, "reduce_implementation", make)


@defect(r"test_reductions\.py::test_tensors_without|test_values\.py::test_the_sum_of_zero")
def nothing_becomes_one() -> None:
    """A reduction of zeros is 1, and a tensor without elements gets one."""
    import tensorflow as tf

    def make(original: Any) -> Any:
        def call(self: Any, *args: Any, **kwargs: Any) -> Any:
            found = tf.convert_to_tensor(original(self, *args, **kwargs))
            return found + 1 if found.shape.num_elements() else tf.ones([1], found.dtype)

        return call

    for name in ("reduce", "gather"):
        replace(tf.distribute.Strategy, name, make)


@defect(r"test_reductions\.py::test_reductions_to_devices")
def reductions_lie_on_the_host() -> None:
    """A reduction goes to the host, wherever the caller wants it."""
    from tensorflow.python.distribute.distribute_lib import StrategyExtendedV2

    def make(original: Any) -> Any:
        def reduce_to(self: Any, reduce_op: Any, value: Any, destinations: Any, options: Any = None) -> Any:
            host = self.worker_devices[0].rpartition("/device:")[0] + "/device:CPU:0"
            return original(self, reduce_op, value, host, options)

        return reduce_to

    replace(StrategyExtendedV2, "reduce_to", make)


@defect(r"test_contexts\.py::test_moving_average")
def averages_move_twice() -> None:
    """A moving average makes two steps in each call."""
    import tensorflow as tf

    twice(tf.train.ExponentialMovingAverage, "apply")
