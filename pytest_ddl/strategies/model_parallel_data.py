"""Put batches and constants on a DTensor mesh. Only ``ModelParallel.build`` imports this module."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import tensorflow as tf
from tensorflow.experimental import dtensor

from pytest_ddl.strategies.adapter import composite_tensor, outermost_graph

BATCH_AXIS = "batch"


def pack_batch(batch: Any, mesh: Any, shard: bool = True) -> Any:
    """Put a nest of plain tensors on the mesh, split over the axis ``batch`` or whole on every device.

    A batch whose size the axis does not divide (usually the last one) is replicated. The program computes on the
    global batch in both cases, so only the speed differs.
    """
    leaves = tf.nest.flatten(batch)
    for leaf in leaves:
        if isinstance(leaf, (tf.RaggedTensor, tf.SparseTensor)):
            raise TypeError(
                f"the dataset yields a {type(leaf).__name__}; DTensor takes dense tensors only: "
                "pad it, or use to_tensor() or tf.sparse.to_dense"
            )
    parts = mesh.dim_size(BATCH_AXIS) if BATCH_AXIS in mesh.dim_names else 1
    sizes = {leaf.shape[0] for leaf in leaves if tf.is_tensor(leaf) and leaf.shape.rank}
    shard = shard and all(size % parts == 0 for size in sizes) and BATCH_AXIS in mesh.dim_names

    def pack(leaf: Any) -> Any:
        if not tf.is_tensor(leaf) or dtensor.is_dtensor(leaf):
            return leaf
        rank = leaf.shape.rank
        spec = [dtensor.UNSHARDED] * rank
        if shard and rank:
            spec[0] = BATCH_AXIS
        layout = dtensor.Layout(spec, mesh)
        if leaf.dtype == tf.string:
            # dtensor.relayout has no kernel for strings.
            pieces = tf.split(leaf, parts) if shard and rank else []
            copies = [pieces[place[BATCH_AXIS]] if pieces else leaf for place in mesh.local_device_locations()]
            return dtensor.pack(copies, layout)
        return dtensor.relayout(leaf, layout)

    return tf.nest.map_structure(pack, batch)


def copy_captured_constants(mesh: Any) -> None:
    """Replace the constants that the current tf.function captured by copies on the mesh.

    DTensor itself copies only scalars and refuses larger tensors.
    """
    graph = outermost_graph()
    for tensor, placeholder in list(graph.captures):
        if not hasattr(tensor, "numpy") or tensor.dtype in (tf.resource, tf.variant):
            continue
        with tf.init_scope():
            if dtensor.is_dtensor(tensor):
                continue
            copy = pack_batch(tensor, mesh, shard=False)
        graph.replace_capture_with_deferred_capture(
            tensor,
            lambda copy=copy: copy,
            tf.TensorSpec.from_tensor(tensor),
            placeholder,
            default_value=tensor,
        )


class PackedDataset:
    """Dataset of global batches. Its iterators yield the batches packed over the mesh."""

    def __init__(self, dataset: Any, mesh: Any) -> None:
        self._dataset = dataset
        self._mesh = mesh

    @property
    def element_spec(self) -> Any:
        return self._dataset.element_spec

    def __iter__(self) -> PackedIterator:
        if not tf.executing_eagerly():
            raise RuntimeError("iter(dataset) in a tf.function: under model_parallel, pass the iterator as an argument")
        return PackedIterator(iter(self._dataset), self._mesh)


class PackedIterator(composite_tensor()):  # type: ignore[misc]
    """Iterator of packed batches that may be an argument of a tf.function.

    TensorFlow sees it as the next batch. Its signature is that of the batch, so a shorter last batch is traced again.
    The batch is taken when the function is called. DTensor's own DTensorDataset supports neither shorter batches nor
    batches of the global size.
    """

    def __init__(self, source: Iterator[Any], mesh: Any) -> None:
        self._source = source
        self._mesh = mesh
        self._waiting: list[Any] = []

    def __iter__(self) -> PackedIterator:
        return self

    def __next__(self) -> Any:
        if not tf.executing_eagerly():
            raise RuntimeError(
                "next(iterator) in a tf.function: under model_parallel, pass the iterator as an argument"
            )
        batch = self.peek()
        self._waiting.clear()
        return batch

    def get_next(self) -> Any:
        """Return the next batch.

        :raises tf.errors.OutOfRangeError: at the end, as TensorFlow's iterators do.
        """
        try:
            return next(self)
        except StopIteration:
            raise tf.errors.OutOfRangeError(None, None, "End of sequence") from None

    def peek(self) -> Any:
        """Return the next batch without taking it."""
        if not self._waiting:
            self._waiting.append(pack_batch(next(self._source), self._mesh))
        return self._waiting[0]

    @property
    def _type_spec(self) -> Any:
        try:
            batch = self.peek()
        except StopIteration:
            raise tf.errors.OutOfRangeError(None, None, "End of sequence") from None
        return _NextBatchSpec(tf.nest.map_structure(tf.TensorSpec.from_tensor, batch))

    def _take(self) -> Any:
        return self.get_next()


class _TracedIterator(composite_tensor()):  # type: ignore[misc]
    """Iterator inside a tf.function. It holds one batch, which the function may take once."""

    def __init__(self, spec: Any, batch: Any) -> None:
        self._spec = spec
        self._batch = batch
        self._graph = tf.compat.v1.get_default_graph()
        self._taken = False

    @property
    def _type_spec(self) -> Any:
        return self._spec

    def _take(self) -> Any:
        return self._batch

    def __iter__(self) -> _TracedIterator:
        return self

    def __next__(self) -> Any:
        if self._taken or tf.compat.v1.get_default_graph() is not self._graph:
            raise NotImplementedError(
                "model_parallel gives a tf.function one batch per call: next(iterator) was called twice, "
                "or in a loop, branch or inner tf.function; take the batch once at the top, "
                "and call the tf.function per batch"
            )
        self._taken = True
        return self._batch

    get_next = __next__


class _NextBatchSpec(tf.TypeSpec):  # type: ignore[misc]
    __slots__ = ["_element_spec"]

    def __init__(self, element_spec: Any) -> None:
        self._element_spec = element_spec

    @property
    def value_type(self) -> Any:
        return _TracedIterator

    @property
    def _component_specs(self) -> Any:
        return self._element_spec

    def _serialize(self) -> Any:
        return (self._element_spec,)

    def _to_components(self, value: Any) -> Any:
        return value._take()

    def _from_components(self, components: Any) -> Any:
        return _TracedIterator(self, components)

    def most_specific_common_supertype(self, others: Any) -> Any:
        # Never relax to unknown sizes, because DTensor compiles only for known shapes.
        return self if all(self == other for other in others) else None
