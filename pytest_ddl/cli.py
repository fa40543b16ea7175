"""Command line of ``pytest-ddl``. Each subcommand has its own module, which is loaded when the subcommand is called."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module

from pytest_ddl.bench.outcome import FAILED


@dataclass(frozen=True)
class Command:
    """Subcommand of ``pytest-ddl``.

    Its module defines ``add_arguments(parser)`` and ``main(options) -> int``, which returns the exit status.
    """

    name: str
    summary: str
    module: str


COMMANDS: tuple[Command, ...] = (
    Command(
        "try",
        "Run an unmodified training script under each strategy, and compare it with one device.",
        "pytest_ddl.trying.command",
    ),
    Command("gate", "Check whether HEAD is slower than BASE, for example in CI.", "pytest_ddl.bench.gate.command"),
    Command("asv", "Track a training function over commits with asv.", "pytest_ddl.bench.asv.command"),
    Command("history", "Publish the performance history as one page.", "pytest_ddl.bench.history.command"),
    Command("warm", "Import TensorFlow once for later runs of pytest --ddl-warm.", "pytest_ddl.warm_command"),
    Command("experiment", "Reproduce a published experiment.", "pytest_ddl.bench.experiment.command"),
)
"""All subcommands. To add one, write its module and add an entry here."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a subcommand and return its exit status.

    All subcommands share the exit statuses of :mod:`pytest_ddl.bench.outcome`.
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    parser = argparse.ArgumentParser(
        prog="pytest-ddl", description="Measure the performance of distributed training and find regressions."
    )
    subparsers = parser.add_subparsers(metavar="COMMAND", required=True)
    for command in COMMANDS:
        sub = subparsers.add_parser(command.name, help=command.summary, description=command.summary)
        if given[:1] == [command.name]:
            try:
                module = import_module(command.module)
            except ImportError as error:
                sys.stderr.write(f"pytest-ddl {command.name} cannot start: {error}. Install pytest-ddl again\n")
                return FAILED
            module.add_arguments(sub)
            sub.set_defaults(main=module.main)
    options = parser.parse_args(given)
    status: int = options.main(options)
    return status


if __name__ == "__main__":
    sys.exit(main())
