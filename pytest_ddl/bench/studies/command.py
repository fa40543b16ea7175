"""Command ``pytest-ddl experiment NAME``: run one of the built-in studies, each with its own options."""

from __future__ import annotations

import argparse
from importlib import import_module

from pytest_ddl.bench.studies.registry import STUDIES


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add one sub-command for each study."""
    names = parser.add_subparsers(metavar="NAME", required=True)
    for study in STUDIES:
        module = import_module(study.module)
        sub = names.add_parser(study.name, help=study.summary, description=study.summary)
        module.add_arguments(sub)
        sub.set_defaults(study=module.main)


def main(options: argparse.Namespace) -> int:
    """Run the study that was named, and return its exit status."""
    status: int = options.study(options)
    return status
