"""Describe the values of a test's parameters, to check that all processes run the test with the same values."""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import fractions
import functools
import hashlib
import pathlib
import sys
import types
import uuid
from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Any

_PLAIN = (
    *(type(None), bool, int, float, complex, str, bytes, bytearray, range, slice, type(...)),
    *(decimal.Decimal, fractions.Fraction, uuid.UUID, pathlib.PurePath),
    *(datetime.date, datetime.time, datetime.timedelta, datetime.tzinfo),
)
MAX_SHOWN = 80


def in_words(item: Any) -> dict[str, str]:
    """Describe the values of an item's parameters, by name.

    Objects of most classes cannot be compared between processes. Their description contains only the class.
    """
    parameters = getattr(getattr(item, "callspec", None), "params", {})
    return {name: _words(value, 0) for name, value in parameters.items()}


def difference(here: Mapping[str, str], ranks: Sequence[tuple[int, Mapping[str, str]]]) -> str | None:
    """Return a message about the first parameter whose value differs between a rank and the pytest process.

    Return ``None`` if there is none.
    """
    for rank, there in ranks:
        for name in here:
            if name in there and there[name] != here[name]:
                return (
                    f"the parameter {name} is {_short(there[name])} on rank {rank} and {_short(here[name])} in the "
                    "pytest process, with the same test id. Every process collects the test by itself, so the values "
                    "must be the same in each. Draw random values from a generator with a fixed seed, or make the "
                    "value in a fixture"
                )
    return None


def _words(value: Any, depth: int) -> str:
    kind = type(value).__qualname__
    if depth > 20:
        return kind
    inner = functools.partial(_words, depth=depth + 1)
    if isinstance(value, Enum):
        return str(value)
    if isinstance(value, _PLAIN):
        return repr(value)
    if isinstance(value, (list, tuple)):
        return f"{kind}({', '.join(map(inner, value))})"
    if isinstance(value, (set, frozenset)):
        # The order of a set differs between processes.
        return f"{kind}({', '.join(sorted(map(inner, value)))})"
    if isinstance(value, Mapping) and isinstance(value, (dict, types.MappingProxyType)):
        return f"{kind}({', '.join(sorted(f'{inner(key)}: {inner(item)}' for key, item in value.items()))})"
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = [field.name for field in dataclasses.fields(value) if field.compare]
        return f"{kind}({', '.join(f'{name}={inner(getattr(value, name, None))}' for name in fields)})"
    if isinstance(value, functools.partial):
        return f"partial({inner(value.func)}, {inner(value.args)}, {inner(value.keywords)})"
    if isinstance(value, (type, types.FunctionType, types.BuiltinFunctionType)):
        return value.__qualname__
    return _array(value) or kind


def _array(value: Any) -> str | None:
    numpy = sys.modules.get("numpy")
    if numpy is None or not isinstance(value, (numpy.ndarray, numpy.generic)) or value.dtype.hasobject:
        return None
    digest = hashlib.sha256(numpy.ascontiguousarray(value).tobytes()).hexdigest()[:12]
    text = repr(value.tolist()) if value.size <= 8 else f"of shape {value.shape}, with hash {digest}"
    return f"{value.dtype} {text}"


def _short(text: str) -> str:
    return (
        text
        if len(text) <= MAX_SHOWN
        else f"{text[:MAX_SHOWN]}… (hash {hashlib.sha256(text.encode()).hexdigest()[:8]})"
    )
