"""Write records of training as compressed files, and read them: JSON for the structure, bytes for the arrays.

A file holds no code. Fields that have their default value are left out, so that a file can be read after a class has
got a new field. A field or a class that does not exist any more ends in a :class:`StaleRecordError`.
"""

from __future__ import annotations

import json
import lzma
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np

from pytest_ddl import records, step_records
from pytest_ddl.equivalence.evidence.slices import Pairing, Slices
from pytest_ddl.notes import Note, NoteKind
from pytest_ddl.strategies.spec import Capabilities

ROOT = Path(__file__).parents[2]
_ALL = (*vars(records).values(), *vars(step_records).values(), Capabilities, NoteKind, Pairing, Slices)
CLASSES = {kind.__name__: kind for kind in _ALL if isinstance(kind, type) and is_dataclass(kind)}
ENUMS = {kind.__name__: kind for kind in _ALL if isinstance(kind, type) and issubclass(kind, Enum)}


class StaleRecordError(ValueError):
    """A file holds a class or a field that does not exist any more. Record the program again."""


def dump(value: Any, path: Path) -> int:
    """Write a value of records, containers, arrays and plain values. Return the size of the file in bytes."""
    writer = _Writer()
    head = json.dumps(writer.encoded(value), separators=(",", ":"))
    structure = json.dumps([head, writer.table], separators=(",", ":")).encode()
    blob = b"".join(writer.parts)
    data = lzma.compress(len(structure).to_bytes(8, "little") + structure + blob, preset=9 | lzma.PRESET_EXTREME)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return len(data)


def load(path: Path) -> Any:
    """Read what :func:`dump` wrote."""
    data = lzma.decompress(path.read_bytes())
    end = 8 + int.from_bytes(data[:8], "little")
    head, table = json.loads(data[8:end])
    arrays = []
    for dtype, shape, start in table:
        kind = np.dtype(dtype)
        count = int(np.prod(shape, dtype=np.int64))
        array = np.frombuffer(data, kind, count, end + start).reshape(shape)
        array.flags.writeable = False
        arrays.append(array)
    return _decoded(json.loads(head), arrays)


class _Writer:
    """Values as JSON, with the arrays in a table. Equal arrays are stored once."""

    def __init__(self) -> None:
        self.table: list[tuple[str, tuple[int, ...], int]] = []
        self.parts: list[bytes] = []
        self._size = 0
        self._seen: dict[tuple[str, tuple[int, ...], bytes], int] = {}

    def encoded(self, value: Any) -> Any:
        if isinstance(value, Enum):
            return {"e": [type(value).__name__, value.value]}
        if isinstance(value, Note):
            # By the name of its kind: the value is a text, which may be reworded.
            return {"n": [value.kind.name, without_places(value)]}
        if isinstance(value, str):
            return str(without_places(value))
        if value is None or type(value) in (bool, int, float):
            return value
        if isinstance(value, np.ndarray):
            if value.dtype.hasobject:
                return {"o": [list(value.shape), [self.encoded(item) for item in value.ravel().tolist()]]}
            return {"a": self._stored(value)}
        if isinstance(value, np.generic):
            return {"g": self._stored(np.asarray(value))}
        if isinstance(value, bytes):
            return {"b": value.hex()}
        if isinstance(value, Path):
            return {"p": without_places(str(value))}
        if is_dataclass(value) and type(value).__name__ in CLASSES:
            return {"c": type(value).__name__, **{f.name: self.encoded(v) for f, v in _given(value)}}
        if isinstance(value, tuple):
            return {"t": [self.encoded(item) for item in value]}
        if isinstance(value, list):
            return [self.encoded(item) for item in value]
        if isinstance(value, frozenset | set):
            return {"s" if isinstance(value, set) else "z": [self.encoded(item) for item in sorted(value)]}
        if isinstance(value, Mapping):
            return {"d": [[self.encoded(key), self.encoded(item)] for key, item in value.items()]}
        raise TypeError(f"a record holds {value!r} of {type(value)}, which has no form in a file")

    def _stored(self, array: np.ndarray[Any, Any]) -> int:
        data = np.ascontiguousarray(array).tobytes()
        key = (array.dtype.str, array.shape, data)
        if key not in self._seen:
            self._seen[key] = len(self.table)
            self.table.append((array.dtype.str, array.shape, self._size))
            self.parts.append(data)
            self._size += len(data)
        return self._seen[key]


def _given(value: Any) -> list[tuple[Field[Any], Any]]:
    """Return the fields of a record that do not have their default."""
    pairs = [(f, getattr(value, f.name)) for f in fields(value)]
    return [(f, given) for f, given in pairs if not _is_default(f, given)]


def _is_default(f: Field[Any], value: Any) -> bool:
    default = f.default_factory() if f.default_factory is not MISSING else f.default
    if default is MISSING or type(value) is not type(default):
        return False
    return value is default or (not isinstance(value, np.ndarray) and not value and not default and value == default)


def _decoded(value: Any, arrays: list[np.ndarray[Any, Any]]) -> Any:
    if isinstance(value, list):
        return [_decoded(item, arrays) for item in value]
    if not isinstance(value, dict):
        return value
    if "c" in value:
        return _instance(value, arrays)
    ((tag, inner),) = value.items()
    if tag == "o":
        shape, items = inner
        array = np.empty(len(items), object)
        array[:] = [_decoded(item, arrays) for item in items]
        return array.reshape(shape)
    return _DECODERS[tag](inner, arrays)


def _instance(value: dict[str, Any], arrays: list[np.ndarray[Any, Any]]) -> Any:
    kind = CLASSES.get(value["c"])
    given = {name: item for name, item in value.items() if name != "c"}
    unknown = sorted(set(given) - {f.name for f in fields(kind)}) if kind else []
    if kind is None or unknown:
        raise StaleRecordError(f"{value['c']} has no {', '.join(unknown)}" if kind else f"no class {value['c']}")
    return kind(**{name: _decoded(item, arrays) for name, item in given.items()})


def _enum(inner: list[Any], _arrays: object) -> Enum:
    kind = ENUMS.get(inner[0])
    if kind is None:
        raise StaleRecordError(f"no class {inner[0]}")
    return kind(inner[1])


def _note(inner: list[str], _arrays: object) -> Note:
    if inner[0] not in NoteKind.__members__:
        raise StaleRecordError(f"no kind of note {inner[0]}")
    return Note(NoteKind[inner[0]], inner[1])


_DECODERS: dict[str, Callable[[Any, list[np.ndarray[Any, Any]]], Any]] = {
    "e": _enum,
    "n": _note,
    "a": lambda inner, arrays: arrays[inner],
    "g": lambda inner, arrays: arrays[inner][()],
    "b": lambda inner, _arrays: bytes.fromhex(inner),
    "p": lambda inner, _arrays: Path(inner),
    "t": lambda inner, arrays: tuple(_decoded(item, arrays) for item in inner),
    "s": lambda inner, arrays: {_decoded(item, arrays) for item in inner},
    "z": lambda inner, arrays: frozenset(_decoded(item, arrays) for item in inner),
    "d": lambda inner, arrays: {_decoded(key, arrays): _decoded(item, arrays) for key, item in inner},
}


def without_places(text: str) -> str:
    """Replace the folders of this machine in a text, so that a file says nothing about it."""
    for place, name in _PLACES:
        text = text.replace(place, name)
    return text


_PLACES = sorted(
    ((str(ROOT), "<root>"), (sys.prefix, "<env>"), (sys.base_prefix, "<python>"), (tempfile.gettempdir(), "<tmp>"),
     (str(Path.home()), "<home>")),
    key=lambda pair: -len(pair[0]),
)  # fmt: skip
