"""Read ``cells.toml``: the pairs of versions over which the suite runs."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from packaging.version import InvalidVersion, Version

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

FILE = Path(__file__).with_name("cells.toml")
SUBJECTS = ("keras", "tf_keras")
NEWEST = "newest"
NIGHTLY = "nightly"
DEVICES = ("", "gpu")
"""Kinds of devices of a cell; empty for CPUs."""
ONE_GPU = "one_device,mirrored,multi_worker_mirrored,parameter_server,central_storage"
"""Strategies that one GPU can run, with virtual ones for replicas. Others need several, a TPU or NCCL."""


@dataclass(frozen=True)
class Cell:
    """One pair of versions."""

    tensorflow: str
    """A version, or ``nightly``: the newest build of the development version, with that of Keras."""
    keras: str
    """A version, ``newest``: the one that an installer chooses for this TensorFlow, or ``nightly``."""
    subject: str = SUBJECTS[0]
    """Package that is tested."""
    oldest: bool = False
    """True for the oldest supported version of all other packages."""
    device: str = ""
    """``gpu`` for replicas on one GPU; such a cell runs only if it is named."""

    @property
    def id(self) -> str:
        """Name of its files."""
        keras = self.subject if self.subject != SUBJECTS[0] else f"keras-{self.keras}"
        return f"tf-{self.tensorflow}-{keras}{'-oldest' if self.oldest else ''}{self._on}"

    @property
    def _on(self) -> str:
        return f"-{self.device}" if self.device else ""

    @property
    def environment(self) -> str:
        """Name of the environment, which cells with the same TensorFlow share."""
        return f"tf-{self.tensorflow}{'-oldest' if self.oldest else ''}{self._on}"

    @property
    def nightly(self) -> bool:
        """True if the versions are those of the day on which the environment is made."""
        return self.tensorflow == NIGHTLY

    def __str__(self) -> str:
        series = self.tensorflow if self.nightly else self.tensorflow.rpartition(".")[0]
        keras = f"tf_keras {series}" if self.subject != SUBJECTS[0] else f"Keras {self.keras}"
        rest = f"{', oldest dependencies' if self.oldest else ''}{', one GPU' if self.device else ''}"
        return f"TF {self.tensorflow} + {keras}{rest}"

    def at(self, versions: Mapping[str, str]) -> Cell:
        """Return the cell with the versions that ran in it, for each package whose version it does not fix."""
        tensorflow = versions.get("tensorflow", self.tensorflow) if self.nightly else self.tensorflow
        return replace(self, tensorflow=tensorflow, keras=versions.get("keras", self.keras))

    @property
    def order(self) -> tuple[bool, Version, bool, Version, bool, str]:
        """Sort key: by TensorFlow, then by Keras, tf_keras last."""
        keras = Version("0" if self.keras in (NEWEST, NIGHTLY) else self.keras)
        tensorflow = Version("0" if self.nightly else self.tensorflow)
        return self.nightly, tensorflow, self.subject != SUBJECTS[0], keras, not self.oldest, self.device

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Plan:
    """Contents of the file."""

    cells: tuple[Cell, ...]
    tools: tuple[str, ...]
    """Requirements of the suite that pytest-ddl itself does not have."""


def load(text: str) -> Plan:
    """Parse a file.

    :raises ValueError: for a wrong key, subject or version, or a cell that is there twice. The message shows the entry.
    """
    given = tomllib.loads(text)
    if set(given) - {"tools", "cells"}:
        raise ValueError(f"{FILE.name}: unknown {sorted(set(given) - {'tools', 'cells'})}; keys: tools, cells")
    cells = [cell for entry in given.get("cells", []) for cell in _cells(entry)]
    twice = sorted({cell.id for cell in cells if [other.id for other in cells].count(cell.id) > 1})
    if twice:
        raise ValueError(f"{FILE.name}: a cell may occur once: {', '.join(twice)}")
    return Plan(tuple(sorted(cells, key=lambda cell: cell.order)), tuple(given.get("tools", ())))


def _cells(entry: dict[str, Any]) -> Iterable[Cell]:
    unknown = sorted(set(entry) - {"tensorflow", "keras", "subject", "oldest", "device"})
    missing = [key for key in ("tensorflow", "keras") if not entry.get(key)]
    subject = entry.get("subject", SUBJECTS[0])
    device = entry.get("device", DEVICES[0])
    if device not in DEVICES:
        raise ValueError(f"{FILE.name}: {entry}: device must be gpu, or missing")
    if unknown or missing or subject not in SUBJECTS:
        raise ValueError(f"{FILE.name}: {entry}: unknown {unknown}, missing {missing}; subjects: {', '.join(SUBJECTS)}")
    for tensorflow in entry["tensorflow"]:
        for keras in entry["keras"]:
            try:
                if NIGHTLY not in (tensorflow, keras):
                    Version(tensorflow), keras == NEWEST or Version(keras)
                elif tensorflow != keras:
                    raise ValueError(f"{FILE.name}: {entry}: TensorFlow and Keras are both {NIGHTLY}, or none is")
            except (InvalidVersion, TypeError):
                raise ValueError(f"{FILE.name}: {entry}: {tensorflow!r} and {keras!r} must be versions") from None
            yield Cell(tensorflow, keras, subject, bool(entry.get("oldest", False)), device)


def plan() -> Plan:
    """Return what ``cells.toml`` says."""
    return load(FILE.read_text(encoding="utf-8"))


def newest() -> dict[str, str]:
    """Return the newest released versions of TensorFlow, Keras and tf_keras in the file."""
    cells = plan().cells
    keras = (cell.keras for cell in cells if cell.keras not in (NEWEST, NIGHTLY))
    tensorflow = max((cell.tensorflow for cell in cells if not cell.nightly), key=Version)
    return {"tensorflow": tensorflow, "keras": max(keras, key=Version), "tf_keras": tensorflow}


def chosen(cells: Sequence[Cell], words: Sequence[str]) -> list[Cell]:
    """Return the cells whose id has one of the words in it, and all cells if there are no words.

    A word that is a whole id stands for that cell only. A cell on a GPU must be named by its whole id.

    :raises ValueError: if a word is in no id. The message lists the ids.
    """
    for word in words:
        if not any(word in cell.id for cell in cells):
            raise ValueError(f"no cell has {word!r} in its id: {', '.join(cell.id for cell in cells)}")
    ids = {cell.id for cell in cells}
    return [
        cell
        for cell in cells
        if (not words and not cell.device)
        or any(word == cell.id or (word not in ids and word in cell.id and not cell.device) for word in words)
    ]
