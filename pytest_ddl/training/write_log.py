"""Log the files that a rank writes in a file, which can be read after the rank was stopped or has died."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

from pytest_ddl.json_records import from_plain, to_plain
from pytest_ddl.records import WriteRecord


def path_of(folder: str, attempt: int, rank: int) -> Path:
    """Return the path of the log of a rank: a hidden file, because the folder belongs to the program."""
    return Path(folder) / f".writes-{attempt}-{rank}"


def append(path: Path, record: WriteRecord) -> None:
    """Write a line without a buffer, so that it survives the process."""
    # Not open(), which is an audit event of the observer that calls this function.
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        os.write(file, json.dumps(to_plain(record)).encode() + b"\n")
    finally:
        os.close(file)


def read(path: Path, of_rank: Callable[[str], str] = str) -> tuple[WriteRecord, ...]:
    """Return the files that a rank has written so far; none if it wrote no log.

    :param of_rank: function that changes a text with paths of the rank's host.
    """
    try:
        lines = path.read_bytes().splitlines(keepends=True)
    except OSError:
        return ()
    # The rank may have ended while it wrote the last line.
    return tuple(from_plain(WriteRecord, json.loads(of_rank(line.decode()))) for line in lines if line.endswith(b"\n"))
