"""Imitate a ``tf.distribute.Strategy`` over a DTensor mesh. Only ``ModelParallel.build`` imports this module."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import tensorflow as tf
from tensorflow.experimental import dtensor

from pytest_ddl.strategies.model_parallel_data import PackedDataset, copy_captured_constants, pack_batch
from pytest_ddl.strategies.model_parallel_layout import LayoutMap


class MeshVariable(dtensor.DVariable):  # type: ignore[misc]
    """DTensor variable that keeps its layout. A tf.function that assigns it reads the assigned value afterwards.

    In a tf.function over DTensors (TensorFlow 2.21), a read after an assignment may return the value from *before*
    the assignment. It may also fail with "SPMD expansion resulted in op output inconsistent with the provided layout".
    Keras' momentum reads its slot right after it assigns it. A bias therefore moved one step late, and did not move in
    the first step.

    The value is therefore given the variable's layout before it is assigned. Slots and state, which no tape watches,
    are not read back: within the graph that assigned them, a read returns the assigned value.
    """

    _written: tuple[Any, Any] | None = None

    def assign(self, value: Any, use_locking: Any = None, name: Any = None, read_value: bool = True) -> Any:
        value = dtensor.relayout(tf.convert_to_tensor(value, dtype=self.dtype), self.layout)
        if tf.executing_eagerly():
            return super().assign(value, use_locking, name, read_value)
        operation = super().assign(value, use_locking, name, read_value=False)
        self._written = (weakref.ref(tf.compat.v1.get_default_graph()), value)
        return self if read_value else operation

    def assign_add(self, delta: Any, use_locking: Any = None, name: Any = None, read_value: bool = True) -> Any:
        return self.assign(self.read_value() + self._delta(delta), use_locking, name, read_value)

    def assign_sub(self, delta: Any, use_locking: Any = None, name: Any = None, read_value: bool = True) -> Any:
        return self.assign(self.read_value() - self._delta(delta), use_locking, name, read_value)

    def _delta(self, delta: Any) -> Any:
        return dtensor.relayout(tf.convert_to_tensor(delta, dtype=self.dtype), self.layout)

    def scatter_add(self, sparse_delta: Any, use_locking: bool = False, name: Any = None) -> Any:
        """Add a sparse delta as a dense update, because DTensor cannot lay out ``ResourceScatterAdd``."""
        return self.assign_add(tf.convert_to_tensor(sparse_delta), use_locking, name)

    def scatter_sub(self, sparse_delta: Any, use_locking: bool = False, name: Any = None) -> Any:
        return self.assign_sub(tf.convert_to_tensor(sparse_delta), use_locking, name)

    def _read_variable_op(self, no_copy: bool = False) -> Any:
        graph, value = self._written or (None, None)
        if self.trainable or graph is None or tf.executing_eagerly() or graph() is not tf.compat.v1.get_default_graph():
            return super()._read_variable_op(no_copy)
        return tf.identity(value)

    def numpy(self) -> Any:
        """Return the global value. TensorFlow's own method refuses a sharded variable."""
        return gather(self).numpy()


def gather(value: Any) -> Any:
    """Return the global value of a DTensor or variable as one plain tensor. Return a plain tensor as it is."""
    tensor = value.read_value() if isinstance(value, tf.Variable) else value
    if not tf.is_tensor(tensor) or not dtensor.is_dtensor(tensor):
        return tensor
    mesh = dtensor.fetch_layout(tensor).mesh
    replicated = dtensor.Layout.replicated(mesh, rank=tensor.shape.rank)
    return dtensor.unpack(dtensor.relayout(tensor, replicated))[0]


class ModelParallelStrategy:
    """Strategy over a DTensor mesh, with the methods of ``tf.distribute.Strategy`` that data-parallel programs use.

    There is one logical replica. Values, batches and variables are global, so a program that was written for one
    device runs without changes. Set layout rules before the variables are made::

        strategy.layout_map["dense/kernel"] = (None, "model")
        with strategy.scope():
            model = ...
    """

    num_replicas_in_sync = 1

    def __init__(self, axes: Mapping[str, int], devices: Sequence[str]) -> None:
        self.axes = dict(axes)
        self.mesh = dtensor.create_mesh(list(axes.items()), devices=list(devices), device_type=devices[0].split(":")[0])
        self.layout_map = LayoutMap(axes)
        self.created: Callable[[Any], None] = lambda _variable: None
        """Callback for each new variable."""
        self._traced: weakref.WeakKeyDictionary[Any, Callable[..., Any]] = weakref.WeakKeyDictionary()

    @contextmanager
    def scope(self) -> Iterator[None]:
        """Turn each variable that is created in this context into a DTensor variable; see :attr:`layout_map`."""
        with ExitStack() as stack:
            with tf.init_scope():
                # A variable creator belongs to one graph, and Keras makes variables outside the graph being traced.
                stack.enter_context(tf.variable_creator_scope(self._create))
            if not tf.executing_eagerly():
                stack.enter_context(tf.variable_creator_scope(self._create))
            yield

    def run(self, fn: Callable[..., Any], args: Any = (), kwargs: Mapping[str, Any] | None = None) -> Any:
        """Call ``fn`` once, on the global batch. Outside a tf.function, trace it into one.

        Eager gradients and constants do not work with DTensors, so ``fn`` has to be traced. Its Python side effects
        therefore happen only while it is traced, as in every tf.function.
        """
        if not tf.executing_eagerly():
            with self.scope():
                result = fn(*args, **dict(kwargs or {}))
            copy_captured_constants(self.mesh)
            return result
        args, kwargs = tf.nest.map_structure(self._on_mesh, (tuple(args), dict(kwargs or {})))
        with dtensor.default_mesh(self.mesh):
            return self._tracer(fn)(*args, **kwargs)

    def reduce(self, reduce_op: Any, value: Any, axis: int | None = None) -> Any:
        """Return the value, because there is one replica. With an axis, reduce the value over this axis.

        :raises ValueError: if ``reduce_op`` is neither SUM nor MEAN.
        """
        op = str(getattr(reduce_op, "value", reduce_op)).upper()
        if op not in ("SUM", "MEAN"):
            raise ValueError(f"reduce(reduce_op={reduce_op!r}): use 'SUM' or 'MEAN'")
        if axis is not None:
            over = tf.reduce_sum if op == "SUM" else tf.reduce_mean
            value = tf.nest.map_structure(lambda part: over(part, axis=axis), value)
        if not tf.executing_eagerly():
            copy_captured_constants(self.mesh)
        return value

    def gather(self, value: Any, axis: int = 0) -> Any:
        """Return the global value, as a plain tensor outside a tf.function. One replica needs no concatenation."""
        return tf.nest.map_structure(gather, value) if tf.executing_eagerly() else value

    def experimental_local_results(self, value: Any) -> tuple[Any, ...]:
        """Return a tuple with the global value as its only item, gathered onto one device."""
        return (tf.nest.map_structure(gather, value),)

    def experimental_distribute_dataset(self, dataset: Any, options: Any = None) -> PackedDataset:
        """Return a dataset of global batches that are packed over the axis ``batch``; see :class:`PackedDataset`."""
        return PackedDataset(dataset, self.mesh)

    def distribute_datasets_from_function(self, dataset_fn: Callable[[Any], Any], options: Any = None) -> PackedDataset:
        """Call the function once and pack its dataset. The function must make batches of the global size."""
        return PackedDataset(dataset_fn(tf.distribute.InputContext(1, 0, 1)), self.mesh)

    def _on_mesh(self, value: Any) -> Any:
        return pack_batch(value, self.mesh, shard=False) if tf.is_tensor(value) else value

    def _tracer(self, fn: Callable[..., Any]) -> Callable[..., Any]:
        try:
            known = self._traced.get(fn)
        except TypeError:
            known = None
        if known is not None:
            return known
        # A strong reference to fn in the value would keep its key in the weak dictionary alive for ever.
        reference = weakref.ref(fn) if not hasattr(fn, "__self__") else weakref.WeakMethod(fn)

        def traced(*args: Any, **kwargs: Any) -> Any:
            function = reference()
            assert function is not None
            return self.run(function, args, kwargs)

        tracer: Callable[..., Any] = tf.function(traced)
        self._traced[fn] = tracer
        return tracer

    def _create(self, next_creator: Callable[..., Any], **kwargs: Any) -> Any:
        initial, name, dtype = kwargs["initial_value"], kwargs.get("name"), kwargs.get("dtype")
        scope = tf.get_current_name_scope()
        with tf.init_scope():
            value = tf.convert_to_tensor(initial() if callable(initial) else initial, dtype=dtype)
            spec = self.layout_map.spec_for("/".join(filter(None, (scope, name))), value.shape.as_list())
            layout = dtensor.Layout([axis or dtensor.UNSHARDED for axis in spec], self.mesh)
            # Initial values of slots are replicated DTensors already. Without a rule, a DTensor keeps its own layout.
            if not dtensor.is_dtensor(value) or any(spec):
                value = dtensor.relayout(value, layout)
            variable = MeshVariable(value, trainable=kwargs.get("trainable"), name=name, dtype=value.dtype)
        self.created(variable)
        return variable
