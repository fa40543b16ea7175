"""Defects of checkpoints and of saved models."""

from __future__ import annotations

from typing import Any

from suites.defects.registry import defect, put, replace, skip, twice


@defect(r"test_checkpoint_shards\.py::test_(files_below|rows_that_fit|a_scalar)")
def files_of_twice_the_size() -> None:
    """The files of a checkpoint may have twice the size that was asked for."""
    import tensorflow as tf

    def make(original: Any) -> Any:
        return lambda self, limit: original(self, 2 * limit)

    replace(tf.train.experimental.MaxShardSizePolicy, "__init__", make)


@defect(r"test_(saved_models|sharding_saved|servers)\.py::.*(saved|served|loaded|export)")
def loaded_variables_are_zero() -> None:
    """The variables of a saved model are 0 when it is loaded."""
    import tensorflow as tf
    from tensorflow.python.saved_model import load

    def make(original: Any) -> Any:
        def restore(self: Any) -> None:
            original(self)
            for node in self._nodes:
                if isinstance(node, tf.Variable) and node.dtype.is_floating:
                    node.assign(tf.zeros_like(node))

        return restore

    replace(load.Loader, "_restore_checkpoint", make)


@defect(r"test_saved_models\.py::test_a_model_and_its_optimizer")
def velocities_are_not_loaded() -> None:
    """The variables of an optimizer are 0 when a model is loaded."""
    import keras

    def emptied(model: Any) -> Any:
        for variable in model.optimizer.variables:
            if "momentum" in variable.path:
                variable.assign(keras.ops.zeros_like(variable))
        return model

    def make(original: Any) -> Any:
        return lambda *args, **kwargs: emptied(original(*args, **kwargs))

    def make_of_weights(original: Any) -> Any:
        def load(self: Any, *args: Any, **kwargs: Any) -> None:
            original(self, *args, **kwargs)
            emptied(self)

        return load

    replace(keras.models, "load_model", make)
    replace(keras.Model, "load_weights", make_of_weights)


@defect(r"test_saved_variables\.py::test_a_manager_waits")
def intervals_of_a_manager_are_ignored() -> None:
    """CheckpointManager.save always saves."""
    import tensorflow as tf

    def make(original: Any) -> Any:
        return lambda self, *args, **kwargs: original(self, *args, **{**kwargs, "check_interval": False})

    replace(tf.train.CheckpointManager, "save", make)


@defect(r"test_preemption\.py::test_(training_goes_on|functions_of|workers_save)")
def a_handler_saves_twice() -> None:
    """A handler of preemption saves two times."""
    import tensorflow as tf

    twice(tf.distribute.experimental.PreemptionCheckpointHandler, "_save_checkpoint")


@defect(r"test_preemption\.py::test_a_watcher")
def a_watcher_has_a_message() -> None:
    """A watcher has a message although nothing has happened."""
    import tensorflow as tf

    put(tf.distribute.experimental.PreemptionWatcher, "preemption_message", property(lambda self: "TERM"))


@defect(r"test_saved_variables\.py::test_each_kind")
def sums_are_loaded_by_each_replica() -> None:
    """Each replica loads the whole of a saved sum, so that the sum grows."""
    import tensorflow as tf
    from tensorflow.python.distribute import values_util

    def make(original: Any) -> Any:
        kinds = tf.VariableAggregation
        return lambda var, tensor, kind: original(var, tensor, kinds.MEAN if kind == kinds.SUM else kind)

    replace(values_util, "get_on_read_restore_ops", make)


@defect(r"test_(every_configuration|configurations|kept_attributes)\.py::(?!test_a_copy_of_a_model)")
def configurations_lose_a_parameter() -> None:
    """The configurations of generators and of RandomNormal lack the name and the seed."""
    from tensorflow import keras

    def without(lost: str) -> Any:
        def make(original: Any) -> Any:
            return lambda self: {name: value for name, value in original(self).items() if name != lost}

        return make

    replace(keras.initializers.RandomNormal, "get_config", without("seed"))
    replace(keras.random.SeedGenerator, "get_config", without("name"))


@defect(r"test_kept_attributes\.py::test_a_copy_of_a_model_has_all")
def regularizers_of_outputs_are_not_written() -> None:
    """The configuration of a layer lacks the regularizer of its outputs, unless its class writes it."""
    from tensorflow import keras

    def make(original: Any) -> Any:
        return lambda self: {name: value for name, value in original(self).items() if name != "activity_regularizer"}

    replace(keras.layers.Layer, "get_config", make)


@defect(r"test_initial_values\.py::test_a_seed_of_the_program")
def seeds_of_the_program_are_ignored() -> None:
    """set_random_seed does nothing."""
    from tensorflow import keras

    skip(keras.utils, "set_random_seed")


@defect(r"test_copies\.py::\w+\[\w+-weights file")
def layers_in_containers_are_not_loaded() -> None:
    """A file of weights leaves layers in lists as they were, as Keras did with lists in lists before 3.15."""
    from keras.src.saving import saving_lib

    replace(saving_lib, "_load_container_state", lambda original: lambda *args, **kwargs: None)


@defect(r"test_saved_lookups\.py")
def words_are_read_in_reverse() -> None:
    """The vocabulary that a layer reads from a file is the other way round."""
    from keras.src.layers.preprocessing.index_lookup import IndexLookup

    def make(original: Any) -> Any:
        def load(self: Any, folder: str) -> None:
            original(self, folder)
            if self.input_vocabulary is None and self.output_mode != "tf_idf":
                self.set_vocabulary(self.get_vocabulary(include_special_tokens=False)[::-1])

        return load

    replace(IndexLookup, "load_assets", make)


@defect(r"test_copies\.py::test_a_copy_takes_the_same_inputs")
def inputs_of_a_copy_are_dense_and_required() -> None:
    """The configuration of an input does not say that it may be left out, or is sparse."""
    import keras

    def make(original: Any) -> Any:
        return lambda self: {**original(self), "optional": False, "sparse": False}

    replace(keras.layers.InputLayer, "get_config", make)


@defect(r"test_structures\.py::test_inputs")
def lists_of_inputs_are_never_refused() -> None:
    """A list that is given for a dictionary of inputs is taken in the order of the sorted names."""
    from keras.src.models.functional import Functional

    skip(Functional, "_maybe_warn_inputs_struct_mismatch")


@defect(r"test_structures\.py::test_a_model")
def no_signature_is_saved() -> None:
    """A SavedModel has no signature."""
    from keras.src.backend.tensorflow.layer import TFLayer

    skip(TFLayer, "_default_save_signature")


@defect(r"test_paths\.py")
def early_variables_fix_the_path() -> None:
    """A layer that makes a variable before it is in another layer has a path without the other one."""
    import keras
    from keras.src.backend.common.name_scope import current_path

    def make(original: Any) -> Any:
        def add_weight(self: Any, *args: Any, **kwargs: Any) -> Any:
            if self._parent_path is None:
                self._parent_path = current_path()
            return original(self, *args, **kwargs)

        return add_weight

    replace(keras.layers.Layer, "add_weight", make)


@defect(r"test_objects_in_layers\.py")
def values_and_arguments_are_not_written() -> None:
    """The configuration of a constant initializer lacks its value, and that of a function its arguments."""
    import keras

    replace(keras.initializers.Constant, "get_config", lambda original: lambda self: {})
    replace(keras.layers.Lambda, "get_config", lambda original: lambda self: {**original(self), "arguments": {}})
