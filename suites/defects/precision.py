"""Defects of Keras in 16 bits, and in masks."""

from __future__ import annotations

from typing import Any

from suites.defects.registry import defect, put, replace


@defect(r"test_every_layer\.py::test_a_layer\w*\[.*mask=along")
def masks_end_at_each_layer() -> None:
    """No layer gives its mask to the next one."""
    import keras

    replace(keras.layers.Layer, "compute_mask", lambda _original: lambda *_args, **_kwargs: None)


@defect(r"test_every_layer\.py::test_a_mask_stays")
def masks_end_at_a_cast() -> None:
    """A cast of a tensor to another type drops its mask."""
    import keras

    def make(original: Any) -> Any:
        def call(layer: Any, values: Any, *args: Any, **kwargs: Any) -> Any:
            if getattr(values, "dtype", layer.compute_dtype) != layer.compute_dtype:
                values = keras.ops.cast(values, layer.compute_dtype)
            return original(layer, values, *args, **kwargs)

        return call

    replace(keras.layers.Layer, "__call__", make)


@defect(r"test_every_layer\.py::test_every_layer")
def a_layer_is_new() -> None:
    """Keras has a layer that no test knows."""
    import keras

    put(keras.layers, "Newest", type("Newest", (keras.layers.Layer,), {}))


@defect(r"test_half_precision\.py::test_a_loss\w*\[.*-Mean")
def losses_compute_in_16_bits() -> None:
    """A loss of float32 computes in float16."""
    import keras

    wide = keras.losses.Loss.dtype.fget
    put(keras.losses.Loss, "dtype", property(lambda loss: "float16" if wide(loss) == "float32" else wide(loss)))


@defect(r"test_half_precision\.py::test_a_metric\w*\[.*-MeanAbsoluteError")
def metrics_cut_16_bits() -> None:
    """A metric cuts predictions of 16 bits to whole numbers."""
    import keras

    def make(original: Any) -> Any:
        def update_state(metric: Any, y_true: Any, y_pred: Any, sample_weight: Any = None) -> Any:
            dtype = getattr(y_pred, "dtype", "float32")
            if dtype in ("float16", "bfloat16"):
                y_pred = keras.ops.cast(keras.ops.cast(y_pred, "int32"), dtype)
            return original(metric, y_true, y_pred, sample_weight)

        return update_state

    replace(keras.metrics.MeanMetricWrapper, "update_state", make)


@defect(r"test_outputs\.py")
def masks_of_outputs_do_not_count() -> None:
    """A loss and a metric count what the mask of the predictions leaves out."""
    import keras

    replace(keras.src.backend, "get_keras_mask", lambda _original: lambda _values: None)


@defect(r"test_models_in_models\.py")
def metrics_of_layers_go_on() -> None:
    """A new epoch resets only the metrics that compile was given."""
    import keras

    def reset_metrics(trainer: Any) -> None:
        for metric in trainer._get_own_metrics():
            metric.reset_state()

    replace(keras.Model, "reset_metrics", lambda _original: reset_metrics)


@defect(r"test_precision\.py::test_what_a_layer_keeps")
def assigned_numbers_are_rounded() -> None:
    """A variable takes a number in the 16 bits of the layer."""
    import keras

    def make(original: Any) -> Any:
        return lambda variable, value: original(variable, keras.ops.cast(value, "float16"))

    replace(keras.Variable, "assign", make)


@defect(r"test_adapt\.py")
def the_last_batch_is_not_learned() -> None:
    """adapt of a layer leaves out the last batch of a dataset."""
    import keras
    import tensorflow as tf

    def make(original: Any) -> Any:
        def adapt(layer: Any, data: Any, *args: Any, **kwargs: Any) -> Any:
            if isinstance(data, tf.data.Dataset):
                data = data.take(data.cardinality() - 1)
            return original(layer, data, *args, **kwargs)

        return adapt

    for name in ("Normalization", "StringLookup", "IntegerLookup", "TextVectorization"):
        replace(getattr(keras.layers, name), "adapt", make)


@defect(r"test_precision\.py::test_a_function_is\w*\[.*gelu")
def gelu_is_cancelled_below_zero() -> None:
    """Gelu adds one to a number that is nearly -1."""
    import tensorflow as tf

    from suites.subject import keras

    put(keras.activations, "gelu", lambda x: 0.5 * x * (1 + tf.math.erf(x / 2**0.5)))
