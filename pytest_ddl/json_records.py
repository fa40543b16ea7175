"""Turn frozen dataclasses into plain data for JSON and back; data that does not fit its class is refused."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from enum import Enum
from types import NoneType, UnionType
from typing import Any, ClassVar, TypeVar, Union, get_args, get_origin, get_type_hints

Record = TypeVar("Record")


class RecordError(ValueError):
    """Raised if data does not fit a record. The message is one line that names the field."""


class JsonRecord:
    """Base class of dataclasses that are written as JSON and read again.

    JSON has neither tuples nor keys that are numbers: the types of the fields say what is made of lists and names. It
    has no NaN and no infinity either. Both are written as ``null``, which is read as NaN if the field is a number.
    """

    DERIVED: ClassVar[tuple[str, ...]] = ()
    """Properties that are written beside the fields, for programs that read the JSON; they are not read back."""

    def as_json(self) -> dict[str, Any]:
        """Return numbers, strings, lists and dicts only."""
        plain: dict[str, Any] = to_plain(self)
        return plain

    @classmethod
    def from_json(cls: type[Record], data: Any, *, other_version: bool = False) -> Record:
        """Return the record that :meth:`as_json` wrote.

        :param other_version: leave out fields that this version of pytest-ddl does not have.
        :raises RecordError: if a field is missing, unknown, or of another type.
        """
        return from_plain(cls, data, other_version=other_version)


def to_plain(value: Any) -> Any:
    """Return a value as numbers, strings, lists and dicts only, with all records inside it."""
    if is_dataclass(value) and not isinstance(value, type):
        names = [*(field.name for field in fields(value)), *getattr(value, "DERIVED", ())]
        return {name: to_plain(getattr(value, name)) for name in names}
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: to_plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [to_plain(item) for item in value]
    return value


def from_plain(kind: type[Record], data: Any, *, other_version: bool = False) -> Record:
    """Return the record of a dataclass that :func:`to_plain` wrote; see :meth:`JsonRecord.from_json`."""
    record: Record = _read(kind, data, kind.__name__, other_version)
    return record


def _read(kind: Any, data: Any, where: str, other_version: bool) -> Any:
    """Return the data as a value of a type. ``where`` names its place in messages."""

    def inner(kind: Any, item: Any, place: object) -> Any:
        return _read(kind, item, f"{where}[{place!r}]", other_version)

    origin, arguments = get_origin(kind) or kind, get_args(kind)
    if origin in (Union, UnionType):
        (only,) = (one for one in arguments if one is not NoneType)
        return None if data is None else _read(only, data, where, other_version)
    if is_dataclass(kind):
        return _record(kind, data, where, other_version)
    if origin is tuple and isinstance(data, list | tuple):
        if arguments[1:] == (...,):
            return tuple(inner(arguments[0], item, at) for at, item in enumerate(data))
        if len(arguments) == len(data):
            return tuple(inner(one, item, at) for at, (one, item) in enumerate(zip(arguments, data, strict=True)))
    elif origin is list and isinstance(data, list):
        return [inner(arguments[0], item, at) for at, item in enumerate(data)]
    elif isinstance(origin, type) and issubclass(origin, Mapping) and isinstance(data, Mapping):
        return {_name(arguments[0], name, where): inner(arguments[1], item, name) for name, item in data.items()}
    elif isinstance(kind, type) and issubclass(kind, Enum):
        if data in [one.value for one in kind]:
            return kind(data)
    elif origin is float and data is None:
        return math.nan
    elif kind is Any or _fits(origin, data):
        return data
    shown = f"a list of {len(data)}" if isinstance(data, list) else f"{type(data).__name__} {data!r:.60}"
    raise RecordError(f"{where} is {shown}, and must be {getattr(kind, '__name__', kind) if not arguments else kind}")


def _name(kind: Any, name: str, where: str) -> Any:
    """Return the key of a mapping. In JSON, a number is a text there."""
    try:
        return name if kind is Any else kind(name)
    except ValueError:
        raise RecordError(f"{where} has the name {name!r}, and must have names of the type {kind.__name__}") from None


def _fits(kind: Any, data: Any) -> bool:
    if isinstance(data, bool):
        return kind is bool
    return isinstance(data, int | float if kind is float else kind)


def _record(kind: Any, data: Any, where: str, other_version: bool) -> Any:
    if not isinstance(data, Mapping):
        raise RecordError(f"{where} is {type(data).__name__} {data!r:.60}, and must be an object")
    types = _types(kind)
    derived = getattr(kind, "DERIVED", ())
    needed = [one.name for one in fields(kind) if one.default is MISSING and one.default_factory is MISSING]
    missing = [name for name in needed if name not in data]
    if missing:
        raise RecordError(f"{where} lacks the field {missing[0]!r}")
    unknown = [name for name in data if name not in types and name not in derived]
    if unknown and not other_version:
        raise RecordError(f"{where} has the unknown field {unknown[0]!r}")
    given = {name: item for name, item in data.items() if name in types}
    return kind(**{name: _read(types[name], item, f"{where}.{name}", other_version) for name, item in given.items()})


@functools.cache
def _types(kind: type) -> Mapping[str, Any]:
    hints = get_type_hints(kind)
    return {field.name: hints[field.name] for field in fields(kind)}
