"""Run asv in a process of its own, which ends with the command that runs it, together with all that asv started."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest_ddl
from pytest_ddl.bench.outcome import INTERRUPTED
from pytest_ddl.bench.processes import GRACE, Processes, die_with

_START = f"from {__name__} import main; sys.exit(main())"


def call(words: Sequence[str], folder: Path, environ: Mapping[str, str]) -> int:
    """Run asv with these arguments and the output of this process; return its exit status.

    :raises KeyboardInterrupt: see :mod:`pytest_ddl.bench.outcome`; everything that asv started has ended by then.
    """
    # If this package is not installed, it was imported from a working folder that asv's process does not search.
    start = f"import sys; sys.path.append({str(Path(pytest_ddl.__file__).parents[1])!r}); {_START}"
    command = [sys.executable, "-c", start, str(os.getpid()), *words]
    with Processes(f"asv-{os.getpid()}") as processes:
        asv = processes.start(command, folder, environ)
        try:
            return asv.wait()
        except KeyboardInterrupt:
            asv.send_signal(signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                asv.wait(GRACE)
            raise


def main() -> int:
    """Run asv in this process; the first argument is the parent process with which it ends, the others are asv's."""
    parent = int(sys.argv.pop(1))
    # asv ends the running benchmark on SIGINT, but not on other signals. A process that a shell starts in the
    # background ignores SIGINT by default.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        die_with(parent, signal.SIGINT)
        from asv.main import main as asv

        sys.argv[0] = "asv"
        asv()
    except KeyboardInterrupt:
        return INTERRUPTED
    return 0
