"""Calls of each operation of ``keras.ops``, made from the names, defaults and documentation of its parameters."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from suites.pairwise import pairwise

TYPES = ("float32", "float16", "bfloat16", "int32", "int8", "uint8", "bool")
SECOND = ("float32", "bfloat16", "int32", "uint8", "bool", "number")
"""Types of one tensor, and of the second of two."""
SHAPES = ((), (3,), (0, 3), (2, 3), (3, 3), (2, 3, 3), (2, 3, 2, 2))
PAIRS = (
    *(((), ()), ((3,), (3,)), ((2, 3), (2, 1)), ((3, 3), (3, 3)), ((2, 3, 3), (3, 3)), ((2, 1, 3), (2, 3, 1))),
    *(((0, 3), (3,)), ((2, 3), (3, 2))),
)
"""Shapes of one tensor, and of two that broadcast or are a product of matrices."""
NUMBER = "number"
"""Type of an argument that is a number of Python."""
TENSORS = ("x", "x1", "x2", "y", "a", "array", "images", "abs_", "angle", "tensor")
"""Names of the parameters that take a tensor of any shape."""
AXES = (None, 0, -1, 1, (0,), (0, 1), [0, 1], (-1, 0))
VALUES: Mapping[str, Sequence[Any]] = {
    "axis": AXES,
    "axes": ((0,), (0, 1), [-1], None, (1, 0)),
    **dict.fromkeys(("axis1", "axis2", "offset", "decimals", "source", "kth"), (0, 1, -1)),
    **dict.fromkeys(("axisa", "axisb", "axisc"), (-1, 0)),
    "destination": (-1, 0, 1),
    "dtype": (None, *TYPES),
    "k": (0, 1, -1, 2),
    "n": (1, 2, 0),
    "initial": (None, 0.5, 2),
    "q": (0.3, 50.0, 0.0, 1.0, [0.25, 0.75]),
    "ord": (None, 1, 2, "fro", "nuc", np.inf, -np.inf, 0, 3),
    "order": (1, 2, 3),
    "epsilon": (None, 1e-3),
    "num_classes": (4,),
    "newshape": ((-1,), (3, -1), (1, -1)),
    "indices_or_sections": (1, 3, [1], [1, 2], (1,)),
    "repeats": (2, (1, 2), [2], 3),
    "shift": (1, -1, 2, (1, 1)),
    "pad_width": (1, ((1, 0),), ((1, 2), (0, 1)), (1, 2)),
    "constant_values": (None, 2),
    "shape": ((2, 3), (), (3,), [2, 3], (0,)),
    "fill_value": (2, 0.5),
    "x_min": (-1, 0.5, 0),
    "x_max": (1, 2, 3.5),
    "key": (0, -1, slice(None, None, -1), (Ellipsis, 0), None, slice(1, None)),
    "threshold": (0.5, 0, 1),
    "default_value": (0, 0.25),
    "beta": (14.0, 0.0, 5),
    "num": (None, 3, 5),
    "fft_length": (None, 4, 2),
    **dict.fromkeys(("tol", "rcond"), (None, 0.001)),
    "N": (None, 2, 3),
    "M": (None, 2, 4),
    "b": (4, 0, 1.5),
    "minlength": (0, 3),
    "bins": (4, 10, [0.0, 1.0, 2.0]),
    "range": (None, (-1.0, 2.0)),
    "nan": (0.0, 1.5),
    "posinf": (None, 3.0),
    "neginf": (None, -3.0),
    "start": (0, 1, 5, 1.5),
    "stop": (None, 5, 2, 0.5),
    "step": (None, 2, -1, 0.5),
    "base": (10, 2),
    "block_size": (2, 1),
    "alpha": (1.0, 0.5),
    "negative_slope": (0.2, 0.0),
    "size": (None, 2),
    "max_val": (1.0, 255),
    "sequence_length": (2, 4),
    "sequence_stride": (1, 2),
    "kernel_size": (2, (1, 2)),
    **dict.fromkeys(("dilation", "stride"), (1, 2)),
    "padding": (0, 1),
    "dx": (1.0, 0.5),
    "rtol": (1e-5, 0.5),
    "atol": (1e-8, 0.5),
}
"""Parameter -> values. Other parameters get their default, both truth values, or the names in their documentation."""
SPECIAL = np.array([np.nan, -0.0, np.inf, 0.0, -np.inf, 1.0, -1.0, 0.5, 2.5, -0.5], "float32")
ORDINARY, INFINITE = "ordinary", "infinite"
"""Whether a tensor has numbers that are not finite."""


@dataclass(frozen=True)
class Generated:
    """A call, with its properties."""

    api: str
    given: tuple[Any, ...]
    options: Mapping[str, Any]

    def sent(self) -> tuple[Any, Any]:
        """Return the arguments as another process gets them."""
        return self.given, dict(self.options)

    def marks(self, function: Any) -> frozenset[str]:
        """Return the properties of the call, by which a row of known differences names it."""
        return marks(dict(zip(inspect.signature(function).parameters, self.given, strict=False)) | dict(self.options))

    def __str__(self) -> str:
        told = [_told(one) for one in self.given]
        return f"{self.api}({', '.join([*told, *(f'{name}={_told(one)}' for name, one in self.options.items())])})"


@cache
def tensor(shape: tuple[int, ...], kind: str, numbers: str = ORDINARY, place: int = 0) -> Any:
    """Return an array of a type, with negative numbers and zeros if the type has them."""
    draw, size = np.random.default_rng(7 + place + 10 * len(shape)), int(np.prod(shape))
    if numbers == INFINITE and "float" in kind:
        found = np.resize(SPECIAL, size + place)[place:]
    elif "float" in kind:
        found = np.round(draw.uniform(-2, 3, size) * 8) / 8
    else:
        low, high = {"bool": (0, 2), "uint8": (0, 6)}.get(kind, (-4, 6))
        found = draw.integers(low, high, size)
    return found.reshape(shape).astype(_type(kind))


def _type(name: str) -> Any:
    import ml_dtypes

    return ml_dtypes.bfloat16 if name == "bfloat16" else name


def named(function: Any, parameter: str) -> list[str]:
    """Return the words in quotes that the documentation of a parameter has."""
    text = inspect.getdoc(function) or ""
    part = re.search(rf"^ {{4}}{re.escape(parameter)}:(.*?)(?=^ {{4}}\w+:|^\S|\Z)", text, re.DOTALL | re.MULTILINE)
    return sorted(set(re.findall(r"[\"'`]+(\w+)[\"'`]+", part.group(1)))) if part else []


def _choices(function: Any, one: inspect.Parameter) -> Sequence[Any] | None:
    """Return the values of a parameter, the default first, or ``None`` if they are not known."""
    if isinstance(one.default, bool):
        return (one.default, not one.default)
    if isinstance(one.default, str):
        return [*dict.fromkeys([one.default, *named(function, one.name)])]
    known = VALUES.get(one.name)
    if one.default is one.empty:
        return known
    if known is None:
        return (one.default,)
    return known if any(value is one.default or value == one.default for value in known) else (one.default, *known)


def tensors_of(function: Any) -> int:
    """Return how many tensors of any shape an operation takes."""
    every = inspect.signature(function).parameters.values()
    return sum(one.default is one.empty and one.name in TENSORS for one in every)


def generated(api: str, function: Any) -> list[Generated] | None:
    """Return calls in which each two values occur together, or ``None`` if the values of an argument are not known."""
    every = list(inspect.signature(function).parameters.values())
    if any(one.kind is one.VAR_POSITIONAL for one in every):
        return None
    every = [one for one in every if one.kind is not one.VAR_KEYWORD]
    tensors = [one.name for one in every if one.default is one.empty and one.name in TENSORS]
    choices = {one.name: _choices(function, one) for one in every if one.name not in tensors}
    if len(tensors) > 2 or None in choices.values():
        return None
    values: dict[str, Sequence[Any]] = {name: found for name, found in choices.items() if found is not None}
    dimensions = {name: [str(at) for at in range(len(found))] for name, found in values.items()}
    shapes: Sequence[Any] = PAIRS if len(tensors) == 2 else SHAPES
    if tensors:
        dimensions["the shape"] = [str(at) for at in range(len(shapes))]
        dimensions |= {f"the type of {name}": SECOND if at else TYPES for at, name in enumerate(tensors)}
        along = "axis" in choices and not api.startswith("nan")  # backends order what is no number differently
        dimensions["the numbers"] = [ORDINARY] if along else [ORDINARY, INFINITE]
    cases = _cases(tuple((name, tuple(found)) for name, found in dimensions.items()))
    found = []
    for case in cases:
        options = {name: values[name][int(case[name])] for name in values}
        given = []
        for at, name in enumerate(tensors):
            shape = shapes[int(case["the shape"])]
            kind = case[f"the type of {name}"]
            own = shape[at] if len(tensors) == 2 else shape
            given.append(1.5 if kind == NUMBER else tensor(own, kind, case["the numbers"], at))
        found.append(Generated(api, (), dict(zip(tensors, given, strict=True)) | options))
    return found


@cache
def _cases(dimensions: tuple[tuple[str, tuple[str, ...]], ...]) -> list[dict[str, str]]:
    if len(dimensions) > 1:
        return pairwise(dict(dimensions))
    return [{name: value} for name, values in dimensions for value in values] or [{}]


def of_tables(api: str, function: Any, calls: Sequence[tuple[Any, Mapping[str, Any]]]) -> Iterator[Generated]:
    """Yield calls of a table, also with tensors in 16 bits. Calls with functions are left out."""
    known = [*inspect.signature(function).parameters]
    for given, options in calls:
        if _has_function((given, dict(options))) or not options.keys() <= {*known}:
            continue
        for kind in ("float32", "float16", "bfloat16"):
            yield Generated(api, _cast(tuple(given), kind), _cast(dict(options), kind))


def _cast(tree: Any, kind: str) -> Any:
    if isinstance(tree, Mapping):
        return {name: _cast(one, kind) for name, one in tree.items()}
    if isinstance(tree, (list, tuple)):
        return type(tree)(_cast(one, kind) for one in tree)
    return tree.astype(_type(kind)) if isinstance(tree, np.ndarray) and tree.dtype == np.float32 else tree


def _has_function(tree: Any) -> bool:
    parts = tree.values() if isinstance(tree, Mapping) else tree if isinstance(tree, (list, tuple)) else ()
    return callable(tree) or any(map(_has_function, parts))


def _arrays(tree: Any) -> list[Any]:
    parts = tree.values() if isinstance(tree, Mapping) else tree if isinstance(tree, (list, tuple)) else ()
    return [tree] if isinstance(tree, np.ndarray) else [one for part in parts for one in _arrays(part)]


def marks(arguments: Mapping[str, Any]) -> frozenset[str]:
    """Return the properties of a call by which a row of known differences names it."""
    found = set()
    arrays = _arrays(dict(arguments))
    for name, value in arguments.items():
        if isinstance(value, np.ndarray):
            kind = next((one for one in ("float", "int") if one in value.dtype.name), "others")
            found |= {f"{name}:{value.dtype.name}", f"{name}:{kind}", f"{name} of rank {value.ndim}"}
        elif not _arrays(value):
            shown = type(value).__name__ if isinstance(value, (tuple, list, slice)) else repr(value)
            found.add(f"{name}={shown}")
        if name in TENSORS and isinstance(value, (int, float)):
            found.add(NUMBER)
    found |= {one.dtype.name for one in arrays} | {f"rank {one.ndim}" for one in arrays}
    found |= {"empty"} if any(one.size == 0 for one in arrays) else set()
    found |= {"mixed types"} if len({one.dtype for one in arrays}) > 1 else set()
    found |= {"mixed shapes"} if len({one.shape for one in arrays}) > 1 else set()
    found |= {INFINITE} if any(one.dtype.kind not in "biuc" and not np.isfinite(one).all() for one in arrays) else set()
    found |= {"not square"} if any(one.ndim > 1 and one.shape[-1] != one.shape[-2] for one in arrays) else set()
    return frozenset(found)


def _told(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return f"{value.dtype.name}{value.shape}{value.ravel().tolist() if 0 < value.size < 4 else ''}"
    if isinstance(value, (list, tuple)) and _arrays(value):
        return f"[{', '.join(map(_told, value))}]"
    return repr(value)
