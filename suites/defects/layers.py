"""Defects of single layers: what they compute from their inputs, weights and masks."""

from __future__ import annotations

from typing import Any

from suites.defects.registry import defect, put, replace, skip


def _adds(owner: Any, name: str = "call") -> None:
    """Let a method return its first output with 1 more."""

    def make(original: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            found = original(*args, **kwargs)
            return (found[0] + 1, *found[1:]) if isinstance(found, tuple) else found + 1

        return call

    replace(owner, name, make)


@defect(r"test_recurrences\.py::test_(a_recurrence|two_directions_are|a_stateful|zeros_are)")
def recurrent_layers_ignore_masks() -> None:
    """Recurrent layers take all times into account, whatever their mask says."""
    from keras import layers

    def make(original: Any) -> Any:
        return lambda self, sequences, initial_state, mask, training=False: original(
            self, sequences, initial_state, None, training
        )

    for kind in (layers.RNN, layers.SimpleRNN, layers.LSTM, layers.GRU):
        if "inner_loop" in vars(kind):
            replace(kind, "inner_loop", make)


@defect(r"test_normalizing_layers\.py")
def normalized_values_are_shifted() -> None:
    """Layers that normalize return 1 more."""
    from keras import layers

    for name, kind in vars(layers).items():
        if name.endswith("Normalization"):
            _adds(kind)


@defect(r"test_merging\.py::test_(inputs|products)")
def merged_inputs_are_shifted() -> None:
    """Layers that merge inputs return 1 more."""
    from keras import layers

    for name in ("Add", "Average", "Multiply", "Subtract", "Maximum", "Minimum", "Concatenate", "Dot"):
        _adds(getattr(layers, name), "_merge_function")


@defect(r"test_merging\.py::test_what_is_joined")
def the_first_mask_is_that_of_all() -> None:
    """Concatenate takes the mask of its first input for that of its output."""
    from keras import layers

    replace(layers.Concatenate, "compute_mask", lambda _original: lambda _self, _inputs, mask: mask[0])


@defect(r"test_reshaping\.py")
def reshaped_values_are_shifted() -> None:
    """Layers that crop, pad, repeat or reshape return 1 more."""
    from keras import layers

    for name, kind in vars(layers).items():
        if name.startswith(("Cropping", "ZeroPadding", "UpSampling", "Flatten", "Reshape", "Permute", "RepeatVector")):
            _adds(kind)


@defect(r"test_projections\.py")
def projections_are_shifted() -> None:
    """Layers with a kernel or a table return 1 more."""
    from keras import layers

    for name in ("Dense", "EinsumDense", "Embedding", "ReversibleEmbedding", "TimeDistributed"):
        if hasattr(layers, name):
            _adds(getattr(layers, name))


@defect(r"test_attention_parameters\.py")
def attention_is_shifted() -> None:
    """Layers with attention return 1 more."""
    from keras import layers

    for name in ("MultiHeadAttention", "GroupQueryAttention", "Attention"):
        _adds(getattr(layers, name))


@defect(r"::test_each_(recurrent_layer|layer_that_(normalizes|merges))")
def new_layers_appear() -> None:
    """Keras has a recurrent layer, a merging one and a normalizing one that no test knows."""
    from keras import layers

    for name, base in (
        ("NewCell", layers.Layer),
        ("Modulo", layers.Add.__mro__[1]),
        ("NewNormalization", layers.Layer),
    ):
        put(layers, name, type(name, (base,), {}))


@defect(r"test_refused_options\.py")
def layers_tell_one_more_axis() -> None:
    """The shape of a symbol that a layer returns has one axis too many, and no symbol is refused."""
    import keras

    def make(original: Any) -> Any:
        def symbolic_call(self: Any, *args: Any, **kwargs: Any) -> Any:
            try:
                found = original(self, *args, **kwargs)
            except Exception:
                found = args[0]
            return keras.KerasTensor((*found.shape, 1))

        return symbolic_call

    replace(keras.Layer, "symbolic_call", make)


@defect(r"test_every_use\.py::test_a_layer_takes")
def layers_take_no_empty_batch() -> None:
    """A layer refuses a batch without examples."""
    import keras
    import tensorflow as tf

    def make(original: Any) -> Any:
        def call(self: Any, *args: Any, **options: Any) -> Any:
            if 0 in tf.nest.flatten(args)[0].shape:
                raise ValueError("no examples")
            return original(self, *args, **options)

        return call

    replace(keras.Layer, "__call__", make)


@defect(r"test_every_use\.py::test_a_summary")
def summaries_show_nothing() -> None:
    """Model.summary prints nothing."""
    import keras

    skip(keras.Model, "summary")


@defect(r"test_every_use\.py::test_a_mask_by_hand")
def masks_by_hand_are_lost() -> None:
    """A layer does not use the mask that it is called with."""
    import keras

    def make(original: Any) -> Any:
        def call(self: Any, *args: Any, **options: Any) -> Any:
            return original(self, *args, **{name: one for name, one in options.items() if name != "mask"})

        return call

    replace(keras.Layer, "__call__", make)
