"""Log the collectives that a rank executes in a file, which can be read after the rank hangs or dies."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any

from pytest_ddl.json_records import from_plain, to_plain
from pytest_ddl.records import CollectiveRecord

DECISION = "decision"
"""Kind of an entry that is no collective: whether a rank takes the branch of a graph that has collectives."""


def path_of(folder: str, attempt: int, rank: int) -> Path:
    """Return the path of the log of a rank: a hidden file, because the folder belongs to the program."""
    return Path(folder) / f".collectives-{attempt}-{rank}"


class CollectiveLog:
    """Log file that is written line by line without a buffer, so that its content survives the process."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        self._known: dict[CollectiveRecord, int] = {}

    def __enter__(self) -> CollectiveLog:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._file)

    def write(self, record: CollectiveRecord) -> None:
        """Write a short line for one execution; before it, describe a new kind of collective in a long line."""
        like = replace(record, step=0)
        number = self._known.get(like)
        if number is None:
            number = self._known[like] = len(self._known)
            self._line(to_plain(like))
        self._line([number, record.step])

    def _line(self, value: Any) -> None:
        os.write(self._file, f"{json.dumps(value)}\n".encode())


def read(path: Path, of_rank: Callable[[str], str] = str) -> tuple[CollectiveRecord, ...]:
    """Return the collectives that a rank executed so far; none if it wrote no log.

    :param of_rank: function that changes a text with paths of the rank's host.
    """
    try:
        text = of_rank(path.read_text())
    except OSError:
        return ()
    known: list[CollectiveRecord] = []
    executed: list[CollectiveRecord] = []
    for line in text.splitlines(keepends=True):
        if not line.endswith("\n"):
            break  # the rank ended while it wrote this line
        value = json.loads(line)
        if isinstance(value, dict):
            known.append(from_plain(CollectiveRecord, value))
        else:
            executed.append(replace(known[value[0]], step=value[1]))
    return tuple(executed)
