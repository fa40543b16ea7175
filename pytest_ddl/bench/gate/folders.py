"""Folders of the gate: removed when it ends, or by the next gate where it was killed and could not."""

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
    """A temporary folder that exists while the context does.

    A file in it is locked. The kernel gives the lock back when its process ends, however it ends, and unlike a
    process id it means the same in all containers that share the folder.

    :param kind: is a part of its name.
    """
    folder = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{kind}")).resolve()
    try:
        with (folder / f"{_LOCK}-made").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            # Only now, so that nobody finds one that is not locked yet.
            Path(lock.name).rename(folder / _LOCK)
            yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def remove_left_over() -> None:
    """Remove the folders of gates that were killed."""
    for lock_file in Path(tempfile.gettempdir()).glob(f"{PREFIX}*/{_LOCK}"):
        # In use, somebody else's, or gone by now.
        with contextlib.suppress(OSError), lock_file.open("r+") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(lock_file.parent, ignore_errors=True)
