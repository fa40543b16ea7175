"""Command ``pytest-ddl faults``: inject faults into a training function that needs no test file."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

from pytest_ddl.bench.outcome import USAGE, UsageError, check_writable, failed
from pytest_ddl.commands import check
from pytest_ddl.commands.frame import whole
from pytest_ddl.faults.rank.fault import KINDS, PHASES, Fault, FaultError
from pytest_ddl.option_values import given_options

_KINDS = "\n".join(f"  {kind.name:<11} {kind.summary}" for kind in KINDS.values())
EPILOG = f"""\
The training function is first compared with one device. Then it is interrupted, and started again in fresh processes.
All other options are those of pytest, for example -n 2, -x or -v.

kinds of faults:
{_KINDS}

points:
  before training, before step 3, in step 3, batch 0 (of a replica), in step 3, collective 1, after step 3,
  before save 1, in save 1, write 4, after save 1, before restore 1, after restore 1, before evaluation 1,
  after training

exit status, that of pytest:
  0    the training recovered from every fault
  1    it did not, or it differs from one device without a fault
  2    interrupted, or an option that does not exist or has a wrong form
  4    a wrong name of the function, a strategy, a check or a cause; or the module cannot be imported

example:
  pytest-ddl faults train.py:train --strategy=multi_worker_mirrored --global-batch-size=12 --every-point
  pytest-ddl faults train.py:train --strategy=mirrored --global-batch-size=12 --fault="term worker:0 after step 3"
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    check.add_arguments(parser)
    chosen = parser.add_argument_group("faults, at least one of")
    chosen.add_argument(
        "--fault",
        action="append",
        type=_fault,
        metavar="FAULT",
        help="KIND TASK POINT; repeatable: a second one needs 'of attempt 2' at its end",
    )
    chosen.add_argument("--every-point", action="store_true", help="strike once at every point that one run records")
    how = parser.add_argument_group("how to strike at every point")
    how.add_argument("--kind", choices=[*KINDS], default="kill", help="kind of fault (default: kill)")
    how.add_argument("--phases", type=_phases, metavar="NAMES", help=f"comma-separated, of {', '.join(PHASES)}")
    how.add_argument("--tasks", type=_names, metavar="NAMES", help="comma-separated, for example worker:1")
    how.add_argument("--no-writes", action="store_true", help="do not strike at single writes of a save")
    limits = parser.add_argument_group("limits")
    limits.add_argument("--exact", action="store_true", help="a resumed run must end with the same bits")
    limits.add_argument("--max-lost-steps", type=whole, metavar="N", help="maximum number of steps that are made again")
    limits.add_argument(
        "--detected-within", type=_seconds, metavar="SECONDS", help="maximum time until all ranks ended"
    )
    limits.add_argument("--always-loadable", action="store_true", help="the last complete save must be used")
    parser.add_argument("--restart-on", metavar="VARIANT", help="variant on which the program continues")
    parser.add_argument(
        "--report", type=_folder, metavar="FOLDER", help="write a page and JSON for each strategy to this folder"
    )


def main(options: argparse.Namespace) -> int:
    """Run pytest on the training function in place of this process, or return the exit status of a usage error."""
    try:
        check.refuse_similar(options.rest, add_arguments)
        if bool(options.fault) == options.every_point:
            raise UsageError("give either --every-point or --fault=FAULT")
        if options.report is not None:
            check_writable(Path(options.report), "--report")
    except UsageError as error:
        return failed("faults", f"error: {error}", USAGE)
    names = ("exact", "max_lost_steps", "detected_within", "always_loadable", "restart_on")
    limits = given_options(options, names)
    sweep = {"kind": options.kind, "writes": not options.no_writes}
    sweep |= given_options(options, ("phases", "tasks"))
    faults: dict[str, Any] = {"faults": [str(fault) for fault in options.fault or ()], "sweep": sweep, "limits": limits}
    if options.report is not None:
        faults["report"] = options.report
    return check.run(options, "faults", {"injected": faults})


def _fault(text: str) -> Fault:
    try:
        return Fault.parse(text)
    except FaultError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _names(text: str) -> list[str]:
    names = [name.strip() for name in text.split(",") if name.strip()]
    if not names:
        raise argparse.ArgumentTypeError(f"{text!r} names nothing: leave the option out for all of them")
    return names


def _folder(text: str) -> str:
    if not text:
        raise argparse.ArgumentTypeError("the name of the folder is empty")
    return os.path.abspath(text)


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds, at least 0")
    return seconds


def _phases(text: str) -> list[str]:
    names = _names(text)
    if any(name not in PHASES for name in names):
        raise argparse.ArgumentTypeError(f"{text!r}: valid phases: {', '.join(PHASES)}")
    return names
