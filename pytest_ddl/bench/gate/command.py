"""Command ``pytest-ddl gate BASE HEAD``: options, output and exit status."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from pytest_ddl import github
from pytest_ddl.bench.exits import FAILED, INTERRUPTED, USAGE, failed, interruptible
from pytest_ddl.bench.gate import report
from pytest_ddl.bench.gate.gating import run_gate
from pytest_ddl.bench.gate.plan import GatePlan
from pytest_ddl.bench.gate.result import GateResult
from pytest_ddl.bench.gate.worktrees import GateUsageError
from pytest_ddl.bench.git import GitError
from pytest_ddl.bench.spec import BenchSpec

STATUSES = """\
exit status:
  0    every cell passed: no counter is worse, and a slowdown beyond the margin is ruled out
  1    a regression: a step takes longer by more than the margin, or a counter is worse
  2    the gate could not begin: a wrong option, no such commit, the same commit twice
  3    inconclusive: launches or seconds are used up, or the machine is overloaded; this is no pass
  4    a cell could not be measured: a version lacks the target, a side failed or took too long; or the gate itself
       failed, for example because the disk is full
  130  interrupted
With several cells, the worst one decides: 1, then 4, then 3.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    default = GatePlan("", "", ("",))
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = STATUSES
    parser.add_argument("base", metavar="BASE", help="branch, tag or commit to compare with")
    parser.add_argument(
        "head", metavar="HEAD", help="branch, tag or commit to check; or WORKTREE, the working tree as it is"
    )
    _add_measured(parser.add_argument_group("what is measured"), default)
    _add_decision(parser.add_argument_group("how the gate decides"), default)
    _add_output(parser.add_argument_group("output"))


def _add_measured(what: argparse._ArgumentGroup, default: GatePlan) -> None:
    what.add_argument(
        "--target",
        dest="targets",
        action="append",
        required=True,
        metavar="MODULE:FUNCTION",
        help="a training function, train(run), that both versions have; or path/to/file.py:function; repeatable",
    )
    what.add_argument(
        "--strategy",
        dest="strategies",
        action="append",
        metavar="VARIANT",
        help="variant such as mirrored[replicas=2] to measure each target under; repeatable (default: one_device)",
    )
    batch = what.add_mutually_exclusive_group()
    batch.add_argument("--batch-per-replica", type=int, metavar="N", help="examples per step on each replica")
    batch.add_argument("--global-batch-size", type=int, metavar="N", help="examples per step on all replicas together")
    what.add_argument(
        "--device",
        choices=("auto", "cpu", "gpu", "tpu"),
        default=default.bench.device,
        help="device of the replicas (default: auto, which means GPUs if there are any)",
    )
    what.add_argument(
        "--path",
        dest="paths",
        action="append",
        default=[],
        metavar="FOLDER",
        help="folder to import modules from; repeatable (default: ., src)",
    )
    what.add_argument(
        "--repository",
        type=Path,
        default=Path(),
        metavar="FOLDER",
        help="the git repository of both versions (default: .)",
    )
    for side, python in (("base", default.base_python), ("head", default.head_python)):
        what.add_argument(
            f"--{side}-python",
            default=python,
            metavar="PYTHON",
            help=f"interpreter for {side.upper()} (default: this one)",
        )
    what.add_argument(
        "--instrument",
        choices=("auto", "gate", "version"),
        default=default.instrument,
        help="pytest-ddl that measures: gate: the running one; version: each version's own; auto (default): each "
        "version's own if both have one, else the running one",
    )
    what.add_argument("--a-a", action="store_true", help="measure the gate itself: BASE and HEAD may be the same")


def _add_decision(how: argparse._ArgumentGroup, default: GatePlan) -> None:
    how.add_argument(
        "--margin",
        type=_share,
        default=default.margin,
        metavar="SHARE",
        help="slowdown that is tolerated (default: 0.025, which is 2.5 %%)",
    )
    how.add_argument(
        "--false-alarms",
        type=_share,
        default=default.false_alarms,
        metavar="P",
        help="probability of a false regression of one cell, over all looks (default: 0.01)",
    )
    how.add_argument(
        "--max-launches",
        dest="launches",
        type=int,
        default=default.launches,
        metavar="N",
        help="maximum number of launches per cell (default: %(default)s)",
    )
    how.add_argument(
        "--budget",
        type=float,
        default=default.budget,
        metavar="SECONDS",
        help="maximum time per cell (default: %(default)g)",
    )
    how.add_argument(
        "--timeout",
        type=float,
        default=default.bench.timeout,
        metavar="SECONDS",
        help="maximum time per launch (default: %(default)g)",
    )
    how.add_argument(
        "--warm-up",
        type=int,
        default=default.bench.warm_up,
        metavar="STEPS",
        help="number of steps before the time is measured (default: %(default)s)",
    )
    how.add_argument("--pin", action="store_true", help="give each replica its own CPU cores")
    how.add_argument(
        "--counters-only", action="store_true", help="compare only counters, from one launch of each version"
    )
    how.add_argument(
        "--accept",
        action="append",
        default=[],
        metavar="COUNTER=REASON",
        help="a counter that may be worse, and the reason; repeatable",
    )


def _add_output(output: argparse._ArgumentGroup) -> None:
    output.add_argument("--json", type=Path, metavar="FILE", help="write the complete result to this file")
    output.add_argument(
        "--github", action="store_true", help="write a step summary and annotations (automatic in GitHub Actions)"
    )
    output.add_argument("--quiet", action="store_true", help="do not print a line for each launch")


def plan_of(options: argparse.Namespace) -> GatePlan:
    """Build the plan from the options.

    :raises GateUsageError: if a value cannot be used; the message names it.
    """
    given = {name: tuple(value) if isinstance(value, list) else value for name, value in vars(options).items()}
    given["strategies"] = given["strategies"] or GatePlan.strategies
    given["accept"] = dict(_accepted(text) for text in options.accept)
    try:
        bench = BenchSpec(**_fields_of(BenchSpec, given))
    except ValueError as error:
        raise GateUsageError(str(error)) from None
    return GatePlan(bench=bench, **_fields_of(GatePlan, given))


def _fields_of(kind: type[Any], given: Mapping[str, Any]) -> dict[str, Any]:
    return {field.name: given[field.name] for field in fields(kind) if field.name in given}


def main(options: argparse.Namespace) -> int:
    """Run the gate, show the result, and return the exit status."""

    def tell(line: str) -> None:
        if not options.quiet:
            sys.stderr.write(line + "\n")
            sys.stderr.flush()

    try:
        with interruptible():
            plan = plan_of(options)
            if options.json is not None:
                _check_json(options.json)
            return _show(run_gate(plan, tell), options)
    except GateUsageError as error:
        return failed("gate", str(error), USAGE)
    except KeyboardInterrupt:
        return failed("gate", "interrupted; there is no verdict", INTERRUPTED)
    except GitError as error:
        return failed("gate", f"could not measure: {error}", FAILED)
    except Exception as error:
        said = " ".join(str(error).split())
        return failed("gate", f"could not measure: {type(error).__name__}: {said}", FAILED, error)


def _show(result: GateResult, options: argparse.Namespace) -> int:
    sys.stdout.write(report.text(result))
    if options.json is not None:
        result.save(options.json)
    if options.github or github.is_github():
        sys.stdout.write(report.github_annotations(result))
        if not github.append_summary(report.step_summary(result)) and options.github:
            sys.stderr.write("pytest-ddl gate: --github: GITHUB_STEP_SUMMARY is not set, so there is no step summary\n")
    sys.stdout.flush()
    return result.exit_status


def _check_json(path: Path) -> None:
    """Check that the file can be written before minutes are spent on measuring."""
    folder = path.absolute().parent
    if not folder.is_dir():
        raise GateUsageError(f"--json={str(path)!r}: there is no such folder")
    if path.is_dir() or not os.access(path if path.exists() else folder, os.W_OK):
        raise GateUsageError(f"--json={str(path)!r} cannot be written: give a file in a folder that you may write to")


def _share(text: str) -> float:
    """Parse a share such as ``0.025`` or ``2.5%``."""
    try:
        value = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a share, for example 0.025 or 2.5%") from None
    if not 0 < value < 1:
        raise argparse.ArgumentTypeError(f"{text!r} must be between 0 and 1, for example 0.025 for 2.5 %")
    return value


def _accepted(text: str) -> tuple[str, str]:
    counter, equals, reason = text.partition("=")
    if not equals or not counter.strip() or not reason.strip():
        raise GateUsageError(f"--accept={text!r} must be COUNTER=REASON, for example unpacked='a new metric'")
    return counter.strip(), reason.strip()
