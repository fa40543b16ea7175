"""Command ``pytest-ddl gate BASE HEAD``: options, output and exit status."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from pytest_ddl import github
from pytest_ddl.bench.gate.gating import run_gate
from pytest_ddl.bench.gate.plan import GatePlan
from pytest_ddl.bench.gate.result import GateResult
from pytest_ddl.bench.gate.worktrees import usage_errors
from pytest_ddl.bench.git import GitError
from pytest_ddl.bench.launching.records import BenchSpec
from pytest_ddl.bench.outcome import FAILED, USAGE, UsageError
from pytest_ddl.commands.frame import (
    add_export,
    add_strategy,
    check_file,
    conducted,
    exported,
    fields_of,
    positive,
    seconds,
    share,
    strategies_of,
    tell,
)

EPILOG = """\
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
    for name in ("instrument", "base_python", "head_python", "margin", "false_alarms", "launches", "budget"):
        parser.set_defaults(**{name: getattr(default, name)})
    for name in ("device", "timeout", "warm_up"):
        parser.set_defaults(**{name: getattr(default.bench, name)})
    parser.add_argument("base", metavar="BASE", help="branch, tag or commit to compare with")
    parser.add_argument(
        "head", metavar="HEAD", help="branch, tag or commit to check; or WORKTREE, the working tree as it is"
    )
    _add_measured(parser.add_argument_group("what is measured"))
    _add_decision(parser.add_argument_group("how the gate decides"))
    _add_output(parser.add_argument_group("output"))


def _add_measured(what: argparse._ArgumentGroup) -> None:
    add = what.add_argument
    target = "a training function, train(run), that both versions have; or path/to/file.py:function; repeatable"
    add("--target", dest="targets", action="append", required=True, metavar="MODULE:FUNCTION", help=target)
    variants = "comma-separated variants such as mirrored[replicas=2] to measure each target under; repeatable"
    add_strategy(what, f"{variants} (default: one_device)")
    batch = what.add_mutually_exclusive_group()
    batch.add_argument("--batch-per-replica", type=positive, metavar="N", help="examples per step on each replica")
    batch.add_argument(
        "--global-batch-size", type=positive, metavar="N", help="examples per step on all replicas together"
    )
    device = "device of the replicas (default: auto, which means GPUs if there are any)"
    add("--device", choices=("auto", "cpu", "gpu", "tpu"), help=device)
    path = "folder to import modules from; repeatable (default: ., src)"
    add("--path", dest="paths", action="append", default=[], metavar="FOLDER", help=path)
    repository = "the git repository of both versions (default: .)"
    add("--repository", type=Path, default=Path(), metavar="FOLDER", help=repository)
    for side in ("base", "head"):
        add(f"--{side}-python", metavar="PYTHON", help=f"interpreter for {side.upper()} (default: this one)")
    instrument = (
        "which pytest-ddl measures the versions: 'gate' is the one that runs this command, 'version' is the one that "
        "each version contains, and 'auto' (default) is 'version' if both contain a suitable one, else 'gate'"
    )
    add("--instrument", choices=("auto", "gate", "version"), help=instrument)
    add("--a-a", action="store_true", help="measure the gate itself: BASE and HEAD may be the same")


def _add_decision(how: argparse._ArgumentGroup) -> None:
    add = how.add_argument
    margin = "slowdown that is tolerated (default: 0.025, which is 2.5 %%)"
    add("--margin", type=share, metavar="SHARE", help=margin)
    false_alarms = "probability of a false regression of one cell, over all looks (default: 0.01)"
    add("--false-alarms", type=share, metavar="P", help=false_alarms)
    launches = "maximum number of launches per cell (default: %(default)s)"
    add("--max-launches", dest="launches", type=positive, metavar="N", help=launches)
    add("--budget", type=seconds, metavar="SECONDS", help="maximum time per cell (default: %(default)g)")
    add("--timeout", type=seconds, metavar="SECONDS", help="maximum time per launch (default: %(default)g)")
    warm_up = "number of steps before the time is measured (default: %(default)s)"
    add("--warm-up", type=positive, metavar="STEPS", help=warm_up)
    add("--pin", action="store_true", help="give each replica its own CPU cores")
    add("--counters-only", action="store_true", help="compare only counters, from one launch of each version")
    accept = "a counter that may be worse, and the reason; repeatable"
    add("--accept", action="append", default=[], metavar="COUNTER=REASON", help=accept)


def _add_output(output: argparse._ArgumentGroup) -> None:
    add = output.add_argument
    add("--json", type=Path, metavar="FILE", help="write the complete result to this file")
    add("--github", action="store_true", help="write a step summary and annotations (automatic in GitHub Actions)")
    add_export(output)
    add("--quiet", action="store_true", help="do not print a line for each launch")


def plan_of(options: argparse.Namespace) -> GatePlan:
    """Build the plan from the options.

    :raises UsageError: if a value cannot be used; the message names it.
    """
    given = {name: tuple(value) if isinstance(value, list) else value for name, value in vars(options).items()}
    given["strategies"] = _strategies(options.strategy)
    given["accept"] = dict(_accepted(text) for text in options.accept)
    with usage_errors():
        bench = BenchSpec(**fields_of(BenchSpec, given))
    return GatePlan(bench=bench, **fields_of(GatePlan, given))


def main(options: argparse.Namespace) -> int:
    """Run the gate, show the result, and return the exit status."""
    return conducted(
        "gate",
        lambda: _run(options),
        [((UsageError,), USAGE, ""), ((GitError,), FAILED, "could not measure: ")],
        interrupted=lambda: "interrupted; there is no verdict",
        unexpected="could not measure",
    )


def _run(options: argparse.Namespace) -> int:
    plan = plan_of(options)
    check_file("--json", options.json)
    result = run_gate(plan, (lambda _line: None) if options.quiet else tell)
    _show(result, options)
    sent = exported("gate", options.export, result.as_sheet)
    return result.exit_status or sent


def _show(result: GateResult, options: argparse.Namespace) -> None:
    sys.stdout.write(str(result))
    if options.json is not None:
        result.save(options.json)
    if options.github or github.is_github():
        sys.stdout.write(result.annotations())
        if not github.append_summary(result.step_summary()) and options.github:
            sys.stderr.write("pytest-ddl gate: --github: GITHUB_STEP_SUMMARY is not set, so there is no step summary\n")
    sys.stdout.flush()


def _strategies(text: str | None) -> tuple[str, ...]:
    if text is None:
        return GatePlan.strategies
    if not strategies_of(text):
        raise UsageError(f"--strategy={text!r} must name at least one strategy, for example mirrored[replicas=2]")
    return tuple(strategies_of(text))


def _accepted(text: str) -> tuple[str, str]:
    counter, equals, reason = text.partition("=")
    if not equals or not counter.strip() or not reason.strip():
        raise UsageError(f"--accept={text!r} must be COUNTER=REASON, for example unpacked='a new metric'")
    return counter.strip(), reason.strip()
