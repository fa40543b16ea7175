"""Defects of Keras in masks of attention, in dropout of recurrent layers, and in statistics that are given."""

from __future__ import annotations

from typing import Any

from suites.defects.registry import defect, replace


@defect(r"test_attention\.py::test_(heads|a_list)")
def attention_takes_no_mask() -> None:
    """Attention counts what is masked."""
    import keras

    for name in ("MultiHeadAttention", "GroupQueryAttention"):
        replace(
            getattr(keras.layers, name), "_compute_attention_mask", lambda _original: lambda *_args, **_kwargs: None
        )
    replace(keras.layers.Attention, "_calculate_score_mask", lambda _original: lambda *_args, **_kwargs: None)


@defect(r"test_recurrent_dropout\.py")
def each_time_has_masks_of_its_own() -> None:
    """The dropout of a recurrent layer draws masks anew for each time of an example."""
    from keras.src.layers.rnn.dropout_rnn_cell import DropoutRNNCell

    def make(original: Any) -> Any:
        def get(cell: Any, step: Any) -> Any:
            cell._dropout_mask = cell._recurrent_dropout_mask = None
            return original(cell, step)

        return get

    for name in ("get_dropout_mask", "get_recurrent_dropout_mask"):
        replace(DropoutRNNCell, name, make)


@defect(r"test_adapt\.py::test_statistics_that_are_given")
def given_deviations_are_variances() -> None:
    """Normalization takes a variance that it is given for a standard deviation."""
    import keras

    def make(original: Any) -> Any:
        def init(layer: Any, *args: Any, variance: Any = None, **kwargs: Any) -> None:
            original(layer, *args, variance=None if variance is None else variance**2, **kwargs)

        return init

    replace(keras.layers.Normalization, "__init__", make)


@defect(r"test_adapt\.py::test_labels")
def labels_are_learned() -> None:
    """adapt learns from the labels of a dataset."""
    import keras
    import tensorflow as tf

    def make(original: Any) -> Any:
        def adapt(layer: Any, data: Any, *args: Any, **kwargs: Any) -> Any:
            if isinstance(data, tf.data.Dataset) and isinstance(data.element_spec, tuple):
                data = data.map(lambda x, y, *_: x + tf.cast(tf.shape(y)[0], x.dtype))
            return original(layer, data, *args, **kwargs)

        return adapt

    replace(keras.layers.Normalization, "adapt", make)


@defect(r"test_masks_of_users\.py")
def arguments_are_not_passed_on() -> None:
    """A layer gives the mask of its input to the next one, although it was called with another one."""
    import keras

    def make(original: Any) -> Any:
        def call(layer: Any, *args: Any, **kwargs: Any) -> Any:
            found = original(layer, *args, **kwargs)
            if kwargs.get("mask") is not None:
                found._keras_mask = getattr(args[0], "_keras_mask", None)
            return found

        return call

    replace(keras.layers.Layer, "__call__", make)


@defect(r"test_callback_files\.py::test_events_have\w*\[\w+-1")
def events_are_of_the_first_step() -> None:
    """TensorBoard writes all numbers of batches as those of step 0, as Keras 3.6 did."""
    import keras

    def make(original: Any) -> Any:
        def end(callback: Any, *args: Any, **kwargs: Any) -> None:
            step, callback._global_train_batch = callback._global_train_batch, 0
            original(callback, *args, **kwargs)
            callback._global_train_batch = step

        return end

    replace(keras.callbacks.TensorBoard, "on_train_batch_end", make)
