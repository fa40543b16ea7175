"""Temporary folders of the gate, removed when it ends; if it was killed, the next gate removes them."""

from __future__ import annotations

import contextlib
import fcntl
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PREFIX = "ddl-gate-"
_LOCK = ".lock"


@contextmanager
def held_folder(kind: str = "") -> Iterator[Path]:
    """Make a temporary folder that exists as long as the context.

    A file in it is locked. The kernel releases the lock when the process ends for any reason. Unlike a process id,
    the lock means the same in all containers that share the folder.

    :param kind: part of the folder's name.
    """
    folder = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{kind}")).resolve()
    try:
        with (folder / f"{_LOCK}-made").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            # Renamed after locking: another gate that found an unlocked file would remove the folder.
            Path(lock.name).rename(folder / _LOCK)
            yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def remove_left_over() -> None:
    """Remove the folders of gates that were killed."""
    for lock_file in Path(tempfile.gettempdir()).glob(f"{PREFIX}*/{_LOCK}"):
        # An error means that the folder is in use, belongs to another user, or is already gone.
        with contextlib.suppress(OSError), lock_file.open("r+") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(lock_file.parent, ignore_errors=True)
