"""Command ``pytest-ddl experiment``: say how to run the studies, which are not part of the package."""

from __future__ import annotations

import argparse
import shlex

from pytest_ddl.bench.outcome import USAGE, failed


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", nargs="?", metavar="NAME", help="Name of the study.")


def main(options: argparse.Namespace) -> int:
    """Print the command that runs the study, and return the exit status."""
    command = shlex.join(["python", "-m", "asv_bench.studies", options.name or "--help", *options.rest])
    return failed("experiment", f"error: studies need a clone of pytest-ddl; run this in it: {command}", USAGE)
