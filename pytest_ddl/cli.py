"""The command ``pytest-ddl``: each subcommand has a module of its own, which is loaded when it is called."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module


@dataclass(frozen=True)
class Command:
    """A subcommand: ``module`` has ``add_arguments(parser)`` and ``main(options) -> int``, its exit status."""

    name: str
    summary: str
    module: str


CANNOT_START = 4
"""Exit status of a subcommand that cannot be imported; of the gate, that nothing could be measured."""
COMMANDS: tuple[Command, ...] = (
    Command("gate", "Is HEAD slower than BASE? For CI.", "pytest_ddl.bench.gate.command"),
    Command("asv", "Track a training function over commits with asv.", "pytest_ddl.bench.asv.command"),
    Command("history", "Publish the performance history as one page.", "pytest_ddl.bench.history.command"),
    Command("experiment", "Reproduce a published experiment.", "pytest_ddl.bench.experiment.command"),
)
"""A subcommand is added by its module and one entry here."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a subcommand; gives its exit status. 2 is for a wrong command line, 4 where it cannot be imported."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    parser = argparse.ArgumentParser(
        prog="pytest-ddl", description="Is distributed training fast, and does it stay so?"
    )
    subparsers = parser.add_subparsers(metavar="COMMAND", required=True)
    for command in COMMANDS:
        sub = subparsers.add_parser(command.name, help=command.summary, description=command.summary)
        if given[:1] == [command.name]:
            try:
                module = import_module(command.module)
            except ImportError as error:
                # Python's own status for it is 1, which of the gate means that HEAD is slower.
                sys.stderr.write(f"pytest-ddl {command.name} cannot start: {error}. Install pytest-ddl anew\n")
                return CANNOT_START
            module.add_arguments(sub)
            sub.set_defaults(main=module.main)
    options = parser.parse_args(given)
    status: int = options.main(options)
    return status


if __name__ == "__main__":
    sys.exit(main())
