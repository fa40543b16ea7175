"""Translate paths in messages between the pytest process and a rank whose files are a copy in another folder.

With ``--ddl-sync``, each host has a copy of the user's files. A message to a rank names files of the pytest process: in
its import path, in options of pytest, in code that travels by value, in constants of the user's modules. All of these
are strings in pickled messages, so this module changes the strings there. A rank's answers are changed back.

The alternative is a copy at the same path on each host. It was not chosen: the user may not be permitted to make that
folder there, an older copy that belongs to the user may be in its place, and two runs would share it.
"""

from __future__ import annotations

import copyreg
import io
import json
import os
import pickle
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import PosixPath, PurePath, PurePosixPath
from typing import Any

from pytest_ddl.json_records import JsonRecord

PLACES = "_PYTEST_DDL_PLACES"
"""Environment variable of a rank with its :class:`FolderPlaces` as JSON. Not set if nothing has to be translated."""
_BEFORE, _AFTER = r"(?<![\w.~])", r"(?=[/\s:;,'\"`()<>{}\[\]|&?#=\0]|$)"
"""Patterns of the places before and after a path in a text."""


@dataclass(frozen=True)
class FolderPlaces(JsonRecord):
    """Folder of the user's files on the machine of the pytest process, and the copy of it on each host."""

    here: tuple[str, ...]
    """Absolute paths of the folder, the usual one first. Others lead to it through symbolic links."""
    there: str
    """Path of the copy. It is the same on all hosts, because what ranks record is compared between them."""
    kept: tuple[str, ...] = ()
    """Paths inside the folder that do not belong to the copy, such as an environment of Python."""

    @classmethod
    def of(cls, environ: Mapping[str, str]) -> FolderPlaces | None:
        """Return what an agent has written into the environment of this rank."""
        places = json.loads(environ.get(PLACES) or "null")
        return places and cls.from_json(places)

    def in_words(self) -> str:
        """Return the value of :data:`PLACES`."""
        return json.dumps(self.as_json())

    @cached_property
    def _pattern(self) -> re.Pattern[str]:
        kept, here = ("|".join(map(re.escape, paths)) for paths in (self.kept, self.here))
        return re.compile(f"{_BEFORE}(?:(?P<kept>{kept or '(?!)'})|(?:{here})){_AFTER}")

    def text_for_rank(self, text: str) -> str:
        """Return a text with the paths of the copy."""
        return self._pattern.sub(lambda match: match[0] if match["kept"] else self.there, text)

    def text_of_rank(self, text: str) -> str:
        """Return a text of a rank with the paths of the pytest process."""
        return text.replace(self.there, self.here[0])

    def output_of_rank(self, data: bytes) -> bytes:
        """Return what a rank has printed, with the paths of the pytest process."""
        return data.replace(os.fsencode(self.there), os.fsencode(self.here[0]))

    def for_rank(self, message: bytes) -> bytes:
        """Return a pickled message to a rank with the paths of the copy."""
        return _changed(message, [_utf8(path) for path in self.here], self.text_for_rank)

    def of_rank(self, message: bytes) -> bytes:
        """Return a pickled message of a rank with the paths of the pytest process."""
        return _changed(message, [_utf8(self.there)], self.text_of_rank)


def _utf8(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _changed(data: bytes, needles: list[bytes], change: Callable[[str], str]) -> bytes:
    """Return a pickled message in which each string is changed, also those of messages that are pickled inside it."""
    if not any(needle in data for needle in needles):
        return data
    # Only here, because few runs need it.
    import pickletools

    parts: list[bytes] = []
    done, is_replaced = 0, False
    operations: Iterator[tuple[Any, Any, Any]] = pickletools.genops(data)
    for opcode, argument, position in operations:
        if is_replaced:
            done = position
        new: bytes | None = None
        if opcode.name == "FRAME":
            # It has the length of what follows, and is not needed.
            new = b""
        elif opcode.name in ("SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8"):
            changed = change(argument)
            new = None if changed == argument else _sized(pickle.BINUNICODE8, _utf8(changed))
        elif opcode.name in ("SHORT_BINBYTES", "BINBYTES", "BINBYTES8"):
            other = _changed_bytes(argument, needles, change)
            new = None if other is argument else _sized(pickle.BINBYTES8, other)
        is_replaced = new is not None
        if new is not None:
            parts += [data[done:position], new]
    return b"".join([*parts, data[done:]])


def _sized(opcode: bytes, data: bytes) -> bytes:
    return opcode + len(data).to_bytes(8, "little") + data


def _changed_bytes(data: bytes, needles: list[bytes], change: Callable[[str], str]) -> bytes:
    """Return a pickled message or a path as bytes with changed paths, and other bytes as they are."""
    if not any(needle in data for needle in needles):
        return data
    if data.startswith(pickle.PROTO) and data.endswith(pickle.STOP):
        try:
            return _changed(data, needles, change)
        except ValueError:
            return data
    if data.startswith(tuple(needles)) and b"\n" not in data:
        return os.fsencode(change(os.fsdecode(data)))
    return data


def _reduce_path(path: PurePath) -> tuple[Any, ...]:
    return type(path), (str(path),)


WHOLE_PATHS: Mapping[type, Callable[[Any], Any]] = {PosixPath: _reduce_path, PurePosixPath: _reduce_path}
"""Entries for the dispatch table of a pickler. Before Python 3.13, pathlib pickles the parts of a path one by one."""


def dumps(value: Any) -> bytes:
    """Pickle a value like :func:`pickle.dumps`, with each path as one string."""
    file = io.BytesIO()
    pickler = pickle.Pickler(file, protocol=5)
    pickler.dispatch_table = {**copyreg.dispatch_table, **WHOLE_PATHS}
    pickler.dump(value)
    return file.getvalue()
