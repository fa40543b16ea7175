"""Find the operations of ``keras.ops``, and call them in each way in which a program can."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Set
from typing import Any

import numpy as np

from suites.backends.answers import Answer
from suites.backends.differences import leaves, told
from suites.properties.operations import DEFINED
from suites.tables.defined_operations import few
from suites.tables.generated_calls import TENSORS, Generated, generated, of_tables, tensors_of
from suites.tables.operation_calls import CALLS

PARTS = ("", "image.", "linalg.", "nn.", "numpy.")
"""Modules of operations. What the first has is not asked again."""
ONE, TWO, ALONG, OTHERS = GROUPS = ("of one tensor", "of two tensors", "along axes", "with other arguments")


def function_of(api: str) -> Any:
    import keras

    found: Any = keras.ops
    for name in api.split("."):
        found = getattr(found, name)
    return found


def public() -> Iterator[tuple[str, Any]]:
    """Yield each operation once, with its path in ``keras.ops``."""
    import keras

    seen = set()
    for part in PARTS:
        owner = getattr(keras.ops, part[:-1]) if part else keras.ops
        for name, one in sorted(vars(owner).items()):
            if inspect.isfunction(one) and one not in seen:
                seen.add(one)
                yield part + name, one


def of_group(group: str) -> list[str]:
    """Return the operations of a group."""
    return [api for api, _ in public() if _group_of(api) == group]


def _group_of(api: str) -> str:
    """Return the group of an operation, by its parameters."""
    names = [*inspect.signature(function_of(api)).parameters]
    if tensors_of(function_of(api)) == 2:
        return TWO
    if {"axis", "axes"} & {*names}:
        return ALONG
    return ONE if len(names) == 1 and names[0] in TENSORS else OTHERS


def calls(only: Set[str]) -> dict[str, list[Generated]]:
    """Return the calls of some operations, none if no table or name of a parameter says what one takes."""
    tables: dict[str, list[Any]] = {}
    for one in DEFINED.values():
        tables.setdefault(one.api, []).extend(few(one.calls))
    found = {}
    for api, function in public():
        if api not in only:
            continue
        own = generated(api, function)
        listed = [*tables.get(api, []), *(CALLS.get(api, []) if own is None else [])]
        with np.errstate(all="ignore"):  # a large number of float32 is infinite in float16
            found[api] = [*(own or []), *of_tables(api, function, listed)]
    return found


def call(api: str, given: Any, options: Mapping[str, Any]) -> Any:
    """Call an operation of the backend of this process."""
    return function_of(api)(*given, **options)


def mapped(function: Callable[[Any], Any], tree: Any) -> Any:
    if isinstance(tree, Mapping):
        return {name: mapped(function, one) for name, one in tree.items()}
    if isinstance(tree, (list, tuple)):
        return type(tree)(mapped(function, one) for one in tree)
    return function(tree) if isinstance(tree, np.ndarray) else tree


def before(one: Generated, answer: Answer) -> tuple[str, str]:
    """Return the difference of the symbolic result of a call and its answer, as :func:`told` does."""
    import keras

    if answer.error or not any(isinstance(leaf, np.ndarray) for leaf in leaves([*one.given, one.options])):
        return "", ""
    given, options = mapped(lambda x: keras.KerasTensor(x.shape, dtype=x.dtype.name), (one.given, dict(one.options)))
    try:
        return told(_lists(call(one.api, given, options)), answer.value)
    except Exception as error:
        return "told refused", f"{type(error).__name__}: {str(error)[:200]}"


def _lists(tree: Any) -> Any:
    if isinstance(tree, Mapping):
        return {name: _lists(tree[name]) for name in sorted(tree)}
    return [_lists(one) for one in tree] if isinstance(tree, (list, tuple)) else tree
