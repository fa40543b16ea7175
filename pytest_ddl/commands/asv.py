"""``pytest-ddl asv``: set up asv for a training function, describe this machine, and measure a commit.

You can do all of this with asv itself. This command avoids four problems that asv 0.6.6 does not report:

* Results of an existing environment are not saved without ``--set-commit-hash``, and the exit status is 0.
* The machine file does not describe GPUs.
* The ``build_command`` stops at the first dependency.
* Gains are listed as regressions.

Exit status of ``init``: 2 if the training function does not exist. Exit status of ``run``: that of asv, which is 2 if a
benchmark failed; 1 if asv cannot run or saved nothing; 130 if it was interrupted.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path

from pytest_ddl.bench.asv import running
from pytest_ddl.bench.git import GitError
from pytest_ddl.bench.launching.machine import machine_name
from pytest_ddl.bench.outcome import OK, USAGE, WRONG
from pytest_ddl.commands.frame import conducted

_MACHINE = "asv's name of this machine (default: %(default)s)"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.description = __doc__
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    init = actions.add_parser("init", help="write asv.conf.json and benchmarks/ for a training function")
    init.add_argument("target", metavar="MODULE:FUNCTION", help="the training function train(run)")
    machine = actions.add_parser("machine", help="write ~/.asv-machine.json, with GPUs and their driver")
    machine.add_argument("--machine", metavar="NAME", default=machine_name(os.environ), help=_MACHINE)
    run = actions.add_parser("run", help="measure the checked-out commit in this environment, and keep the result")
    run.add_argument("--config", type=Path, metavar="FILE", help="asv's configuration (default: asv.conf.json)")
    run.add_argument("--commit", default="HEAD", metavar="REV", help="the checked-out commit (default: %(default)s)")
    run.add_argument("--python", default="same", metavar="PYTHON", help="interpreter that measures (default: this one)")
    run.add_argument(
        "--path", action="append", default=[], metavar="FOLDER", help="folder to import modules from (default: ., src)"
    )
    run.add_argument("--machine", metavar="NAME", default=machine_name(os.environ), help=_MACHINE)
    run.add_argument(
        "--bench", "-b", action="append", default=[], metavar="REGEX", help="run only the benchmarks that match"
    )
    run.add_argument("--quick", action="store_true", help="run everything briefly; keep no result")


def main(options: argparse.Namespace) -> int:
    """Set up asv, describe the machine or measure, and return the exit status."""
    return conducted(
        "asv",
        lambda: _run(options),
        [((running.AsvTargetError,), USAGE, ""), ((running.AsvError, GitError), WRONG, "")],
        interrupted=lambda: "interrupted; nothing is left running",
    )


def _run(options: argparse.Namespace) -> int:
    if options.action == "init":
        written = running.init(options.target, Path())
        sys.stdout.write(f"wrote {', '.join(map(str, written))}; commit them, then run: pytest-ddl asv run\n")
        return OK
    if options.action == "machine":
        sys.stdout.write(json.dumps(running.describe_machine(options.machine), indent=1) + "\n")
        return OK
    return running.run(options)
