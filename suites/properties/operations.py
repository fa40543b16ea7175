"""Call operations of ``keras.ops`` as their tables say, and compare the results."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import pytest

from suites.tables.core_operations import CORE_OPERATIONS
from suites.tables.defined_operations import Defined, few
from suites.tables.image_operations import IMAGE_OPERATIONS
from suites.tables.math_operations import MATH_OPERATIONS
from suites.tables.nn_operations import NN_OPERATIONS

DEFINED = {one.name: one for one in (*CORE_OPERATIONS, *IMAGE_OPERATIONS, *MATH_OPERATIONS, *NN_OPERATIONS)}


def operation(one: Defined) -> Any:
    """Return the operation, or skip the test if this version does not have it."""
    from suites.subject import keras

    for api in filter(None, (one.needs, one.api)):
        found: Any = keras.ops
        for name in api.split("."):
            found = getattr(found, name, None)
        if found is None:
            pytest.skip(f"this version has no {api}")
    return found


def calls_of(one: Defined, *, all_of: bool = False) -> Iterator[tuple[Any, Mapping[str, Any]]]:
    """Yield the calls whose options this version has."""
    known = inspect.signature(operation(one)).parameters.keys()
    calls = [(given, options) for given, options in one.calls if options.keys() <= known]
    yield from calls if all_of else few(calls)


def mapped(function: Callable[[Any], Any], tree: Any) -> Any:
    """Apply a function to the arrays of a structure."""
    if isinstance(tree, Mapping):
        return {name: mapped(function, one) for name, one in tree.items()}
    if isinstance(tree, (list, tuple)) and not hasattr(tree, "_fields"):
        return type(tree)(mapped(function, one) for one in tree)
    return function(tree) if isinstance(tree, (np.ndarray, np.generic)) else tree


def flat(tree: Any) -> list[Any]:
    if isinstance(tree, Mapping):
        return [one for name in sorted(tree) for one in flat(tree[name])]
    return [one for part in tree for one in flat(part)] if isinstance(tree, (list, tuple)) else [tree]


def tensors(tree: Any) -> Any:
    import tensorflow as tf

    return mapped(tf.constant, tree)


def numbers(found: Any) -> Any:
    """Return an array of a result, which may be sparse."""
    import tensorflow as tf

    if isinstance(found, tf.SparseTensor):
        found = tf.sparse.to_dense(tf.sparse.reorder(found))
    values = np.asarray(found)
    return values if values.dtype.kind in "biufc" else values.astype(float)


def same(found: Any, wanted: Any, rtol: float, atol: float) -> None:
    pairs = list(zip(flat(found), flat(wanted), strict=True))
    for one, other in pairs:
        one, other = numbers(one), numbers(other)
        assert one.shape == other.shape, f"shape {one.shape} instead of {other.shape}"
        kind = complex if "c" in (one.dtype.kind, other.dtype.kind) else float
        np.testing.assert_allclose(one.astype(kind), other.astype(kind), rtol=rtol, atol=atol)


def told(given: Any, options: Mapping[str, Any]) -> list[str]:
    """Return what a failure says about a call."""
    shapes = [str(getattr(one, "shape", "")) or str(one)[:40] for one in flat(given) if not callable(one)]
    return [*shapes, *(f"{name}={getattr(one, 'shape', one)}" for name, one in options.items())]


def arrays_of(tree: Any) -> list[Any]:
    found: list[Any] = []
    mapped(found.append, tree)
    return found


def lengths(one: Defined, position: int, array: Any, *, unknown: bool) -> Any:
    """Return the shape of an argument, which may begin with an unknown number of examples."""
    whole = max((np.ndim(leaf) for given, _ in one.calls for leaf in arrays_of(given[0])), default=0)
    several = not one.api.startswith("image.") or position > 0 or array.ndim == whole  # a single image has fewer axes
    return (None, *array.shape[1:]) if unknown and several and position < one.batched else array.shape


def mapped_results(tree: Any) -> Any:
    if isinstance(tree, Mapping):
        return {name: mapped_results(one) for name, one in tree.items()}
    if isinstance(tree, (list, tuple)):
        return [mapped_results(one) for one in tree]
    return numbers(tree)
