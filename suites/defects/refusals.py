"""Defects of wrong use that is not refused: functions return although they must raise."""

from __future__ import annotations

from typing import Any

from suites.defects.registry import defect, put, replace, silence, skip


@defect(
    r"test_values\.py::test_(reduce_along_an_axis_that_does_not|reduce_of_plain|gather_refuses)"
    r"|test_wrong_use\.py::test_(replicas_with|gathers)"
)
def errors_of_reductions_are_lost() -> None:
    """Strategy.reduce and Strategy.gather return nothing although they must raise."""
    import tensorflow as tf

    silence(tf.distribute.Strategy, "reduce", "gather")


@defect(
    r"test_values\.py::test_(an_exception_of_one|a_merge_call_that_not_all)"
    r"|test_wrong_use\.py::test_(calls_of|a_value_of_another|a_variable_that_each)"
)
def errors_of_replicas_are_lost() -> None:
    """Strategy.run returns nothing if a replica raises."""
    import tensorflow as tf

    for kind in (tf.distribute.Strategy, tf.distribute.MirroredStrategy, tf.distribute.MultiWorkerMirroredStrategy):
        if "run" in vars(kind) or kind is tf.distribute.Strategy:
            silence(kind, "run")


@defect(r"test_contexts\.py::test_entering_strategies|test_strategies\.py::test_a_variable_of_another")
def a_strategy_is_entered_in_another() -> None:
    """The scope of a strategy can be entered in that of another one."""
    from tensorflow.python.distribute import distribute_lib

    silence(distribute_lib._CurrentDistributionContext, "__enter__")


@defect(
    r"test_dtensor_layouts\.py::test_(a_mesh_that|layouts_that|parts_that)"
    r"|test_dtensor_training\.py::test_(datasets_that|assignments_of_other)"
)
def errors_of_layouts_are_lost() -> None:
    """Meshes, layouts, pieces and datasets of DTensor that do not fit are not refused."""
    from tensorflow.experimental import dtensor

    silence(dtensor, "create_mesh", "check_layout", "fetch_layout", "unpack", "pack")
    silence(dtensor.Layout, "__init__")
    silence(dtensor.DTensorDataset, "__init__")
    silence(dtensor.DVariable, "assign")


@defect(r"test_dtensor_layouts\.py::test_devices_that_do_not_exist")
def devices_that_do_not_exist_are_an_index_error() -> None:
    """A mesh of devices that do not exist ends in an error that is not about the devices."""
    from tensorflow.experimental import dtensor

    def make(original: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            try:
                return original(*args, **kwargs)
            except Exception:
                raise IndexError("list index out of range") from None

        return call

    for name in ("create_mesh", "copy_to_mesh", "unpack"):
        replace(dtensor, name, make)


@defect(r"test_coordinator\.py::test_(what_schedule_refuses|there_is_no_worker_index)")
def errors_of_the_coordinator_are_lost() -> None:
    """A coordinator schedules what is no tf.function, and there is a worker index outside closures."""
    import tensorflow as tf

    silence(tf.distribute.coordinator.ClusterCoordinator, "schedule")
    silence(tf.distribute.coordinator, "experimental_get_current_worker_index")


@defect(r"test_servers\.py::test_clusters_that_are_refused")
def clusters_are_not_checked() -> None:
    """A strategy of parameter servers takes each cluster."""
    import tensorflow as tf

    silence(tf.distribute.ParameterServerStrategy, "__init__")


@defect(r"test_checkpoint_shards\.py::test_a_function_is_no_callback")
def options_of_checkpoints_are_not_checked() -> None:
    """A function is taken for a callback that divides checkpoints."""
    import tensorflow as tf

    silence(tf.train.CheckpointOptions, "__init__")


@defect(r"test_fit_options\.py::test_what_is_made_out_of_the_scope")
def fit_does_not_check_the_scope() -> None:
    """Model.fit takes a model or an optimizer that was made out of the scope."""
    from tensorflow import keras

    silence(keras.Model, "fit")


@defect(r"test_strategies\.py::test_devices_of_a_mirrored|test_wrong_use\.py::test_a_strategy_of_several")
def devices_and_tasks_are_not_checked() -> None:
    """A strategy takes a device two times, and a task that is not in its cluster."""
    import tensorflow as tf

    silence(tf.distribute.MirroredStrategy, "__init__")
    silence(tf.distribute.MultiWorkerMirroredStrategy, "__init__")


@defect(r"test_strategies\.py::test_copies")
def strategies_are_copied() -> None:
    """A flat copy of a strategy is the strategy itself."""
    import tensorflow as tf

    put(tf.distribute.Strategy, "__copy__", lambda self: self)


@defect(r"test_saved_variables\.py::test_a_variable_that_cannot")
def what_cannot_be_read_is_saved() -> None:
    """Checkpoint.write raises nothing."""
    import tensorflow as tf

    silence(tf.train.Checkpoint, "write")


@defect(r"test_variable_operations\.py::test_(scatter_on_read|wrong_arguments|a_variable_out)")
def variables_refuse_nothing() -> None:
    """Distributed variables take wrong arguments, and do what their kind or their scope does not allow."""
    from tensorflow.python.distribute import distribute_utils, values

    scatter = [f"scatter_{name}" for name in ("add", "sub", "mul", "div", "min", "max", "update")]
    silence(values.SyncOnReadVariable, *scatter)
    silence(values.DistributedVariable, "assign", "assign_add")
    silence(distribute_utils, "create_mirrored_variable")


@defect(r"test_preemption\.py::test_an_error_of_one")
def errors_of_workers_are_others() -> None:
    """A handler of preemption raises an error of its own in place of that of the step."""
    import tensorflow as tf

    def make(original: Any) -> Any:
        def run(self: Any, *args: Any, **kwargs: Any) -> Any:
            try:
                return original(self, *args, **kwargs)
            except Exception:
                raise RuntimeError("a step has failed") from None

        return run

    replace(tf.distribute.experimental.PreemptionCheckpointHandler, "run", make)


@defect(r"test_input_iterators\.py::test_what_a_loop")
def loops_over_distributed_datasets_are_left_out() -> None:
    """A function leaves out what it cannot convert of a loop over a distributed dataset."""
    from tensorflow.python.autograph.operators import control_flow

    silence(control_flow, "_tf_distributed_iterable_for_stmt")


@defect(r"test_input_sources\.py::test_a_distributed_iterator")
def checkpoints_take_each_object() -> None:
    """A checkpoint takes an object that cannot be saved."""
    import tensorflow as tf

    silence(tf.train.Checkpoint, "__init__")


@defect(r"test_replica_context\.py::test_(all_gather_refuses|merge_call_in)|test_reductions\.py::test_replicas_with")
def errors_of_replica_contexts_are_lost() -> None:
    """Collectives and merge_call return nothing although they must raise."""
    import tensorflow as tf

    silence(tf.distribute.ReplicaContext, "all_gather", "merge_call")


@defect(r"test_sharding\.py::test_(partitioners_refuse|a_partitioner_of)")
def partitioners_are_not_checked() -> None:
    """Partitioners take each number, and a strategy takes each answer of a partitioner."""
    import tensorflow as tf
    from tensorflow.python.distribute.parameter_server_strategy_v2 import ParameterServerStrategyV2Extended

    for kind in ("MinSize", "MaxSize"):
        silence(getattr(tf.distribute.experimental.partitioners, f"{kind}Partitioner"), "__init__")
    silence(ParameterServerStrategyV2Extended, "_create_variable")


@defect(r"test_resolvers\.py::test_(union_of_numbered|slurm_lists|slurm_refuses|a_server|tpu)")
def errors_of_resolvers_are_lost() -> None:
    """Resolvers and servers take lists, numbers and names that do not fit."""
    import tensorflow as tf
    from tensorflow.python.distribute.cluster_resolver import slurm_cluster_resolver as slurm

    resolvers = tf.distribute.cluster_resolver
    silence(resolvers.UnionResolver, "cluster_spec")
    silence(slurm, "expand_hostlist", "expand_tasks_per_node")
    for kind in (resolvers.SlurmClusterResolver, resolvers.TPUClusterResolver, tf.distribute.Server):
        silence(kind, "__init__")


@defect(r"test_wrong_use\.py::test_flags")
def arguments_of_optimizers_are_not_checked() -> None:
    """Optimizers take arguments that they do not have."""
    from tensorflow import keras

    silence(keras.optimizers.Optimizer, "apply_gradients")


@defect(r"test_tf_keras\.py::test_callbacks_for_batches")
def callbacks_for_batches_are_taken() -> None:
    """A coordinator that does not wait for batches takes callbacks for them."""
    from tensorflow import keras

    skip(keras.callbacks.CallbackList, "_disallow_batch_hooks_in_ps_strategy")


@defect(r"test_wrong_use\.py::test_a_place_beside")
def every_variable_has_a_place() -> None:
    """A strategy puts a variable beside one that is not its own."""
    from tensorflow.python.distribute import distribute_utils

    silence(distribute_utils, "validate_colocate", "validate_colocate_distributed_variable")


@defect(r"test_refusals\.py")
def options_of_layers_are_not_checked() -> None:
    """A layer takes each of its options."""
    from suites.subject import keras

    silence(keras.layers.Dense, "__init__")
