"""Run a study from its options to its folder: check options, end cleanly after errors and signals, write results."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Callable, Sequence
from datetime import datetime, timezone
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_ddl.bench.launching.machine import load_note
from pytest_ddl.bench.launching.ranks import BenchError
from pytest_ddl.bench.outcome import INTERRUPTED, OK, USAGE, WRONG, UsageError, check_writable, interruptible
from pytest_ddl.cluster.obstacles import LaunchError
from pytest_ddl.harness import process_harness

if TYPE_CHECKING:
    from asv_bench.studies.report import Report

PACKAGES = ("matplotlib", "scipy", "sklearn")
"""Packages that a study needs."""
INSTALL = "pip install -e '.[bench]' scikit-learn"
"""Command that installs them in a clone."""


def add_common(parser: argparse.ArgumentParser, name: str, *, repeats: int, quick: str, timeout: float) -> None:
    """Add the options that every study has.

    :param name: name of the study, which is also the default folder.
    :param repeats: default number of repeats, each of which is one sample of an interval.
    :param quick: what ``--quick`` measures, in words.
    :param timeout: default number of seconds for one run.
    """
    add = parser.add_argument
    add("--output", default=name, metavar="DIR", help="Folder for results (default: %(default)s).")
    text = f"Runs of each case, which take turns (default: {repeats}; intervals need at least 2)."
    add("--repeats", type=int, metavar="N", help=text)
    add("--quick", action="store_true", help=f"Measure less, to see that it works: {quick}.")
    text = "Maximum time of one run in seconds (default: %(default)g)."
    add("--timeout", type=float, default=timeout, metavar="S", help=text)


def numbers(name: str, text: str, *, least: int, most: int | None = None) -> list[int]:
    """Return the whole numbers of an option such as ``--workers 1,2,4``, in ascending order and without duplicates.

    :raises UsageError: if one is no whole number, or outside ``least`` and ``most``.
    """
    found = set()
    for part in text.split(","):
        if not part.strip().isdecimal():
            raise UsageError(f"--{name}={text}: {part.strip()!r} is not a whole number; write numbers as in 1,2,4")
        found.add(int(part))
    wrong = [one for one in sorted(found) if one < least or (most is not None and one > most)]
    if wrong:
        limit = f"at least {least}" if most is None else f"{least} to {most}"
        raise UsageError(f"--{name}={text}: {wrong[0]} must be {limit}")
    return sorted(found)


def check_common(options: argparse.Namespace, *, packages: Sequence[str] = PACKAGES) -> Path:
    """Check the options that every study has, and the packages that it needs; return the folder.

    :raises UsageError: if one cannot be used.
    """
    if options.repeats is not None and options.repeats < 1:
        raise UsageError(f"--repeats={options.repeats} must be at least 1")
    if not options.timeout > 0:
        raise UsageError(f"--timeout={options.timeout} must be a positive number of seconds")
    for name in packages:
        try:
            import_module(name)
        except ImportError as error:
            raise UsageError(f"{name} cannot be imported ({error}), but this command needs it: {INSTALL}") from None
    folder = Path(options.output)
    check_writable(folder)
    return folder


def conduct(
    options: argparse.Namespace, measure: Callable[[argparse.Namespace], Report], *, packages: Sequence[str] = PACKAGES
) -> int:
    """Check the common options, measure, print the tables, write the folder, and return the exit status.

    After Ctrl-C, no process is left and nothing was written.

    :param measure: function that runs the study. It raises :class:`UsageError` for options that it cannot use.
    :param packages: packages that the study needs.
    """
    try:
        with interruptible():
            return _conducted(options, measure, packages)
    except UsageError as error:
        tell(f"error: {error}")
        return USAGE
    except LaunchError as error:
        process_harness().close()
        tell(f"error: nothing was measured: {error}")
        return WRONG
    except KeyboardInterrupt:
        # Closed here and not at exit, so that no process is left if the caller continues.
        process_harness().close()
        tell("interrupted: nothing was written")
        return INTERRUPTED


def _conducted(
    options: argparse.Namespace, measure: Callable[[argparse.Namespace], Report], packages: Sequence[str]
) -> int:
    from asv_bench.studies import report
    from pytest_ddl.cluster.cluster import ClusterError

    folder = check_common(options, packages=packages)
    busy = load_note()
    started = datetime.now(timezone.utc)
    try:
        found = measure(options)
    except (BenchError, ClusterError) as error:
        tell(f"error: nothing was measured: {error}")
        return WRONG
    notes = [f"The machine was busy at the start ({busy}): these times are not reliable."] if busy else []
    origin = report.Origin(
        command=shlex.join(["python", "-m", "asv_bench.studies", *sys.argv[1:]]),
        started=f"{started:%Y-%m-%d %H:%M} UTC",
        notes=tuple(notes),
    )
    sys.stdout.write(report.markdown(found, origin))
    sys.stdout.flush()
    try:
        report.write(found, origin, folder)
    except OSError as error:
        tell(f"error: --output={folder} could not be written completely: {error}")
        return WRONG
    tell(f"written to {folder}: open {folder / 'index.html'}")
    if found.problem:
        tell(f"error: {found.problem}")
        return WRONG
    return OK


def tell(text: str) -> None:
    """Write one line of progress to standard error."""
    sys.stderr.write(text + "\n")
    sys.stderr.flush()
