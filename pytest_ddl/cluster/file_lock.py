"""Lock a file for a moment, without waiting for ever if the process that has locked it is suspended."""

from __future__ import annotations

import contextlib
import fcntl
import time
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def locked(file: Path, timeout: float) -> Iterator[bool]:
    """Lock a file while the context lasts. Yield ``False`` if another process has locked it until the timeout."""
    deadline = time.monotonic() + timeout
    with open(file, "w") as opened:
        while not (free := _try(opened.fileno())) and time.monotonic() < deadline:
            time.sleep(0.02)
        yield free


def _try(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
