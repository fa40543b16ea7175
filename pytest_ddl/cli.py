"""Command line of ``pytest-ddl``. Each subcommand has its own module, which is loaded when the subcommand is called."""

from __future__ import annotations

import argparse
import platform
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Literal, NoReturn

from pytest_ddl.bench.outcome import FAILED, USAGE
from pytest_ddl.messages import did_you_mean


@dataclass(frozen=True)
class Command:
    """Subcommand of ``pytest-ddl``.

    Its module defines ``add_arguments(parser)`` and ``main(options) -> int``, which returns the exit status; and
    ``EPILOG``, the end of its help, if it has one.
    """

    name: str
    summary: str
    module: str
    passes_on: Literal["nothing", "unknown", "rest"] = "nothing"
    """Arguments that the command passes on as ``options.rest``: unknown options and all after ``--``, or the latter."""


COMMANDS: tuple[Command, ...] = (
    Command(
        "check",
        "Compare a training function under every strategy with one device, without a test file.",
        "pytest_ddl.commands.check",
        passes_on="unknown",
    ),
    Command(
        "faults",
        "Kill a training function at any point, start it again, and say what was lost.",
        "pytest_ddl.commands.faults",
        passes_on="unknown",
    ),
    Command(
        "try",
        "Run an unmodified training script under each strategy, and compare it with one device.",
        "pytest_ddl.commands.try_script",
        passes_on="rest",
    ),
    Command("doctor", "Say whether this machine can run distributed TensorFlow tests.", "pytest_ddl.commands.doctor"),
    Command("gate", "Check whether HEAD is slower than BASE, for example in CI.", "pytest_ddl.commands.gate"),
    Command("asv", "Track a training function over commits with asv.", "pytest_ddl.commands.asv"),
    Command("history", "Publish the performance history as one page.", "pytest_ddl.commands.history"),
    Command("warm", "Import TensorFlow once for later runs of pytest --ddl-warm.", "pytest_ddl.commands.warm"),
    Command(
        "forecast",
        "Forecast throughput on more replicas, with intervals, and keep the score.",
        "pytest_ddl.commands.forecast",
    ),
    Command(
        "evaluate",
        "Compare strategies and numbers of replicas: accuracy, time to a target, scaling, cost and correctness.",
        "pytest_ddl.commands.evaluate",
    ),
    Command(
        "experiment",
        "Say how to run the studies beside published results.",
        "pytest_ddl.commands.experiment",
        passes_on="unknown",
    ),
    Command("advise", "Say which strategy to use, what limits it and what to change.", "pytest_ddl.commands.advise"),
)
"""All subcommands. To add one, write its module and add an entry here."""


def versions() -> str:
    """Return the versions of pytest-ddl, TensorFlow, Keras, pytest and Python. TensorFlow is not imported."""
    import pytest_ddl
    from pytest_ddl.installing import installed
    from pytest_ddl.strategies.machine import tensorflow_version

    numbers = {
        "TensorFlow": tensorflow_version(),
        "Keras": installed("keras"),
        "pytest": installed("pytest"),
        "Python": platform.python_version(),
    }
    return "\n".join(
        [f"pytest-ddl {pytest_ddl.__version__}", *(f"{name} {one or 'not installed'}" for name, one in numbers.items())]
    )


class _Parser(argparse.ArgumentParser):
    """Parser that reports a usage error in one line. The usage of a command is longer than a screen."""

    def error(self, message: str) -> NoReturn:
        self.exit(USAGE, f"{self.prog}: error: {message}; see {self.prog} --help\n")


class _ShowVersions(argparse.Action):
    """Like ``version`` of argparse, but looks for the versions only if they are asked for."""

    def __init__(self, option_strings: Sequence[str], dest: str, **kwargs: Any) -> None:
        super().__init__(option_strings, dest, nargs=0, **kwargs)

    def __call__(self, parser: argparse.ArgumentParser, *_others: object) -> None:
        sys.stdout.write(versions() + "\n")
        parser.exit()


def _may_be_own(option: str) -> bool:
    """Return whether an unknown argument can be a misspelt option of a command, and not one of the plugin."""
    return option.startswith("--") and not option.startswith("--ddl-")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a subcommand and return its exit status.

    All subcommands share the exit statuses of :mod:`pytest_ddl.bench.outcome`.
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    parser = _Parser(
        prog="pytest-ddl", description="Check whether distributed training is correct, and measure its performance."
    )
    parser.add_argument(
        "--version", action=_ShowVersions, help="show the versions of pytest-ddl and of what it runs with, and exit"
    )
    subparsers = parser.add_subparsers(metavar="COMMAND", required=True)
    passes_on = "nothing"
    for command in COMMANDS:
        sub = subparsers.add_parser(command.name, help=command.summary, description=command.summary)
        if given[:1] == [command.name]:
            try:
                module = import_module(command.module)
            except ImportError as error:
                sys.stderr.write(f"pytest-ddl {command.name} cannot start: {error}. Install pytest-ddl again\n")
                return FAILED
            module.add_arguments(sub)
            if hasattr(module, "EPILOG"):
                sub.epilog, sub.formatter_class = module.EPILOG, argparse.RawDescriptionHelpFormatter
            sub.set_defaults(main=module.main)
            passes_on = command.passes_on
    if given and not given[0].startswith("-") and given[0] not in subparsers.choices:
        hint = did_you_mean(given[0], subparsers.choices)
        parser.error(f"{given[0]!r} is no command{hint}; the commands: {', '.join(subparsers.choices)}")
    options = argparse.Namespace()
    end = given.index("--") if "--" in given else len(given)
    _, unknown = parser.parse_known_args(given[:end], options)
    options.rest = [*unknown, *given[end + 1 :]]
    refused = {"unknown": [], "rest": unknown, "nothing": [*unknown, *given[end:]]}[passes_on]
    if refused:
        chosen = subparsers.choices[given[0]]
        known = [name for action in chosen._actions for name in action.option_strings]
        guesses = "".join(did_you_mean(one.partition("=")[0], known) for one in refused if _may_be_own(one))
        if passes_on == "rest" and not guesses:
            option = refused[0].startswith("-")
            places = " (options of the script go into --args, and those of pytest come last, after --)"
            guesses = places if option else " (one file in each call)"
        chosen.error(f"unrecognized arguments: {' '.join(refused)}{guesses}")
    status: int = options.main(options)
    return status


if __name__ == "__main__":
    sys.exit(main())
