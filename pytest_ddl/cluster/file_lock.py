"""Lock files without waiting for ever, since the process that has locked one may be suspended."""

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
        while not (free := try_lock(opened.fileno())) and time.monotonic() < deadline:
            time.sleep(0.02)
        yield free


def try_lock(descriptor: int, *, shared: bool = False) -> bool:
    """Lock an open file until it is closed, and return ``False`` if another process has locked it."""
    try:
        fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
