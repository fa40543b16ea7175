"""Run the suite over versions of TensorFlow and Keras, and write the page of the docs.

A cell is a pair of versions. Its environment and its result are kept in a folder: cells run one by one add up.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from pytest_ddl.bench.outcome import FAILED, INTERRUPTED, OK, USAGE, WRONG, interruptible
from suites import tiers
from suites.matrix import numbers, page, results
from suites.matrix.cells import chosen, plan
from suites.matrix.merging import merged
from suites.matrix.running import DEADLINES, Settings, result_of, run

STATUSES = """\
exit status:
  0    every cell passed, or is struck because the packages forbid the pair
  1    a test failed that is not known to fail
  2    wrong arguments
  4    a cell is an error: its run died, took too long, or ran nothing; this is no pass
  130  interrupted
"""
DEFAULT = Path(".matrix")


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    made = argparse.ArgumentParser(
        prog="python -m suites.matrix", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = made.add_subparsers(dest="command", required=True)
    cells = "parts of ids of cells, such as tf-2.21 or keras-3.8.0 (default: all)"
    add = commands.add_parser("list", help="list the cells").add_argument
    add("cells", nargs="*", metavar="CELL", help=cells)
    runs = commands.add_parser("run", help="run cells", epilog=STATUSES, formatter_class=made.formatter_class)
    add = runs.add_argument
    add("cells", nargs="*", metavar="CELL", help=cells)
    add("--tier", choices=tiers.TIERS, default=tiers.TIERS[0], help="tests that run (default: %(default)s)")
    add("--processes", type=int, default=1, metavar="N", help="processes of pytest in a cell (default: %(default)s)")
    limits = ", ".join(f"{name} {seconds:.0f}" for name, seconds in DEADLINES.items())
    add("--deadline", type=float, metavar="SECONDS", help=f"most seconds for a cell (default: {limits})")
    add("--existing", type=Path, metavar="FOLDER", help="use its environments tf-VERSION and folders keras-VERSION")
    add("--again", action="store_true", help="also run cells that have a result of this tier")
    add("--rest", action="store_true", help="run what failed or did not run, and keep the other outcomes")
    add("--pytest", nargs=1, action="extend", default=[], metavar="ARGUMENT", help="further argument for pytest")
    _add_folder(runs)
    told = "make the result of a cell from lines that were recorded on another machine, for example by tests/gpu/run.sh"
    reads = commands.add_parser("read", help=told, description=told)
    add = reads.add_argument
    add("cell", metavar="CELL", help="id of the cell")
    add(
        "lines", nargs="+", type=Path, metavar="FILE", help="lines of runs, each of which has left out what was settled"
    )
    add("--tier", choices=tiers.TIERS, default="core", help="tests that ran (default: %(default)s)")
    _add_folder(reads)
    pages = commands.add_parser("page", help="write the page from the results")
    pages.add_argument("--add", action="store_true", help="keep the cells of the page that have no result here")
    pages.add_argument("--before", type=Path, metavar="FOLDER", help="older results, to show what changed")
    pages.add_argument("--render", action="store_true", help=f"read no results: write it from {numbers.FILE.name}")
    _add_folder(pages)
    return made


def _add_folder(command: argparse.ArgumentParser) -> None:
    told = "folder of environments and results (default: %(default)s)"
    command.add_argument("--folder", type=Path, default=DEFAULT, metavar="FOLDER", help=told)


def main(arguments: Sequence[str] | None = None) -> int:
    options = parser().parse_args(arguments)
    try:
        with interruptible():
            return {"list": _list, "run": _run, "read": _read, "page": _page}[options.command](options)
    except KeyboardInterrupt:
        return INTERRUPTED
    except ValueError as error:
        sys.stderr.write(f"{error}\n")
        return USAGE


def _list(options: argparse.Namespace) -> int:
    for cell in chosen(plan().cells, options.cells):
        _say(f"{cell.id:36}{cell}")
    return OK


def _run(options: argparse.Namespace) -> int:
    folder = options.folder.resolve()
    given = Settings(
        folder=folder,
        tier=options.tier,
        tools=plan().tools,
        processes=options.processes,
        deadline=options.deadline,
        existing=options.existing and options.existing.resolve(),
        arguments=tuple(options.pytest),
        rest=options.rest,
    )
    if given.rest and given.processes > 1:
        raise ValueError("--rest runs in one process: leave out --processes")
    wanted = chosen(plan().cells, options.cells)
    worst = OK
    for cell in wanted:
        found = None if options.again else result_of(cell, given)
        # An error comes from a run that did not reach its end.
        repeat = found is None or found.outcome == results.ERROR or (given.rest and found.outcome == results.FAIL)
        result = None if repeat else found
        if result is None:
            result = run(cell, given)
        _say(f"{cell}: {line(result)}")
        worst = max(worst, {results.ERROR: FAILED, results.FAIL: WRONG}.get(result.outcome, OK))
    return worst


def _read(options: argparse.Namespace) -> int:
    (cell,) = chosen(plan().cells, [options.cell])
    result = results.of_runs(cell, options.tier, [results.lines_of(path) for path in options.lines])
    results.write(options.folder / "results", result)
    _say(f"{cell}: {line(result)}")
    return {results.ERROR: FAILED, results.FAIL: WRONG}.get(result.outcome, OK)


def line(result: results.Result) -> str:
    """Return what a result says, in one line."""
    counts = ", ".join(f"{number} {name}" for name, number in result.counts.items() if number)
    seconds = ", ".join(f"{name} {number:.0f} s" for name, number in result.seconds.items())
    return "; ".join(filter(None, [result.outcome, result.reason, counts, seconds]))


def _page(options: argparse.Namespace) -> int:
    if not options.render:
        found = results.read(options.folder / "results")
        if not found:
            raise ValueError(f"{options.folder / 'results'} has no results")
        before = options.before or options.folder / "before"
        made = numbers.numbers(found, results.read(before), plan().cells)
        numbers.write(merged(numbers.read(), made, plan().cells) if options.add else made)
    page.PAGE.write_text(page.page(numbers.read()), encoding="utf-8")
    _say(page.badge(numbers.read()))
    return OK


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
