"""asv as a process that ends, with all that it has started, when the command that runs it ends."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest_ddl
from pytest_ddl.bench.interruption import INTERRUPTED
from pytest_ddl.bench.processes import GRACE, Processes, die_with

_START = f"from {__name__} import main; sys.exit(main())"


def call(words: Sequence[str], folder: Path, environ: Mapping[str, str]) -> int:
    """Run asv with these arguments, printing where this process does; gives its exit status.

    :raises KeyboardInterrupt: see :mod:`pytest_ddl.bench.interruption`; nothing that asv started is left by then.
    """
    # Where this package is not installed it was found in a working folder that is not asv's.
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
    """Be asv: the first argument is the process that this one is to end with, the others are asv's."""
    parent = int(sys.argv.pop(1))
    # asv ends the benchmark that it runs at this signal, and leaves it running at others. What a shell starts in the
    # background would ignore it.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        die_with(parent, signal.SIGINT)
        from asv.main import main as asv

        sys.argv[0] = "asv"
        asv()
    except KeyboardInterrupt:
        return INTERRUPTED
    return 0
