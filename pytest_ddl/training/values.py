"""Read variables: copy every component on this rank's replicas into NumPy arrays."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from itertools import count
from typing import Any

import numpy as np

from pytest_ddl.records import Array, Snapshot

RUNNING_MEAN = "loss (running mean)"
"""Name of a number of each step that ``fit`` shows: the mean of the loss over the epoch so far, or 0 without a loss."""
# dtypes that NumPy itself cannot always save or compare; float32 represents their values exactly.
_WIDENED = ("bfloat16", "float16_alt", "float8_e4m3fn", "float8_e5m2")


def is_variable(item: Any) -> bool:
    """Return True for a variable of TensorFlow or Keras."""
    return hasattr(item, "assign") and hasattr(item, "shape")


def backing(variable: Any) -> Any:
    """Return the ``tf.Variable`` (or distributed variable) behind a Keras variable."""
    import tensorflow as tf

    if not isinstance(variable, tf.Variable) and hasattr(variable, "value") and not callable(variable.value):
        return variable.value
    return variable


def is_distributed(variable: Any) -> bool:
    """Return True if every replica holds a component of its own."""
    import tensorflow as tf

    return isinstance(variable, tf.distribute.DistributedValues)


def is_sharded_by_layout(variable: Any) -> bool:
    """Return True for a DTensor variable, whose global value is its one component."""
    return hasattr(variable, "layout") and hasattr(variable.layout, "mesh")


def copy_of(value: Any) -> Array:
    """Copy a value: the array of an eager tensor may share the memory of the variable that it was read from."""
    array = np.array(value, copy=True)
    if array.dtype.name in _WIDENED or array.dtype.kind == "V":
        return array.astype(np.float32)
    return array


_WORTH_SHARING = 4096
"""Smallest number of bytes of an array that is compared with others, so that equal ones are kept once."""


def shared(parts: tuple[Array, ...], before: tuple[Array, ...]) -> tuple[Array, ...]:
    """Return the components with one array for all that have equal bytes, also for those ``before``.

    Most variables are equal on all replicas, and many do not change in each step. The arrays of a record would fill
    gigabytes, and pickle writes an array once however often a record refers to it.
    """
    arrays: list[Array] = []
    for part in parts:
        arrays.append(next((one for one in (*arrays, *before) if _is_equal(part, one)), part))
    return tuple(arrays)


def _is_equal(left: Array, right: Array) -> bool:
    """Return whether two large arrays have equal bytes. Unlike ``==``, this distinguishes 0.0 and -0.0."""
    if left.nbytes < _WORTH_SHARING or (left.shape, left.dtype) != (right.shape, right.dtype) or left.dtype.hasobject:
        return False
    return np.array_equal(left.view(np.uint8), right.view(np.uint8))


def changed(before: Snapshot, now: Snapshot) -> Snapshot:
    """Return the values of ``now`` that differ from those of the same variables in ``before``."""
    return {index: parts for index, parts in now.items() if index in before and not _same(parts, before[index])}


def _same(left: tuple[Array, ...], right: tuple[Array, ...]) -> bool:
    pairs = zip(left, right, strict=False)
    equal = all(np.array_equal(a, b, equal_nan=a.dtype.kind in "fc") for a, b in pairs)
    return equal and len(left) == len(right)  # a component that could not be read is missing


def multiply(variables: Iterable[Any], number: int) -> None:
    """Multiply variables by a whole number in their own type."""
    for variable in variables:
        value = copy_of(variable)
        variable.assign((value * number).astype(value.dtype))


def is_split(variable: Any) -> bool:
    """Return True for a variable that a partitioner split over parameter servers."""
    return hasattr(variable, "variables") and not hasattr(variable, "numpy")


def components(strategy: Any, variable: Any) -> tuple[Any, ...]:
    """Return the component variables on this rank: one per replica, or one per part of a split variable."""
    if is_distributed(variable):
        return tuple(strategy.experimental_local_results(variable))
    return tuple(variable.variables) if is_split(variable) else (variable,)


def read(strategy: Any, variable: Any) -> tuple[Array, ...]:
    """Return the values of a variable's components on this rank, in the order of its replicas."""
    if is_distributed(variable):
        return tuple(_read_part(part) for part in components(strategy, variable))
    if is_sharded_by_layout(variable):
        return (copy_of(_global_value(variable)),)
    if is_split(variable):
        # The conversion joins the parts to the global value.
        import tensorflow as tf

        return (copy_of(tf.convert_to_tensor(variable).numpy()),)
    return (_read_part(variable),)


def _read_part(part: Any) -> Array:
    """Read the component of one replica with the raw operation; ``numpy()`` takes four times as long."""
    import tensorflow as tf

    if not hasattr(part, "handle"):
        return copy_of(part.numpy())
    return copy_of(tf.raw_ops.ReadVariableOp(resource=part.handle, dtype=part.dtype).numpy())


def _global_value(variable: Any) -> Any:
    from tensorflow.experimental import dtensor

    layout = variable.layout
    whole = dtensor.Layout.replicated(layout.mesh, rank=len(variable.shape))
    value = dtensor.relayout(variable.read_value(), whole)
    return dtensor.unpack(value)[0].numpy()


def numbers(value: Any, name: str) -> dict[str, float]:
    """Return the single numbers of a dict, or of a tuple or list of several items, by their place under a name.

    A tuple of one item may be that of the only replica. It has as many items as replicas under a strategy, and no
    counterparts there.
    """
    if isinstance(value, Mapping):
        items = {f"{name}/{key}": item for key, item in value.items()}
    elif isinstance(value, tuple | list) and len(value) > 1:
        items = {f"{name}[{position}]": item for position, item in enumerate(value)}
    else:
        return {}
    by_name: dict[str, float] = {}
    for place, item in items.items():
        number = scalar(item)
        by_name.update(numbers(item, place) if number is None else {place: number})
    return by_name


_SHORT = 64
"""Largest number of parts of a vector loss that are compared one by one."""


def parts_of(value: Any, name: str) -> dict[str, float]:
    """Return the numbers of a short vector by their size; a longer one, or anything else, has none.

    A vector may have a number for each example, and the replicas may gather them in another order than one device. The
    names include the length, so that vectors of different lengths are not taken for each other.
    """
    try:
        array = np.asarray(value.numpy() if hasattr(value, "numpy") else value)
    except (TypeError, ValueError, AttributeError, NotImplementedError):
        return {}
    if array.ndim != 1 or not 1 < array.size <= _SHORT or array.dtype.kind not in "iuf":
        return {}
    ordered = np.sort(array.astype(np.float64)).tolist()
    return {f"{name} ({place} of {array.size} by size)": number for place, number in enumerate(ordered, 1)}


def under_names(*groups: Mapping[str, float | None]) -> dict[str, float]:
    """Join named numbers. The second number of a name is ``name#2``, so that none takes the place of another."""
    by_name: dict[str, float] = {}
    for name, number in (item for group in groups for item in group.items()):
        if number is not None:
            by_name[free_name(by_name, name)] = number
    return by_name


def with_results(numbers: Mapping[str, float], results: Mapping[str, float]) -> dict[str, float]:
    """Add the results of metrics. Those of ``fit`` are results of the same metrics, and are replaced."""
    return {**numbers, **results} if RUNNING_MEAN in numbers else under_names(numbers, results)


def free_name(taken: Collection[str], name: str) -> str:
    """Return the name, or ``name#2``, ``name#3`` … if it is taken."""
    return next(one for number in count(1) if (one := f"{name}#{number}" if number > 1 else name) not in taken)


def scalar(value: Any) -> float | None:
    """Return ``value`` as a float if it is one number, else ``None``."""
    if value is None or isinstance(value, str | bytes):
        return None
    try:
        array = np.asarray(value.numpy() if hasattr(value, "numpy") else value)
    except (TypeError, ValueError, AttributeError, NotImplementedError):
        return None
    if array.size != 1 or array.ndim > 1 or array.dtype.kind in "OSU":
        return None
    return float(array.reshape(()).astype(np.float64))
