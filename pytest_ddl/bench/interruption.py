"""One KeyboardInterrupt for all that ends a command: Ctrl-C, a CI that cancels its job, a closed terminal."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

INTERRUPTED = 130
"""Exit status of a command that was interrupted, as shells have it for Ctrl-C."""
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextmanager
def interruptible() -> Iterator[None]:
    """Meanwhile the first of ``SIGNALS`` raises KeyboardInterrupt, and the others do nothing any more."""
    # Under nohup a closed terminal is to be survived.
    heard = [number for number in SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
    before = {number: signal.signal(number, _interrupt) for number in heard}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    # Once: a second Ctrl-C, or a CI that cancels a job by one signal after the other, must not keep processes
    # and folders from being removed.
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    raise KeyboardInterrupt
