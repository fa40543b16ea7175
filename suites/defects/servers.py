"""Defects of the coordinator, of sharded variables and of cluster resolvers."""

from __future__ import annotations

from typing import Any

from suites.defects.registry import defect, put, replace

_SHARDING = r"test_sharding(_saved)?\.py"


@defect(r"test_coordinator\.py")
def closures_run_twice() -> None:
    """ClusterCoordinator.schedule schedules each closure twice."""
    import tensorflow as tf

    def make(original: Any) -> Any:
        def schedule(self: Any, fn: Any, args: Any = None, kwargs: Any = None) -> Any:
            original(self, fn, args, kwargs)
            return original(self, fn, args, kwargs)

        return schedule

    replace(tf.distribute.coordinator.ClusterCoordinator, "schedule", make)


@defect(r"test_coordinator\.py")
def errors_of_closures_are_lost() -> None:
    """ClusterCoordinator.join raises nothing."""
    import contextlib

    import tensorflow as tf

    def make(original: Any) -> Any:
        def join(self: Any) -> None:
            with contextlib.suppress(Exception):
                original(self)

        return join

    replace(tf.distribute.coordinator.ClusterCoordinator, "join", make)


@defect(r"test_coordinator\.py")
def schedule_waits() -> None:
    """ClusterCoordinator.schedule waits for the closure."""
    import tensorflow as tf

    def make(original: Any) -> Any:
        def schedule(self: Any, *args: Any, **kwargs: Any) -> Any:
            found = original(self, *args, **kwargs)
            self.join()
            return found

        return schedule

    replace(tf.distribute.coordinator.ClusterCoordinator, "schedule", make)


@defect(r"test_coordinator\.py")
def one_iterator_of_all_workers() -> None:
    """A dataset for each worker repeats its first element."""
    import tensorflow as tf

    def make(original: Any) -> Any:
        def create(self: Any, dataset_fn: Any) -> Any:
            return original(self, lambda: (dataset_fn() if callable(dataset_fn) else dataset_fn).take(1).repeat())

        return create

    replace(tf.distribute.coordinator.ClusterCoordinator, "create_per_worker_dataset", make)


@defect(_SHARDING)
def one_shard_less() -> None:
    """A partitioner returns one shard less, and at least one."""
    from tensorflow.python.distribute import sharded_variable as sharded

    def make(original: Any) -> Any:
        def call(self: Any, shape: Any, dtype: Any, axis: int = 0) -> Any:
            found = list(original(self, shape, dtype, axis))
            found[axis] = max(1, found[axis] - 1) if found[axis] > 1 else 2
            return found

        return call

    for kind in (sharded.FixedShardsPartitioner, sharded.MinSizePartitioner, sharded.MaxSizePartitioner):
        replace(kind, "__call__", make)


@defect(_SHARDING)
def rows_of_shards_are_turned() -> None:
    """Rows go to the next row of a sharded variable, and come from there."""
    import tensorflow as tf
    from tensorflow.python.distribute import sharded_variable as sharded

    def make(original: Any) -> Any:
        def decompose(self: Any, indices: Any) -> Any:
            indices = tf.convert_to_tensor(indices)
            return original(self, tf.math.floormod(indices + 1, tf.cast(self.shape[0], indices.dtype)))

        return decompose

    replace(sharded.ShardedVariableMixin, "_decompose_indices", make)


@defect(_SHARDING)
def slices_begin_later() -> None:
    """A slice of a sharded variable loses its first row."""
    from tensorflow.python.distribute import sharded_variable as sharded

    def make(original: Any) -> Any:
        return lambda self, spec: original(self, spec)[1:]

    replace(sharded.ShardedVariableMixin, "__getitem__", make)


@defect(_SHARDING)
def shards_are_assigned_in_reverse() -> None:
    """The shards of a variable get an assigned value from its end."""
    import tensorflow as tf
    from tensorflow.python.distribute import sharded_variable as sharded

    def make(original: Any) -> Any:
        def assign(self: Any, value: Any, *args: Any, **kwargs: Any) -> Any:
            return original(self, tf.reverse(tf.convert_to_tensor(value), [0]), *args, **kwargs)

        return assign

    for name in ("assign", "assign_add", "assign_sub"):
        replace(sharded.ShardedVariableMixin, name, make)


@defect(_SHARDING)
def embeddings_of_another_row() -> None:
    """An embedding lookup in a sharded variable takes the next row."""
    import tensorflow as tf

    def make(original: Any) -> Any:
        def lookup(params: Any, ids: Any, *args: Any, **kwargs: Any) -> Any:
            if isinstance(ids, tf.SparseTensor):
                turned = tf.math.floormod(ids.values + 1, params.shape[0])
                ids = tf.SparseTensor(ids.indices, turned, ids.dense_shape)
            else:
                ids = tf.math.floormod(tf.convert_to_tensor(ids) + 1, params.shape[0])
            return original(params, ids, *args, **kwargs)

        return lookup

    for name in ("embedding_lookup", "embedding_lookup_sparse", "safe_embedding_lookup_sparse"):
        replace(tf.nn, name, make)


@defect(_SHARDING)
def sharded_variable_is_turned() -> None:
    """A sharded variable is read as a tensor with its rows in reverse order."""
    import tensorflow as tf
    from tensorflow.python.distribute import sharded_variable as sharded

    tf.register_tensor_conversion_function(
        sharded.ShardedVariable,
        lambda var, dtype=None, name=None, as_ref=False: tf.reverse(tf.concat([*var.variables], 0), [0]),
        priority=50,
    )


@defect(r"test_resolvers\.py")
def task_of_another_number() -> None:
    """A cluster resolver has the number of the next task, and its tasks in reverse order."""
    import tensorflow as tf

    resolvers = tf.distribute.cluster_resolver
    for kind in (
        resolvers.SimpleClusterResolver,
        resolvers.TFConfigClusterResolver,
        resolvers.SlurmClusterResolver,
        resolvers.KubernetesClusterResolver,
        resolvers.GCEClusterResolver,
        resolvers.UnionResolver,
    ):
        own = kind.task_id

        def task_id(self: Any, own: Any = own) -> Any:
            found = own.__get__(self) if isinstance(own, property) else getattr(self, "_task_id", None)
            return None if found is None else found + 1

        put(kind, "task_id", property(task_id, own.fset if isinstance(own, property) else None))

        def make(original: Any) -> Any:
            def cluster_spec(self: Any) -> Any:
                found = original(self).as_dict()
                turned = {job: list(reversed([*tasks])) for job, tasks in found.items()}
                return tf.train.ClusterSpec({**turned, "worker": [*turned.get("worker", []), "extra:1"]})

            return cluster_spec

        replace(kind, "cluster_spec", make)
