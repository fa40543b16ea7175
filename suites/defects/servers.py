"""Defects of the coordinator, of sharded variables and of cluster resolvers."""

from __future__ import annotations

from typing import Any

from suites.defects.registry import defect, put, replace, twice


@defect(
    r"test_coordinator\.py::test_(every|run_and|training|updates|nothing_runs)|test_servers\.py::test_what_closures"
)
def closures_run_twice() -> None:
    """ClusterCoordinator.schedule schedules each closure twice."""
    import tensorflow as tf

    def make(original: Any) -> Any:
        def schedule(self: Any, fn: Any, args: Any = None, kwargs: Any = None) -> Any:
            original(self, fn, args, kwargs)
            return original(self, fn, args, kwargs)

        return schedule

    replace(tf.distribute.coordinator.ClusterCoordinator, "schedule", make)


@defect(r"test_coordinator\.py::test_join")
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


@defect(r"test_coordinator\.py::test_(each_worker|a_worker_that)")
def one_iterator_of_all_workers() -> None:
    """A dataset for each worker repeats its first element."""
    import tensorflow as tf

    def make(original: Any) -> Any:
        def create(self: Any, dataset_fn: Any) -> Any:
            return original(self, lambda: (dataset_fn() if callable(dataset_fn) else dataset_fn).take(1).repeat())

        return create

    replace(tf.distribute.coordinator.ClusterCoordinator, "create_per_worker_dataset", make)


@defect(r"test_coordinator\.py::test_schedule_does_not_wait")
def work_is_always_done() -> None:
    """ClusterCoordinator.done is always true."""
    import tensorflow as tf

    replace(tf.distribute.coordinator.ClusterCoordinator, "done", lambda original: lambda self: True)


@defect(r"test_coordinator\.py::test_(other_calls|join_raises|each_call)")
def errors_of_closures_are_others() -> None:
    """A coordinator raises an error of its own in place of that of the closure."""
    import tensorflow as tf

    def make(original: Any) -> Any:
        def call(self: Any, *args: Any, **kwargs: Any) -> Any:
            try:
                return original(self, *args, **kwargs)
            except tf.errors.OpError:
                raise RuntimeError("a closure has failed") from None

        return call

    for name in ("join", "done", "schedule"):
        replace(tf.distribute.coordinator.ClusterCoordinator, name, make)


@defect(r"test_coordinator\.py::test_a_value_for_each_worker")
def values_of_workers_are_changed() -> None:
    """A resource of a worker is twice what its function returns."""
    import tensorflow as tf

    def make(original: Any) -> Any:
        return lambda self, fn, *args: original(self, tf.function(lambda: fn() * 2), *args)

    replace(tf.distribute.coordinator.ClusterCoordinator, "_create_per_worker_resources", make)


@defect(r"test_servers\.py::test_variables_go_round")
def variables_are_on_one_server() -> None:
    """All variables are on the first server."""
    from tensorflow.python.distribute.parameter_server_strategy_v2 import ParameterServerStrategyV2Extended

    def make(original: Any) -> Any:
        def create(self: Any, *args: Any, **kwargs: Any) -> Any:
            self._variable_count = 0
            return original(self, *args, **kwargs)

        return create

    replace(ParameterServerStrategyV2Extended, "_create_variable", make)


@defect(r"test_servers\.py::test_a_variable_beside|test_strategies\.py::test_variables_beside")
def variables_are_not_beside_others() -> None:
    """colocate_vars_with does nothing."""
    import contextlib

    from tensorflow.python.distribute.distribute_lib import StrategyExtendedV2

    replace(StrategyExtendedV2, "colocate_vars_with", lambda original: lambda self, other: contextlib.nullcontext())


@defect(r"test_servers\.py::test_run_out_of")
def functions_run_twice() -> None:
    """A strategy of parameter servers runs a function two times."""
    import tensorflow as tf

    twice(tf.distribute.ParameterServerStrategy, "run")


@defect(r"test_servers\.py::test_lookup")
def tables_find_the_next_id() -> None:
    """A lookup in a table returns the id after the right one."""
    from tensorflow.python.ops import lookup_ops

    for kind in (lookup_ops.InitializableLookupTableBase, lookup_ops.StaticVocabularyTable):
        replace(kind, "lookup", lambda original: lambda *args, **kwargs: original(*args, **kwargs) + 1)


@defect(r"test_sharding\.py::test_(fixed|shards)")
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


@defect(r"test_sharding\.py::test_(rows|elements)")
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


@defect(r"test_sharding\.py::test_(slices|a_new_axis|an_ellipsis)")
def slices_begin_later() -> None:
    """A slice of a sharded variable loses its first row."""
    from tensorflow.python.distribute import sharded_variable as sharded

    def make(original: Any) -> Any:
        return lambda self, spec: original(self, spec)[1:]

    replace(sharded.ShardedVariableMixin, "__getitem__", make)


@defect(r"test_sharding\.py::test_(assignments|an_aggregation)")
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


@defect(r"test_sharding(_saved)?\.py::test_(embedding|the_gradient|a_saved)")
def embeddings_of_another_row() -> None:
    """An embedding lookup in a sharded variable takes the next row."""
    import tensorflow as tf

    def make(original: Any) -> Any:
        def lookup(params: Any, ids: Any, *args: Any, **kwargs: Any) -> Any:
            rows = sum(part.shape[0] for part in getattr(params, "variables", params))
            if isinstance(ids, tf.SparseTensor):
                turned = tf.math.floormod(ids.values + 1, rows)
                ids = tf.SparseTensor(ids.indices, turned, ids.dense_shape)
            else:
                ids = tf.math.floormod(tf.convert_to_tensor(ids) + 1, rows)
            return original(params, ids, *args, **kwargs)

        return lookup

    for name in ("embedding_lookup", "embedding_lookup_sparse", "safe_embedding_lookup_sparse"):
        replace(tf.nn, name, make)


@defect(r"test_sharding\.py::test_operators")
def sharded_variable_is_turned() -> None:
    """A sharded variable is read as a tensor with its rows in reverse order."""
    import tensorflow as tf
    from tensorflow.python.distribute import sharded_variable as sharded

    replace(
        sharded, "_var_to_tensor", lambda original: lambda *args, **kwargs: tf.reverse(original(*args, **kwargs), [0])
    )


@defect(
    r"test_sharding\.py::test_(initializers|an_initializer|scatter|random)"
    r"|test_sharding_saved\.py::test_(a_checkpoint|a_variable)"
)
def arrays_of_shards_are_turned() -> None:
    """The array of a sharded variable has its rows in reverse order."""
    from tensorflow.python.distribute import sharded_variable as sharded

    replace(sharded.ShardedVariableMixin, "numpy", lambda original: lambda self: original(self)[::-1])


@defect(r"test_resolvers\.py|test_strategies\.py::test_the_resolver.*multi_worker")
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


@defect(r"test_sharding\.py::test_elements")
def shards_are_joined_in_reverse() -> None:
    """A sharded variable that is converted to a tensor begins with its last shard."""
    import tensorflow as tf
    from tensorflow.python.distribute import sharded_variable as sharded

    def joined(self: Any, dtype: Any = None, name: Any = None) -> Any:
        return tf.concat(self.variables[::-1], axis=0)

    # The registered function cannot be replaced, but this method goes before it.
    put(sharded.ShardedVariable, "__tf_tensor__", joined)


@defect(r"test_coordinator\.py::test_a_server_of_variables")
def lost_servers_are_internal_errors() -> None:
    """A lost server raises an internal error, so that a program does not know that it may try again."""
    import tensorflow as tf
    from tensorflow.python.distribute.parameter_server_strategy_v2 import ParameterServerStrategyV2Extended

    def make(original: Any) -> Any:
        def call(self: Any, *args: Any, **kwargs: Any) -> Any:
            try:
                return original(self, *args, **kwargs)
            except (tf.errors.UnavailableError, tf.errors.AbortedError):
                raise tf.errors.InternalError(None, None, "a task does not answer") from None

        return call

    replace(ParameterServerStrategyV2Extended, "_create_variable", make)
    for name in ("create_per_worker_dataset", "schedule", "join", "fetch"):
        replace(tf.distribute.coordinator.ClusterCoordinator, name, make)


@defect(r"test_resolvers\.py::test_servers_share")
def graphs_store_no_sum() -> None:
    """In a graph, assign_add of a variable returns the sum and stores nothing."""
    import tensorflow as tf
    from tensorflow.python.ops.resource_variable_ops import ResourceVariable

    def make(original: Any) -> Any:
        def assign_add(self: Any, delta: Any, *args: Any, **kwargs: Any) -> Any:
            return original(self, delta, *args, **kwargs) if tf.executing_eagerly() else self.read_value() + delta

        return assign_add

    replace(ResourceVariable, "assign_add", make)


@defect(r"test_sharding\.py::test_a_type_has_many_names")
def names_of_types_are_not_split() -> None:
    """A partitioner that gets the name of a type makes one shard."""
    import tensorflow as tf

    def make(original: Any) -> Any:
        def shards(self: Any, shape: Any, dtype: Any, axis: int = 0) -> Any:
            return original(self, shape, dtype, axis) if isinstance(dtype, tf.DType) else [1] * len(shape)

        return shards

    replace(tf.distribute.experimental.partitioners.FixedShardsPartitioner, "__call__", make)
