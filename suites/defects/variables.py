"""Defects of distributed variables, random generators and checkpoints."""

from __future__ import annotations

from typing import Any

from suites.defects.registry import defect, put, replace, skip

_VARIABLES = r"test_(variables|variable_operations|contexts)\.py"


@defect(_VARIABLES + r"|test_strategies\.py::test_(mirrored_with|packed)")
def assignment_without_aggregation() -> None:
    """A variable that replicas assign takes the values as they are."""
    import tensorflow as tf
    from tensorflow.python.distribute import values

    def make(original: Any) -> Any:
        def on_write_update_replica(var: Any, update_fn: Any, value: Any, **kwargs: Any) -> Any:
            if var.aggregation != tf.VariableAggregation.NONE:
                return update_fn(var._get_on_device_or_primary(), value, **kwargs)
            return original(var, update_fn, value, **kwargs)

        return on_write_update_replica

    replace(values, "_on_write_update_replica", make)


@defect(_VARIABLES + r"|test_layers\.py::test_a_layer_adds_up.*mean")
def mean_in_place_of_sum() -> None:
    """A variable with SUM takes the mean of what the replicas assign, and one with MEAN the sum."""
    import tensorflow as tf
    from tensorflow.python.distribute import values

    other = {
        tf.VariableAggregation.SUM: tf.VariableAggregation.MEAN,
        tf.VariableAggregation.MEAN: tf.VariableAggregation.SUM,
    }

    def make(original: Any) -> Any:
        def apply(value: Any, aggregation: Any, destinations: Any) -> Any:
            return original(value, other.get(aggregation, aggregation), destinations)

        return apply

    replace(values, "apply_aggregation_replica_context", make)


@defect(_VARIABLES + r"|test_metrics\.py")
def on_read_of_first_component() -> None:
    """An ON_READ variable is read as its first component."""
    from tensorflow.python.distribute import values

    def make(original: Any) -> Any:
        return lambda self, *args: self._get_replica(0) if not args else args[0]._get_replica(0)

    replace(values.SyncOnReadVariable, "_get_cross_replica", make)
    replace(values.OnReadPolicy, "_get_cross_replica", make)


@defect(_VARIABLES)
def assign_sub_adds() -> None:
    """assign_sub of a distributed variable adds."""
    from tensorflow.python.distribute import values

    for kind in (values.DistributedVariable, values.SyncOnReadVariable):
        put(kind, "assign_sub", kind.assign_add)


@defect(_VARIABLES)
def scatter_in_another_row() -> None:
    """Scatter operations change the row before the one that was asked for."""
    import tensorflow as tf
    from tensorflow.python.distribute import values

    def make(original: Any) -> Any:
        def scatter(self: Any, slices: Any, *args: Any, **kwargs: Any) -> Any:
            rows = tf.math.floormod(slices.indices - 1, tf.cast(self.shape[0], slices.indices.dtype))
            return original(self, tf.IndexedSlices(slices.values, rows), *args, **kwargs)

        return scatter

    for name in ("add", "sub", "mul", "div", "min", "max", "update"):
        replace(values.DistributedVariable, f"scatter_{name}", make)


@defect(_VARIABLES)
def variable_reads_twice_its_value() -> None:
    """read_value of a distributed variable returns twice the value."""
    from tensorflow.python.distribute import values

    replace(values.DistributedVariable, "read_value", lambda original: lambda self: original(self) * 2)


@defect(_VARIABLES)
def variables_are_equal_and_have_one_hash() -> None:
    """Two distributed variables have one hash, and each is equal to every other."""
    from tensorflow.python.distribute import values

    put(values.DistributedVariable, "__hash__", lambda self: 1)
    put(values.DistributedVariable, "__eq__", lambda self, other: True)


@defect(r"test_random\.py::test_(a_generator_gives|the_states)")
def generator_of_one_stream() -> None:
    """All replicas draw from the stream of the first one."""
    from tensorflow.python.ops import stateful_random_ops

    def make(original: Any) -> Any:
        return lambda self, key: key

    replace(stateful_random_ops.Generator, "_preprocess_key", make)


@defect(r"test_random\.py::test_(a_generator_without|a_generator_gives|the_states)")
def generator_skips_nothing() -> None:
    """Generator.skip does nothing, and each draw starts at the same place."""
    from tensorflow.python.ops import stateful_random_ops

    def make(original: Any) -> Any:
        return lambda self, delta: self._state_var.read_value()

    replace(stateful_random_ops.Generator, "skip", make)
    replace(
        stateful_random_ops.Generator, "_skip_single_var", lambda original: lambda self, var, delta: var.read_value()
    )


@defect(r"test_random\.py::test_(stateless)")
def stateless_numbers_with_another_seed() -> None:
    """Stateless random numbers under a strategy have another seed in each replica."""
    import tensorflow as tf

    def make(original: Any) -> Any:
        def stateless(shape: Any, seed: Any, *args: Any, **kwargs: Any) -> Any:
            context = tf.distribute.get_replica_context()
            own = 0 if context is None else context.replica_id_in_sync_group
            return original(
                shape, tf.convert_to_tensor(seed) + tf.cast(own, tf.convert_to_tensor(seed).dtype), *args, **kwargs
            )

        return stateless

    for name in ("stateless_uniform", "stateless_normal", "stateless_truncated_normal"):
        replace(tf.random, name, make)


@defect(
    r"test_random\.py::test_(a_restored|a_generator_is)|checkpoint|saved|test_servers\.py::test_slots"
    r"|test_preemption\.py::test_(training_that|a_loop|workers_save)"
    r"|test_input_sources\.py::test_the_iterator"
)
def restore_does_nothing() -> None:
    """Checkpoint.restore leaves all values as they are."""
    import tensorflow as tf

    def make(original: Any) -> Any:
        def restore(self: Any, *args: Any, **kwargs: Any) -> Any:
            return original(tf.train.Checkpoint(), *args, **kwargs).expect_partial()

        return restore

    replace(tf.train.Checkpoint, "restore", make)
    replace(tf.train.Checkpoint, "read", make)


@defect(r"test_variable_operations\.py::test_replicas_start")
def last_component_starts_with_more() -> None:
    """The last component of a new variable is 1 larger than the others."""
    import tensorflow as tf
    from tensorflow.python.distribute import mirrored_strategy

    def make(original: Any) -> Any:
        def create(self: Any, *args: Any, **kwargs: Any) -> Any:
            found = original(self, *args, **kwargs)
            with tf.init_scope():
                found.values[-1].assign_add(tf.ones_like(found.values[-1]))
            return found

        return create

    replace(mirrored_strategy.MirroredExtended, "_create_variable", make)


@defect(r"test_variable_operations\.py::test_operators")
def subtraction_in_reverse() -> None:
    """A distributed variable is subtracted from the number that should be subtracted from it."""
    from tensorflow.python.distribute import values

    replace(values.DistributedVariable, "__sub__", lambda original: lambda self, other: -original(self, other))


@defect(r"test_random\.py::test_a_global_seed")
def global_seeds_have_no_effect() -> None:
    """tf.random.set_seed does nothing."""
    import tensorflow as tf

    skip(tf.random, "set_seed")


@defect(r"test_random\.py::test_a_generator_without")
def replicas_draw_from_half_the_range() -> None:
    """A number that a replica draws from a generator is half of the number drawn without a strategy."""
    import tensorflow as tf

    def make(original: Any) -> Any:
        def uniform(self: Any, *args: Any, **kwargs: Any) -> Any:
            return original(self, *args, **kwargs) * (0.5 if tf.distribute.has_strategy() else 1.0)

        return uniform

    replace(tf.random.Generator, "uniform", make)
