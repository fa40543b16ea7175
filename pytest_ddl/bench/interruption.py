"""Turn every signal that ends a command (Ctrl-C, a canceled CI job, a closed terminal) into one KeyboardInterrupt."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

INTERRUPTED = 130
"""Exit status of an interrupted command; shells use the same status for Ctrl-C."""
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextmanager
def interruptible() -> Iterator[None]:
    """Raise KeyboardInterrupt on the first of ``SIGNALS`` in this context, and ignore later ones until it ends."""
    # An ignored signal stays ignored: under nohup, the command must survive a closed terminal.
    heard = [number for number in SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
    before = {number: signal.signal(number, _interrupt) for number in heard}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    # Ignore later signals: a second Ctrl-C, or a CI that cancels a job with several signals, must not stop the removal
    # of processes and folders.
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    raise KeyboardInterrupt
