"""Run a study, each with its own options, in a clone of the repository: ``python -m asv_bench.studies NAME``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from importlib import import_module

from asv_bench.studies.registry import STUDIES


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the study that is named first, and return its exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m asv_bench.studies", description="Run a study beside published results."
    )
    names = parser.add_subparsers(metavar="NAME", required=True)
    for study in STUDIES:
        module = import_module(study.module)
        sub = names.add_parser(study.name, help=study.summary, description=study.summary)
        module.add_arguments(sub)
        sub.set_defaults(study=module.main)
    options = parser.parse_args(arguments)
    status: int = options.study(options)
    return status


if __name__ == "__main__":
    sys.exit(main())
