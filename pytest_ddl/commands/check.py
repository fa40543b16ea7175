"""Command ``pytest-ddl check``: run pytest on a training function that needs no test file."""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pytest_ddl.bench.outcome import FAILED, USAGE, UsageError, failed
from pytest_ddl.commands.frame import add_strategy, find_target, positive, seconds, seed
from pytest_ddl.messages import did_you_mean
from pytest_ddl.option_values import given_options
from pytest_ddl.target import TargetError

EPILOG = """\
All other options are those of pytest, for example -n 2, -x, -v, --junitxml=FILE or --ddl-timeout=60.

exit status, that of pytest:
  0    no difference was found; strategies that cannot run here, and comparisons that decide nothing, are skipped
       (--strict makes the latter fail)
  1    the training differs from one device, or fails
  2    interrupted, or an option that does not exist or has a wrong form
  4    a wrong name of the function, a strategy, a check or a cause; or the module cannot be imported

example:
  pytest-ddl check train.py:train --strategy=mirrored,multi_worker_mirrored --global-batch-size=12 --steps=4
"""
_EXPECTATION = re.compile(
    r"(?:(?P<strategy>[A-Za-z_]\w*(?:\[[^\]]*\])?):)?(?P<cause>[\w-]+(?:\[[^\]]+\])?)(?:=(?P<reason>.+))?", re.DOTALL
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.allow_abbrev = False
    parser.add_argument(
        "target",
        metavar="MODULE:FUNCTION",
        help="the training function, train(run), or a function without parameters that returns a compiled Keras model "
        "and its data; or path/to/file.py:function",
    )
    add_strategy(
        parser,
        "comma-separated names or variants such as mirrored[replicas=4], 'all' or 'available'; repeatable "
        "(default: all)",
    )
    parser.add_argument("--device", choices=("auto", "cpu", "gpu", "tpu"), help="device of the replicas")
    parser.add_argument("--global-batch-size", type=positive, metavar="N", help="examples per step over all replicas")
    parser.add_argument("--steps", type=positive, metavar="N", help="maximum number of steps (default: all its data)")
    parser.add_argument("--precision", metavar="NAME", help="auto, float64 or native (default: auto)")
    parser.add_argument("--checks", metavar="NAMES", help="comma-separated names of the checks to run (default: all)")
    parser.add_argument(
        "--expect",
        action="append",
        type=_expectation,
        metavar="[STRATEGY:]CAUSE[=REASON]",
        help="difference that is intended, for all strategies or for one; repeatable",
    )
    parser.add_argument("--timeout", type=seconds, metavar="SECONDS", help="deadline of each comparison")
    parser.add_argument("--seed", type=seed, metavar="N", help="seed of every run (default: always the same)")
    parser.add_argument("--strict", action="store_true", help="fail on approximations and inconclusive verdicts too")


def main(options: argparse.Namespace) -> int:
    """Run pytest on the training function in place of this process, or return the exit status of a usage error."""
    try:
        refuse_similar(options.rest, add_arguments)
    except UsageError as error:
        return failed("check", f"error: {error}", USAGE)
    return run(options, "check", {})


def run(options: argparse.Namespace, command_name: str, further: Mapping[str, Any]) -> int:
    """Run pytest on the training function of a command that compares it, in place of this process.

    :param further: further parts of the plan for :mod:`pytest_ddl.checking.plugin`.
    """
    try:
        target = find_target(options.target)
    except TargetError as error:
        return failed(command_name, str(error), FAILED)
    plan = {
        "file": os.path.abspath(target.file),  # as pytest names it
        "function": target.function,
        "arguments": _arguments(options),
        **further,
    }
    # A module in folders without __init__.py is imported under the name that an import statement would use.
    given = [f"--ddl-check={json.dumps(plan)}", "-o", "consider_namespace_packages=true"]
    given += [f"--ddl-{name}={value}" for name, value in given_options(options, ("strategy", "device")).items()]
    command = [sys.executable, "-m", "pytest", *given, *options.rest, f"{target.file}::{target.function}"]
    sys.stdout.flush()
    return os.execv(sys.executable, command)


def _arguments(options: argparse.Namespace) -> dict[str, Any]:
    """Return the arguments of ``ddl_equivalence`` that were given."""
    names = ("global_batch_size", "steps", "precision", "timeout", "seed", "strict")
    arguments = given_options(options, names)
    if options.checks is not None:
        arguments["checks"] = [name.strip() for name in options.checks.split(",") if name.strip()]
    expect: dict[str, Any] = {}
    for strategy, cause, reason in options.expect or ():
        level = expect if strategy is None else expect.setdefault(strategy, {})
        level[cause] = reason
    return {**arguments, "expect": expect} if expect else arguments


def refuse_similar(rest: Sequence[str], own_arguments: Callable[[argparse.ArgumentParser], None]) -> None:
    """Refuse a misspelled option of a command, because pytest would explain it by its own options.

    :param own_arguments: function that adds the options of the command to a parser.
    :raises UsageError: if an option is similar to one of this command.
    """
    parser = argparse.ArgumentParser(add_help=False)
    own_arguments(parser)
    known = [name for action in parser._actions for name in action.option_strings]
    for option in rest:
        name = option.partition("=")[0]
        if name.startswith("--") and not name.startswith("--ddl-") and (hint := did_you_mean(name, known, 0.75)):
            raise UsageError(f"there is no option {name}{hint}")


def _expectation(text: str) -> tuple[str | None, str, str]:
    match = _EXPECTATION.fullmatch(text)
    if match is None:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not of the form [STRATEGY:]CAUSE[=REASON], where CAUSE may be CAUSE[VARIABLE]"
        )
    return match["strategy"], match["cause"], match["reason"] or "declared on the command line"
