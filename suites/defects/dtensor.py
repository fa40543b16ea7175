"""Defects of DTensor: meshes, layouts, pieces, and operations on them."""

from __future__ import annotations

from typing import Any

from suites.defects.registry import defect, replace

_PIECES = (
    r"test_dtensor_layouts\.py::test_(relayout|gradient|pack|functions|values_after)"
    r"|test_dtensor_training\.py::test_(assign|variables|a_checkpoint|a_dataset)"
)


@defect(r"test_dtensor_layouts\.py::test_a_mesh_numbers")
def places_of_devices_in_reverse() -> None:
    """The axes of a mesh are numbered in reverse."""
    from tensorflow.experimental import dtensor

    def make(original: Any) -> Any:
        return lambda self, index: original(self, index)[::-1]

    replace(dtensor.Mesh, "coords", make)


@defect(r"test_dtensor_layouts\.py::test_layouts_and_their_texts")
def layouts_without_shards() -> None:
    """Each dimension of a layout has one shard."""
    from tensorflow.experimental import dtensor

    replace(dtensor.Layout, "num_shards", lambda original: lambda self, index: 1)


@defect(_PIECES)
def pieces_in_reverse() -> None:
    """The pieces of a value are in reverse order."""
    from tensorflow.experimental import dtensor

    replace(dtensor, "unpack", lambda original: lambda value: [*original(value)][::-1])


@defect(r"test_dtensor_operations\.py::test_(an_operation|reductions)|test_dtensor_training\.py::test_training")
def shards_begin_with_another_row() -> None:
    """A tensor that gets a layout begins with its last row."""
    import tensorflow as tf
    from tensorflow.experimental import dtensor

    def make(original: Any) -> Any:
        def relayout(tensor: Any, layout: Any, *args: Any, **kwargs: Any) -> Any:
            plain = tf.executing_eagerly() and not dtensor.is_dtensor(tensor)
            return original(tf.roll(tensor, 1, 0) if plain else tensor, layout, *args, **kwargs)

        return relayout

    replace(dtensor, "relayout", make)


@defect(r"test_dtensor_operations\.py::test_random_numbers")
def copies_to_a_mesh_are_changed() -> None:
    """A tensor that is copied to a mesh is one larger there."""
    from tensorflow.experimental import dtensor

    replace(dtensor, "copy_to_mesh", lambda original: lambda tensor, layout: original(tensor + 1, layout))


@defect(r"test_dtensor_layouts\.py::test_barriers")
def clients_are_numbered_from_one() -> None:
    """The only client of a mesh has the number 1."""
    from tensorflow.experimental import dtensor

    replace(dtensor, "client_id", lambda original: lambda *args: original(*args) + 1)


@defect(r"test_dtensor_layouts\.py::test_functions")
def layouts_of_calls_are_ignored() -> None:
    """call_with_layout places a whole copy on each device."""
    from tensorflow.experimental import dtensor

    def make(original: Any) -> Any:
        def call(function: Any, layout: Any, *args: Any, **kwargs: Any) -> Any:
            return original(function, dtensor.Layout.replicated(layout.mesh, layout.rank), *args, **kwargs)

        return call

    replace(dtensor, "call_with_layout", make)


@defect(r"test_dtensor_layouts\.py::test_gradient")
def gradients_of_relayout_are_doubled() -> None:
    """A relayout in a function has twice the gradient."""
    import tensorflow as tf
    from tensorflow.experimental import dtensor

    def make(original: Any) -> Any:
        def relayout(tensor: Any, layout: Any, *args: Any, **kwargs: Any) -> Any:
            return original(tensor if tf.executing_eagerly() else tensor * 2.0, layout, *args, **kwargs)

        return relayout

    replace(dtensor, "relayout", make)
