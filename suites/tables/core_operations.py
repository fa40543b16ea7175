"""Operations of ``keras.ops`` for control flow, slices and types, with definitions in Python and NumPy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from suites.tables.defined_operations import Defined, call, each

Array = np.ndarray[Any, Any]
_DRAW = np.random.default_rng(9)
BLOCK = _DRAW.normal(size=(3, 4, 5)).astype("float32")
ROW = BLOCK[0, 0]
PLACES = np.array([[0, 1], [2, 3], [1, 0]], "int32")
AGAIN = np.array([[1], [0], [1]], "int32")
"""Places of which one comes twice."""
NUMBERS = np.array([-1e9, -129.7, -1.5, -0.4, 0.0, 0.6, 1.5, 127.2, 254.9, 300.0, 1e9], "float32")
TYPES = ("float16", "bfloat16", "float32", "float64", "int8", "uint8", "int32", "bool")


def _structured(function: Callable[..., Any], *trees: Any) -> Any:
    """Apply a function to the arrays of dictionaries and lists."""
    if isinstance(trees[0], dict):
        return {name: _structured(function, *(one[name] for one in trees)) for name in trees[0]}
    if isinstance(trees[0], (list, tuple)):
        return type(trees[0])(_structured(function, *each_one) for each_one in zip(*trees, strict=True))
    return function(*trees)


def _first(tree: Any) -> Any:
    while isinstance(tree, (dict, list, tuple)):
        tree = next(iter(tree.values())) if isinstance(tree, dict) else tree[0]
    return tree


def _scan(f: Any, init: Any, xs: Any = None, length: int | None = None, reverse: bool = False, unroll: Any = 1) -> Any:
    """Follow the implementation in the documentation."""
    count = len(_first(xs)) if length is None else length
    carry, found = init, []
    for at in reversed(range(count)) if reverse else range(count):
        x = None if xs is None else _structured(lambda one, at=at: one[at], xs)
        carry, y = f(carry, x)
        found.append(y)
    found = found[::-1] if reverse else found
    return carry, _structured(lambda *rows: np.stack(rows), *found)


def _associative(f: Any, elems: Any, reverse: bool = False, axis: int = 0) -> Any:
    count = _first(elems).shape[axis]
    rows = [_structured(lambda one, at=at: np.take(one, [at], axis), elems) for at in range(count)]
    rows = rows[::-1] if reverse else rows
    found = [rows[0]]
    for row in rows[1:]:
        found.append(f(found[-1], row))
    found = found[::-1] if reverse else found
    return _structured(lambda *parts: np.concatenate(parts, axis), *found)


def _map(f: Any, xs: Any) -> Any:
    count = len(_first(xs))
    rows = [f(_structured(lambda one, at=at: one[at], xs)) for at in range(count)]
    return _structured(lambda *parts: np.stack(parts), *rows)


def _scatter_update(inputs: Array, indices: Array, updates: Array, reduction: str | None = None) -> Array:
    found = np.array(inputs)
    at = tuple(np.array(indices).T)
    if reduction is None:
        found[at] = updates
    else:
        {"add": np.add, "max": np.maximum, "min": np.minimum, "mul": np.multiply}[reduction].at(found, at, updates)
    return found


def _slice(inputs: Array, starts: Sequence[int], shape: Sequence[int]) -> Array:
    each_axis = zip(starts, shape, inputs.shape, strict=True)
    return inputs[tuple(slice(start, None if size == -1 else start + size) for start, size, _ in each_axis)]


def _slice_update(inputs: Array, starts: Sequence[int], updates: Array) -> Array:
    found = np.array(inputs)
    found[tuple(slice(start, start + size) for start, size in zip(starts, updates.shape, strict=True))] = updates
    return found


def _while(cond: Any, body: Any, loop_vars: Any, maximum_iterations: int | None = None) -> Any:
    several, done = isinstance(loop_vars, (tuple, list)), 0
    while maximum_iterations is None or done < maximum_iterations:
        given = loop_vars if several else (loop_vars,)
        if not cond(*given):
            break
        loop_vars, done = body(*given), done + 1
    return loop_vars


def _fori(lower: int, upper: int, body_fun: Any, init_val: Any) -> Any:
    for at in range(lower, upper):
        init_val = body_fun(at, init_val)
    return init_val


def _cast(x: Array, dtype: str) -> Array:
    return x != 0 if dtype == "bool" else x if "float" in dtype else np.trunc(x)


def _saturate(x: Array, dtype: str) -> Array:
    """Return the nearest number of the type towards zero."""
    if dtype == "bool":
        return np.clip(x, 0, 1) != 0
    if "float" in dtype:
        most = np.finfo(dtype).max
        return np.clip(x, -most, most).astype(dtype)
    limits = np.iinfo(dtype)
    return np.clip(np.trunc(x.astype(float)), limits.min, limits.max)


def _kept(x: Any) -> Any:
    return x


PAIR = {"a": BLOCK, "b": BLOCK[..., 0] + 1}
"""A structure of tensors that have one length and different shapes."""

CORE_OPERATIONS = (
    Defined(
        "scan",
        _scan,
        [
            *each(lambda c, x: (c + x, c * x), ROW, BLOCK[0], reverse=(False, True), unroll=(1, 2, True, False)),
            *each(lambda c, _x: (c * 2, c + 1), ROW, length=(3,), reverse=(False, True)),
            call(lambda c, x: (c + x["a"] + x["b"], c), np.float32([0] * 5), {"a": BLOCK[0], "b": BLOCK[1]}),
            call(lambda c, x: (c + x[0] * x[1], c), np.float32([0] * 5), [BLOCK[0], BLOCK[1]]),
            call(lambda c, x: (c + x, c), np.float32([0] * 5), BLOCK[0], length=4),
        ],
    ),
    Defined(
        "associative_scan",
        _associative,
        [
            *each(lambda a, b: a + b, BLOCK, axis=(0, 1, 2, -1), reverse=(False, True)),
            *each(lambda a, b: {"a": a["a"] + b["a"], "b": a["b"] * b["b"]}, PAIR, axis=(0, 1), reverse=(False, True)),
            *each(lambda a, b: [a[0] * b[0], a[1] * b[0] + b[1]], [BLOCK, BLOCK + 1], axis=(0, 1)),
        ],
        rtol=1e-4,
    ),
    Defined(
        "map",
        _map,
        [
            call(lambda x: x**2, BLOCK),
            call(lambda x: {"y": x * 2, "z": x[0]}, BLOCK),
            call(lambda x: x["a"] + x["b"][..., None], PAIR),
        ],
    ),
    Defined("vectorized_map", _map, [call(lambda x: x**2 + 1, BLOCK), call(lambda x: x[0] * x[1], [BLOCK, BLOCK + 1])]),
    Defined(
        "scatter",
        lambda indices, values, shape: _scatter_update(np.zeros(shape), indices, values),
        [call(PLACES, ROW[:3], (3, 4)), call(PLACES, BLOCK[0, :3], (3, 4, 5)), call(AGAIN[:2], ROW[:2], (4,))],
    ),
    Defined(
        "scatter_update",
        _scatter_update,
        [
            *each(BLOCK[..., 0], PLACES, ROW[:3], reduction=(None, "add", "max", "min", "mul")),
            *each(BLOCK, PLACES, BLOCK[0, :3], reduction=(None, "add", "max", "min", "mul")),
            *each(BLOCK, AGAIN, BLOCK[[2, 1, 0]], reduction=("add", "max", "min", "mul")),
        ],
    ),
    Defined(
        "slice", _slice, [call(BLOCK, (1, 0, 2), (2, 4, 1)), call(BLOCK, (0, 1, 1), (-1, 2, -1)), call(ROW, (2,), (3,))]
    ),
    Defined("slice_update", _slice_update, [call(BLOCK, (1, 0, 2), BLOCK[:2, 1:, :3] + 1), call(ROW, (2,), ROW[:3])]),
    Defined(
        "switch",
        lambda index, branches, *given: branches[min(max(int(index), 0), len(branches) - 1)](*given),
        [
            call(np.int32(at), [lambda x, y: x + y, lambda x, y: x - y, lambda x, y: x * y], BLOCK, BLOCK + 1)
            for at in (0, 1, 2, 7, -1)
        ],
    ),
    Defined(
        "while_loop",
        _while,
        [
            *each(
                lambda i, _x: i < 5, lambda i, x: (i + 1, x * 2), (np.int32(0), ROW), maximum_iterations=(None, 3, 0)
            ),
            call(lambda x: x[0] < 50.0, lambda x: x * 2 + 1, np.abs(ROW)),
        ],
    ),
    Defined(
        "fori_loop",
        _fori,
        [call(start, end, lambda i, x: x * 2 + 1, ROW) for start, end in ((0, 3), (2, 4), (3, 1))],
    ),
    Defined(
        "unstack",
        lambda x, num=None, axis=0: list(np.moveaxis(x, axis, 0)),
        each(BLOCK, axis=(0, 1, -1)) + each(BLOCK, num=(3,)),
    ),
    Defined(
        "cond",
        lambda pred, true_fn, false_fn: true_fn() if pred else false_fn(),
        [call(np.bool_(one), lambda: ROW, lambda: -ROW) for one in (True, False)],
        case="of arrays",
    ),
    Defined("cast", _cast, each(NUMBERS[3:9], dtype=("float32", "float64", "int32", "bool"))),
    Defined(
        "saturate_cast",
        _saturate,
        each(NUMBERS, dtype=("float16", "float32", "float64", "int8", "uint8", "int32", "bool")),
    ),
    Defined("stop_gradient", _kept, [call(BLOCK)], batched=1),
    Defined(
        "convert_to_tensor",
        lambda x, **_given: x,
        each(BLOCK, dtype=(None, "float64"), sparse=(None, False), ragged=(None, False)),
    ),
)
"""Operations of control flow. Functions that they take work with arrays and with tensors."""
