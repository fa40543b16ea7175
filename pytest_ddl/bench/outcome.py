"""Exit statuses and errors of the subcommands of ``pytest-ddl``, and how they end after an error or a signal."""

from __future__ import annotations

import signal
import sys
import tempfile
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType

OK = 0
"""Nothing is wrong."""
WRONG = 1
"""``gate`` and ``history``: a regression. ``evaluate``: the training is wrong under any strategy, or nothing was
measured or written. ``asv``: asv cannot run, or saved nothing. ``doctor``: a problem of this machine."""
USAGE = 2
"""A wrong command line, or nothing to work on. asv itself returns it if a benchmark failed."""
INCOMPLETE = 3
"""``gate``: inconclusive. ``history``: a part of the history is missing."""
FAILED = 4
"""The command failed or cannot be imported, or the gate could not measure a cell. Python's own status for an uncaught
error is 1, which would mean a regression."""
INTERRUPTED = 130
"""The command was interrupted; shells use the same status for Ctrl-C."""
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class UsageError(ValueError):
    """Raised if an option, an argument, or a file that one names cannot be used. The message names it and the fix."""


def check_writable(folder: Path, option: str = "--output") -> None:
    """Check that the folder of an option can be written before anything long runs.

    :raises UsageError: if it cannot.
    """
    nearest = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
    try:
        with tempfile.TemporaryFile(dir=nearest) as file:
            file.write(b" " * 1024)
    except OSError as error:
        raise UsageError(f"{option}={folder}: nothing can be written in {nearest}: {error.strerror}") from None


def failed(command: str, problem: str, status: int, error: Exception | None = None) -> int:
    """Print a problem to standard error, and return the exit status.

    :param error: unexpected error, whose traceback is printed before the problem.
    """
    said = f"pytest-ddl {command}: {problem}\n"
    if error is not None:
        said = "".join(traceback.format_exception(error)) + said.rstrip("\n") + " (the traceback is above)\n"
    # Writing fails if the terminal was closed; the exit status must be returned all the same.
    with suppress(OSError):
        sys.stderr.write(said)
        sys.stderr.flush()
    return status


@contextmanager
def interruptible() -> Iterator[None]:
    """Raise KeyboardInterrupt on the first of ``SIGNALS`` in this context, and ignore later ones until it ends.

    The signals are those of Ctrl-C, a canceled CI job, and a closed terminal.
    """
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
