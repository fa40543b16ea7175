"""Options of ``pytest-ddl forecast``, and what they state about the machines."""

from __future__ import annotations

import argparse

from pytest_ddl.bench.forecasting.evidence import UNKNOWN_LINK, Link, Origin, parse_link
from pytest_ddl.bench.forecasting.from_matrix import Stated
from pytest_ddl.bench.forecasting.predicting import FLOOR
from pytest_ddl.bench.forecasting.priors import WITHIN, speed_of
from pytest_ddl.bench.outcome import UsageError

EPILOG = """\
exit status:
  0    forecast, or compared
  1    with --check: a measurement is outside of its interval
  2    an option or a file cannot be used
  3    nothing could be forecast: each size was refused
  4    a package is missing, the measurement failed, or a file could not be written

examples:
  pytest-ddl forecast evaluation.json --replicas=16,64,256 --link=25Gbit/s --output=forecast.json
  pytest-ddl forecast forecast.json --check=later.json --score=score.json
  pytest-ddl forecast published.csv --check
  pytest-ddl forecast train.py:train --batch=64 --replicas=2,4,8
"""
MEASURED = "multi_worker_mirrored"
"""Strategy of which two replicas are measured if a training function is given."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = EPILOG
    add = parser.add_argument
    source = (
        "Launches (JSON of evaluate or Matrix.save), series (CSV), an earlier forecast (JSON, with --check), or a "
        "training function to measure, MODULE:FUNCTION or path/to/file.py:FUNCTION."
    )
    add("source", nargs="*", metavar="SOURCE", help=source)
    add("--replicas", metavar="N,N", help="Numbers of replicas (default: doubled up to 16 times the measured ones).")
    strategy = f"Strategy of the launches (default: that with the most replicas; to measure: {MEASURED})."
    add("--strategy", metavar="NAME", help=strategy)
    batch = "Examples of a replica, if a training function is measured (default: %(default)s)."
    add("--batch", type=_whole, default=32, metavar="N", help=batch)
    launches = "Launches of each variant, if a training function is measured (default: %(default)s)."
    add("--launches", type=_whole, default=3, metavar="N", help=launches)
    add("--timeout", type=float, default=120.0, metavar="S", help="Maximum seconds of a launch (default: %(default)g).")
    device = "Device of the replicas that are measured: auto (default), cpu or gpu."
    add("--device", default="auto", choices=["auto", "cpu", "gpu"], help=device)
    between = "Link between nodes, for example 25Gbit/s or 1.1GB/s,80us. It is marked as stated."
    add("--link", metavar="SPEED", help=between)
    within = f"Link within a node: a speed, or one of {', '.join(WITHIN)}."
    add("--link-within", metavar="SPEED", help=within)
    add("--servers", type=_whole, metavar="N", help="Parameter servers of the series of a CSV file that uses them.")
    add("--per-node", type=_whole, metavar="N", help="Replicas of one node (default: those of the largest launch).")
    add("--nodes", type=_whole, metavar="N", help="Nodes on which the largest launch ran (default: 1).")
    add("--strong", action="store_true", help="Keep the global batch (default: keep the batch of each replica).")
    add("--floor", type=_share, default=FLOOR, metavar="X", help="Efficiency to look for (default: %(default)s).")
    add("--output", metavar="FILE.json", help="Write the forecast here, for a later --check.")
    add("--picture", metavar="FILE.svg", help="Draw the forecast.")
    check = "Compare with later launches; without a file, with the rows of a CSV file whose role is target."
    add("--check", nargs="?", const="", metavar="FILE", help=check)
    add("--score", metavar="FILE.json", help="With --check: add the comparison to this file, and sum up all it has.")


def _whole(text: str) -> int:
    try:
        number = int(text)
    except ValueError:
        number = 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} must be a whole number, at least 1")
    return number


def _share(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number < 1:
        raise argparse.ArgumentTypeError(f"{text} must be a number between 0 and 1")
    return number


def replicas_of(text: str | None) -> list[int]:
    """Return the numbers of ``--replicas``; none without the option.

    :raises UsageError: if it has another form.
    """
    if not text:
        return []
    try:
        found = [int(part) for part in text.split(",")]
    except ValueError:
        raise UsageError(f"--replicas={text} must be whole numbers with commas, such as 16,64,256") from None
    if min(found) < 1:
        raise UsageError(f"--replicas={text}: each number must be at least 1")
    return sorted(set(found))


def stated_by(options: argparse.Namespace) -> Stated:
    """Return what the options state about the machines.

    :raises UsageError: if a link has another form.
    """
    return Stated(options.per_node, options.nodes, _within(options.link_within), _between(options.link))


def _between(text: str | None) -> Link:
    if not text:
        return UNKNOWN_LINK
    try:
        return parse_link(text)
    except ValueError as error:
        raise UsageError(f"--link: {error}") from None


def _within(text: str | None) -> Link:
    if not text:
        return UNKNOWN_LINK
    if speed_of(text, WITHIN) is not None:
        return Link(text, origin=Origin.ASSUMED)
    try:
        return parse_link(text)
    except ValueError as error:
        raise UsageError(f"--link-within: {error}, or one of {', '.join(WITHIN)}") from None
