"""Record the verdicts of the recipes of recovery, and write their page of the docs."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence

from suites.faults import page, verdicts
from suites.faults.catalogue import RECIPES


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command: ``record`` runs recipes, ``page`` only writes the page."""
    parser = argparse.ArgumentParser(prog="python -m suites.faults", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    add = commands.add_parser("record", help="run recipes, keep their verdicts, and write the page").add_argument
    add("names", nargs="*", metavar="NAME", help=f"recipes (default: all): {', '.join(RECIPES)}")
    commands.add_parser("page", help="write the page from the recorded verdicts")
    one = commands.add_parser("one", help="run one recipe under one strategy, and print its trials as JSON")
    one.add_argument("name", choices=RECIPES)
    one.add_argument("strategy")
    options = parser.parse_args(arguments)
    if options.command == "one":
        sys.stdout.write(json.dumps(verdicts.run(RECIPES[options.name], options.strategy)) + "\n")
        return 0
    if options.command == "record":
        if unknown := [name for name in options.names if name not in RECIPES]:
            parser.error(f"{unknown[0]!r} is no recipe; valid: {', '.join(RECIPES)}")
        verdicts.record(options.names or RECIPES)
    page.PAGE.write_text(page.page(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
