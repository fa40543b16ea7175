"""Defects of Keras in callbacks, initial values, metrics, losses, schedules and lookups."""

from __future__ import annotations

from typing import Any

from suites.defects.registry import defect, put, replace, skip, twice


def _doubles(owner: Any, name: str) -> None:
    """Let a function return twice its result."""
    replace(owner, name, lambda original: lambda *args, **kwargs: original(*args, **kwargs) * 2)


@defect(r"test_callback_parameters\.py::test_(training_stops|the_rate_falls|files)")
def each_number_improves() -> None:
    """Callbacks that watch a number take each one for better than all before."""
    from keras.src.callbacks.monitor_callback import MonitorCallback

    replace(MonitorCallback, "_is_improvement", lambda _original: lambda *_args: True)


@defect(r"test_callback_parameters\.py::test_a_rate_is")
def rates_are_not_scheduled() -> None:
    """LearningRateScheduler does nothing before an epoch."""
    import keras

    skip(keras.callbacks.LearningRateScheduler, "on_epoch_begin")


@defect(r"test_callback_parameters\.py::test_a_table")
def rows_are_written_twice() -> None:
    """CSVLogger writes each row twice."""
    import keras

    twice(keras.callbacks.CSVLogger, "on_epoch_end")


@defect(r"test_fit_parameters\.py|test_hooks_and_logs\.py")
def losses_of_a_model_are_doubled() -> None:
    """A model trains with twice its loss, reports that loss, and predicts twice its outputs."""
    from keras.src.backend.tensorflow.trainer import TensorFlowTrainer
    from keras.src.trainers.trainer import Trainer

    _doubles(Trainer, "_compute_loss")
    _doubles(TensorFlowTrainer, "predict")


@defect(r"test_initial_values\.py::test_(variables|a_seed)")
def seeds_depend_on_the_strategy() -> None:
    """The numbers of a seed are others if there is a strategy."""
    import tensorflow as tf
    from keras.src.backend.tensorflow import random

    def make(original: Any) -> Any:
        return lambda seed: original(seed) + (1 if tf.distribute.has_strategy() else 0)

    replace(random, "_cast_seed", make)


@defect(r"test_initial_values\.py::test_initial_values_have")
def initial_values_are_larger() -> None:
    """Initializers draw values that are a twentieth larger."""
    from keras.src.initializers import constant_initializers, random_initializers

    for module in (constant_initializers, random_initializers):
        for name in ("Constant", "Identity", "Orthogonal", "RandomNormal", "TruncatedNormal", "VarianceScaling"):
            if hasattr(module, name):
                replace(
                    getattr(module, name),
                    "__call__",
                    lambda original: lambda self, *given, **options: original(self, *given, **options) * 1.05,
                )


@defect(r"test_initial_values\.py::test_a_penalty")
def penalties_are_doubled() -> None:
    """Regularizers return twice their penalty."""
    from keras.src.regularizers import regularizers

    for name in ("L1", "L2", "L1L2", "OrthogonalRegularizer"):
        _doubles(getattr(regularizers, name), "__call__")


@defect(r"test_initial_values\.py::test_a_constraint")
def constraints_are_ignored() -> None:
    """Constraints return the weights as they are."""
    from keras.src.constraints import constraints

    for name in ("MaxNorm", "UnitNorm", "MinMaxNorm"):
        replace(getattr(constraints, name), "__call__", lambda _original: lambda _self, w: w)


@defect(r"test_(iou|metric)_parameters\.py::test_(an_overlap|classes|a_metric_is)|test_numpy_backend\.py::test_objects")
def results_of_metrics_are_doubled() -> None:
    """Metrics of means, sums and overlaps return twice their result."""
    from keras.src.metrics import iou_metrics, reduction_metrics

    for owner in (iou_metrics.IoU, iou_metrics.MeanIoU, reduction_metrics.Mean, reduction_metrics.Sum):
        _doubles(owner, "result")


@defect(r"test_pooling\.py")
def pooling_returns_twice_its_windows() -> None:
    """Layers that pool return twice what they should."""
    from keras import layers

    for name, kind in vars(layers).items():
        if "Pooling" in name and kind is getattr(layers, kind.__name__):
            _doubles(kind, "call")


@defect(r"test_convolutions\.py")
def convolutions_are_doubled() -> None:
    """Convolutions return twice what they should."""
    from keras import layers

    for name, kind in vars(layers).items():
        if name.endswith(("Conv1D", "Conv2D", "Conv3D", "DTranspose")) and "Conv" in name:
            _doubles(kind, "call")


@defect(r"test_activations\.py::test_a_function")
def activations_are_doubled() -> None:
    """Functions of layers return twice what they should."""
    from keras import activations

    for name, function in list(vars(activations).items()):
        if callable(function) and name not in ("get", "serialize", "deserialize"):
            _doubles(activations, name)


@defect(r"test_operations\.py::test_an_operation")
def operations_are_doubled() -> None:
    """Operations return twice what NumPy returns."""
    import numpy as np
    from keras import ops

    for name, operation in list(vars(ops).items()):
        if callable(operation) and hasattr(np, name):
            _doubles(ops, name)


@defect(r"test_numpy_backend\.py::test_operations")
def operations_add_one() -> None:
    """An operation of each kind returns one more than it should."""
    from keras import ops

    for name in ("abs", "absolute", "add", "subtract", "amax", "sum", "clip", "trace"):
        replace(ops, name, lambda original: lambda *args, **kwargs: original(*args, **kwargs) + 1)


@defect(r"test_defined_operations\.py::test_each")
def operations_have_more_options() -> None:
    """There is an operation, and an option of another, that no table knows."""
    from keras import ops

    def cdist(x: Any, y: Any, further: int = 0) -> Any:
        return further, x, y

    put(ops, "further", cdist)
    put(ops, "cdist", cdist)


@defect(r"test_(told_op|types_of)\w+\.py::test_(the_r|each)|test_refused_operations\.py::test_a_symbol")
def symbols_have_seven_numbers() -> None:
    """The shape of each result of a symbol is a row of seven numbers."""
    import keras
    from keras.src.ops.operation import Operation

    replace(Operation, "symbolic_call", lambda _original: lambda *_args, **_kwargs: keras.KerasTensor((7,)))


@defect(r"test_traced_operations\.py")
def functions_add_an_axis() -> None:
    """A function returns tensors with one axis more than a plain call."""
    import tensorflow as tf

    def make(_original: Any) -> Any:
        def function(body: Any, *_args: Any, **_options: Any) -> Any:
            return lambda *given: tf.nest.map_structure(lambda one: tf.expand_dims(one, -1), body(*given))

        return function

    replace(tf, "function", make)


@defect(r"test_(metric_parameters\.py::test_a_metric_of|forms_of_metrics\.py::test_a_metric_is)")
def metrics_keep_their_state() -> None:
    """Metrics do not begin again."""
    from keras.src.metrics.metric import Metric

    skip(Metric, "reset_state")


@defect(r"test_loss_parameters\.py|test_numpy_backend\.py::test_objects")
def reduced_losses_are_doubled() -> None:
    """Losses return twice their reduced value."""
    from keras.src.losses import loss

    _doubles(loss, "reduce_weighted_values")


@defect(r"test_schedule_parameters\.py")
def schedules_count_one_step_more() -> None:
    """Schedules give the rate of the next step."""
    from keras.src.optimizers.schedules import learning_rate_schedule

    for one in vars(learning_rate_schedule).values():
        if isinstance(one, type) and issubclass(one, learning_rate_schedule.LearningRateSchedule):
            replace(one, "__call__", lambda original: lambda self, step: original(self, step + 1))


@defect(r"test_lookup_parameters\.py::test_what_is_looked_up")
def vocabularies_in_tensors_are_turned() -> None:
    """A vocabulary that is no list has its words in the opposite order."""
    from keras.src.layers.preprocessing.index_lookup import IndexLookup

    def make(original: Any) -> Any:
        def set_vocabulary(self: Any, vocabulary: Any, *args: Any, **kwargs: Any) -> Any:
            return original(self, vocabulary if isinstance(vocabulary, list) else vocabulary[::-1], *args, **kwargs)

        return set_vocabulary

    replace(IndexLookup, "set_vocabulary", make)


@defect(r"test_lookup_parameters\.py")
def lookups_lose_examples() -> None:
    """Layers that look things up see the first example only if there is a strategy."""
    import tensorflow as tf
    from keras.src.layers import Discretization
    from keras.src.layers.preprocessing.index_lookup import IndexLookup

    def make(original: Any) -> Any:
        return lambda self, inputs: original(self, inputs[:1] if tf.distribute.has_strategy() else inputs)

    replace(IndexLookup, "call", make)
    replace(Discretization, "call", make)


@defect(r"test_layer_parameters\.py|test_optimizer_parameters\.py")
def gradients_are_doubled_under_a_strategy() -> None:
    """An optimizer applies twice the gradients if there is a strategy."""
    import tensorflow as tf
    from keras.src.optimizers.base_optimizer import BaseOptimizer

    def make(original: Any) -> Any:
        def apply(self: Any, grads: Any, *args: Any, **kwargs: Any) -> Any:
            many = 2 if tf.distribute.has_strategy() else 1
            return original(self, [None if one is None else one * many for one in grads], *args, **kwargs)

        return apply

    replace(BaseOptimizer, "apply", make)


@defect(r"test_spellings\.py::\w+\[\w+-UnitNormalization")
def axes_from_the_back_are_others() -> None:
    """UnitNormalization takes the axis before the one that is counted from the back."""
    import keras

    def make(original: Any) -> Any:
        def shifted(layer: Any, axis: Any = -1, **options: Any) -> None:
            original(layer, axis, **options)
            layer.axis = [one - 1 if one < 0 else one for one in layer.axis]

        return shifted

    replace(keras.layers.UnitNormalization, "__init__", make)


@defect(r"test_every_shape\.py")
def dense_layers_tell_one_unit_more() -> None:
    """Dense states a shape with one unit more than it has."""
    import keras

    def make(original: Any) -> Any:
        return lambda self, shape: (*original(self, shape)[:-1], self.units + 1)

    replace(keras.layers.Dense, "compute_output_shape", make)


@defect(r"test_told_lookups\.py::test_what_is_told")
def lookups_tell_one_code_more() -> None:
    """Lookups state a shape with one code more than they give."""
    import keras

    def make(original: Any) -> Any:
        return lambda self, shape: (*original(self, shape)[:-1], 99)

    replace(keras.layers.IntegerLookup, "compute_output_shape", make)


@defect(r"test_every_image\.py::test_a_layer_changes_images")
def all_images_have_one_brightness() -> None:
    """RandomBrightness adds the same number to all images of a batch."""
    import keras

    def make(original: Any) -> Any:
        def draw(self: Any, *args: Any, **kwargs: Any) -> Any:
            return {name: value[:1] for name, value in original(self, *args, **kwargs).items()}

        return draw

    replace(keras.layers.RandomBrightness, "get_random_transformation", make)


@defect(r"test_every_unknown_size\.py")
def unknown_sizes_are_one() -> None:
    """A size of a tensor that is not known while a function is traced counts as 1."""
    from keras.src import backend

    def make(original: Any) -> Any:
        return lambda x: tuple(one if isinstance(one, int) else 1 for one in original(x))

    replace(backend.core, "shape", make)


@defect(r"test_forms_of_losses\.py::test_each_function")
def a_loss_has_a_new_function() -> None:
    """keras.losses has a function that no class stands for."""
    import keras

    put(keras.losses, "a_new_function", lambda *_arguments: None)


@defect(r"test_forms_of_losses\.py::test_a_loss_is")
def functions_of_losses_are_doubled() -> None:
    """The function of a mean squared error returns twice the loss of its class."""
    import keras

    _doubles(keras.losses, "mean_squared_error")


@defect(r"test_global_settings\.py::test_(an_object|a_layer_(follows|computes))")
def settings_of_the_program_are_ignored() -> None:
    """Objects ignore the policy, type and order of axes that the program sets as defaults."""
    from keras.src import backend, dtype_policies

    replace(dtype_policies, "get", lambda original: lambda name: original("float32" if name is None else name))
    replace(backend, "standardize_data_format", lambda original: lambda name: original(name or "channels_last"))
    put(backend, "floatx", lambda: "float32")


@defect(r"test_global_settings\.py::test_names")
def layers_open_no_scope() -> None:
    """Operations and variables of a layer do not have its name."""
    from contextlib import nullcontext

    from keras.src import backend

    put(backend, "name_scope", lambda *_, **__: nullcontext())


@defect(r"test_types_of_operations\.py::test_whole_numbers")
def whole_numbers_are_computed_in_32_bits() -> None:
    """The operations maximum, max and negative compute in float32."""
    from keras import ops

    def make(original: Any) -> Any:
        return lambda *given: ops.cast(original(*(ops.cast(one, "float32") for one in given)), "int64")

    for name in ("maximum", "max", "negative"):
        replace(ops, name, make)
