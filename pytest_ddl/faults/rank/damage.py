"""Damage a file of a complete save, as a disk or a network does."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from pytest_ddl.faults.rank.fault import Fault
from pytest_ddl.records import Array

_STATE_FILE = "checkpoint"
"""File in which TensorFlow keeps the names of the newest checkpoints of a folder."""


def files_of(path: str, folder: str) -> list[Path]:
    """Return the files of a save in a fixed order: those with its name, and last the one that names the newest save.

    :param path: path of the save: a file, a folder, or the prefix of a checkpoint.
    :param folder: folder of the run. Files outside of it are left out, because they must never be damaged.
    """
    whole = Path(os.path.realpath(path))
    if not whole.is_relative_to(os.path.realpath(folder)):
        return []
    if whole.is_dir():
        return sorted(one for one in whole.rglob("*") if one.is_file())
    beside = sorted(one for one in whole.parent.glob("*") if one.is_file())
    own = [one for one in beside if one.name == whole.name]
    prefixed = [one for one in beside if one.name.startswith((f"{whole.name}.index", f"{whole.name}.data-"))]
    state = whole.parent / _STATE_FILE
    return own + prefixed + ([state] if prefixed and state.is_file() else [])


@dataclass(frozen=True)
class Held:
    """File of a save that a fault damages as soon as the program goes on.

    A program may rename the file first, or write its checksum. The open file stays the same.
    """

    fault: Fault
    file: int
    """Descriptor."""
    folder: Path
    """Folder of the run."""
    trained: Sequence[Array]
    """Values of the trainable variables when the file was written."""

    @classmethod
    def open(cls, fault: Fault, path: Path, folder: str, trained: Sequence[Array]) -> Held:
        return cls(fault, os.open(path, os.O_RDWR), Path(os.path.realpath(folder)), trained)

    @property
    def name(self) -> str:
        """Current name of the file in the folder of the run; empty if the program has removed it."""
        own = os.fstat(self.file)
        files = (one for one in self.folder.rglob("*") if one.is_file() and os.path.samestat(one.stat(), own))
        return next((str(one.relative_to(self.folder)) for one in files), "")

    def damage(self) -> None:
        """Change the file."""
        _DAMAGES[self.fault.kind](self.file, self.trained)


def _truncate(file: int, _trained: Sequence[Array]) -> None:
    os.ftruncate(file, os.fstat(file).st_size // 2)


def _flip_bit(file: int, trained: Sequence[Array]) -> None:
    """Change the sign of a trained value, or a bit in the middle of a file that contains no such value.

    Many bytes of a file are not used: few bits of a small HDF5 file change a value.
    """
    data = os.pread(file, os.fstat(file).st_size, 0)
    place, bit = _end_of_a_value(data, trained), 0x80
    if place is None:
        place, bit = len(data) // 2, 0x10
    if data:
        os.pwrite(file, bytes([data[place] ^ bit]), place)


def _end_of_a_value(data: bytes, trained: Sequence[Array]) -> int | None:
    """Return the position of the last byte, which has the sign, of a value that is not 0. Large arrays come first."""
    for value in sorted(trained, key=lambda one: -one.nbytes):
        start = data.find(np.ascontiguousarray(value).tobytes()) if np.any(value) else -1
        if start >= 0:
            return start + (int(np.flatnonzero(value)[0]) + 1) * value.itemsize - 1
    return None


_DAMAGES: dict[str, Callable[[int, Sequence[Array]], None]] = {"truncate": _truncate, "flip-bit": _flip_bit}
"""Kind of fault -> function that damages an open file."""
