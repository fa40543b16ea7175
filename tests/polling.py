"""Wait for a condition of another process, until a deadline."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")


def pause() -> None:
    """Leave the processor to others before the next look."""
    threading.Event().wait(0.01)


def wait_until(condition: Callable[[], T], what: str = "", seconds: float = 90.0) -> T:
    """Return the first true result of a condition.

    :param what: what the test says if the condition stays false.
    :raises AssertionError: after so many seconds.
    """
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, what or f"not within {seconds:.0f} s"
        pause()
    return found


def runs(pid: int) -> bool:
    """Return whether a process has not ended. One that nobody has waited for has ended, too."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    return False
