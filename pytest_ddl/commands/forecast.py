"""Command ``pytest-ddl forecast``: say how fast a program is on more replicas, and keep the score of what was said."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import replace
from pathlib import Path

from pytest_ddl.bench.forecasting.evidence import UNKNOWN_LINK, ForecastEvidence, Link, Observation, Origin, parse_link
from pytest_ddl.bench.forecasting.predicting import FLOOR, Forecast, forecast
from pytest_ddl.bench.forecasting.priors import WITHIN, speed_of
from pytest_ddl.bench.forecasting.published import PublishedSeries, read_series
from pytest_ddl.bench.forecasting.score import Scored, compare, keep, summaries
from pytest_ddl.bench.forecasting.sources import (
    NoEvidenceError,
    Stated,
    earlier,
    evidence_of,
    measured,
    measured_program,
)
from pytest_ddl.bench.forecasting.view import comparison, draw, report
from pytest_ddl.bench.metrics.registry import MissingPackageError
from pytest_ddl.bench.outcome import FAILED, INCOMPLETE, OK, WRONG, UsageError
from pytest_ddl.commands.frame import (
    conducted,
    find_target,
    former,
    numbers,
    positive,
    seconds,
    share,
    tell,
    without_start_messages,
)

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
  pytest-ddl forecast train.py:train --batch-per-replica=64 --replicas=2,4,8
"""
MEASURED = "multi_worker_mirrored"
"""Strategy of which two replicas are measured if a training function is given."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    source = (
        "Launches (JSON of evaluate or Matrix.save), series (CSV), an earlier forecast (JSON, with --check), or a "
        "training function to measure, MODULE:FUNCTION or path/to/file.py:FUNCTION."
    )
    add("source", nargs="*", metavar="SOURCE", help=source)
    add("--replicas", metavar="N,N", help="Numbers of replicas (default: doubled up to 16 times the measured ones).")
    strategy = f"Strategy of the launches (default: that with the most replicas; to measure: {MEASURED})."
    add("--strategy", metavar="NAME", help=strategy)
    batch = "Examples per step on each replica, if a training function is measured (default: %(default)s)."
    batch_option = add("--batch-per-replica", type=positive, default=32, metavar="N", help=batch)
    former(batch_option, "--batch", parser)
    launches = "Launches of each variant, if a training function is measured (default: %(default)s)."
    add("--launches", type=positive, default=3, metavar="N", help=launches)
    add(
        "--timeout",
        type=seconds,
        default=120.0,
        metavar="S",
        help="Maximum seconds of a launch (default: %(default)g).",
    )
    device = "Device of the replicas that are measured: auto (default), cpu or gpu."
    add("--device", default="auto", choices=["auto", "cpu", "gpu"], help=device)
    between = "Link between nodes, for example 25Gbit/s or 1.1GB/s,80us. It is marked as stated."
    add("--link", metavar="SPEED", help=between)
    within = f"Link within a node: a speed, or one of {', '.join(WITHIN)}."
    add("--link-within", metavar="SPEED", help=within)
    add("--servers", type=positive, metavar="N", help="Parameter servers of the series of a CSV file that uses them.")
    add("--per-node", type=positive, metavar="N", help="Replicas of one node (default: those of the largest launch).")
    add("--nodes", type=positive, metavar="N", help="Nodes on which the largest launch ran (default: 1).")
    add("--strong", action="store_true", help="Keep the global batch (default: keep the batch of each replica).")
    add("--floor", type=share, default=FLOOR, metavar="X", help="Efficiency to look for (default: %(default)s).")
    add("--output", metavar="FILE.json", help="Write the forecast here, for a later --check.")
    add("--picture", metavar="FILE.svg", help="Draw the forecast.")
    check = "Compare with later launches; without a file, with the rows of a CSV file whose role is target."
    add("--check", nargs="?", const="", metavar="FILE", help=check)
    add("--score", metavar="FILE.json", help="With --check: add the comparison to this file, and sum up all it has.")


class FailedError(RuntimeError):
    """Raised if the measurement itself failed."""


def main(options: argparse.Namespace) -> int:
    """Forecast or compare, and return the exit status."""
    return conducted(
        "forecast",
        lambda: _run(options),
        [
            ((FailedError, MissingPackageError), FAILED, "error: "),
            ((OSError,), FAILED, "error: a file could not be written: "),
        ],
        interrupted=lambda: "interrupted: nothing was written",
    )


def _run(options: argparse.Namespace) -> int:
    if options.score and options.check is None:
        raise UsageError(f"--score={options.score} needs --check: a score compares a forecast with a measurement")
    # Looked at first, because a measurement takes long.
    stated, replicas = stated_by(options), _replicas(options)
    is_series = bool(options.source) and options.source[0].lower().endswith(".csv")
    if options.check == "" and not is_series:
        raise UsageError("--check needs a file of later launches")
    if not options.source:
        raise UsageError("give launches (JSON), series (CSV) or a training function to measure, MODULE:FUNCTION")
    if ":" in options.source[0]:
        return _forecast(options, _measured(options, stated), replicas)
    paths = [Path(one) for one in options.source]
    if any(path.suffix.lower() == ".csv" for path in paths):
        if len(paths) > 1:
            raise UsageError(f"{paths[0]}: give one file of series, and no other files")
        return _series(options, paths[0], stated, replicas)
    if options.servers:
        raise UsageError(
            f"--servers={options.servers} is for series of a CSV file: launches of servers are not forecast"
        )
    before = earlier(paths[0]) if len(paths) == 1 else None
    if before is None:
        return _forecast(options, measured(paths, options.strategy, stated), replicas)
    if not options.check:
        raise UsageError(f"{paths[0]} is a forecast: give --check=FILE with the launches that were measured later")
    _refuse_files(options)
    return _compared(options, compare(before.program, before.points, _later(options, before.strategy, stated)))


def _measured(options: argparse.Namespace, stated: Stated) -> ForecastEvidence:
    """Measure a training function.

    :raises UsageError: if it cannot be measured here.
    :raises FailedError: if a launch of it fails.
    """
    # Imported here, because a forecast from files needs neither TensorFlow nor processes.
    from pytest_ddl.bench.launching.ranks import BenchError
    from pytest_ddl.harness import process_harness

    if len(options.source) > 1:
        raise UsageError(f"{options.source[0]}: give one training function, and no other files")
    name = options.source[0]
    strategy = options.strategy or MEASURED
    target = find_target(name)
    with without_start_messages():
        train = target.load()
    try:
        matrices = measured_program(
            train,
            strategy,
            options.batch_per_replica,
            launches=options.launches,
            device=options.device,
            timeout=options.timeout,
            tell=tell,
        )
        return evidence_of(matrices, strategy.partition("[")[0], stated, name)
    except BenchError as error:
        raise FailedError(f"{name} could not be measured: {error}") from None
    except (NoEvidenceError, ValueError) as error:
        raise UsageError(f"{name} could not be measured: {error}") from None
    finally:
        process_harness().close()


def _forecast(options: argparse.Namespace, evidence: ForecastEvidence, replicas: list[int]) -> int:
    start = max(2, evidence.largest.size.replicas)
    wanted = replicas or [start * 2**power for power in range(5)]
    made = forecast(evidence, wanted, strong=options.strong, floor=options.floor)
    status = _show(options, [made])
    if options.check is None:
        return status
    later = _later(options, evidence.strategy, stated_by(options))
    return _compared(options, compare(evidence.name, made.points, later))


def _series(options: argparse.Namespace, path: Path, stated: Stated, replicas: list[int]) -> int:
    """Forecast all series of a CSV file, and compare them with its targets if asked for."""
    for name in ("nodes", "strategy"):
        if getattr(options, name) is not None:
            raise UsageError(f"--{name}={getattr(options, name)} is for launches: a CSV file has this in its rows")
    if options.check:
        raise UsageError(f"--check={options.check}: the targets of {path} are in the file itself; give --check alone")
    found = [_with_options(one, stated, options.servers) for one in read_series(path)]
    if not found:
        raise UsageError(f"{path} has no series with an anchor")
    if options.check is None:
        made = [
            forecast(
                one.evidence,
                replicas or [target.size for target in one.targets],
                strong=options.strong,
                floor=options.floor,
            )
            for one in found
        ]
        return _show(options, made)
    _refuse_files(options)
    scores: list[Scored] = []
    for one in found:
        points = forecast(one.evidence, [target.size for target in one.targets], floor=options.floor).points
        scores += compare(one.name, points, one.targets)
    return _compared(options, scores)


def _with_options(series: PublishedSeries, stated: Stated, servers: int | None) -> PublishedSeries:
    """Return a series with what the options state in place of what its rows say."""
    before = series.evidence
    changed = replace(
        before,
        per_node=stated.per_node or before.per_node,
        within=before.within if stated.within == UNKNOWN_LINK else stated.within,
        between=before.between if stated.between == UNKNOWN_LINK else stated.between,
        servers=before.servers if servers is None or before.servers is None else servers,
    )
    return replace(series, evidence=changed)


def _refuse_files(options: argparse.Namespace) -> None:
    """Refuse options that write a forecast if none is made for a single program."""
    for name in ("output", "picture"):
        if getattr(options, name):
            raise UsageError(f"--{name}={getattr(options, name)} writes a new forecast: leave it out with this --check")


def _show(options: argparse.Namespace, made: list[Forecast]) -> int:
    for name in ("output", "picture"):
        if getattr(options, name) and len(made) != 1:
            raise UsageError(f"--{name}={getattr(options, name)} is for one program, and there are {len(made)}")
    sys.stdout.write("\n\n".join(report(one) for one in made) + "\n")
    if options.output:
        Path(options.output).write_text(json.dumps(made[0].as_json(), indent=1) + "\n", encoding="utf-8")
    if options.picture:
        try:
            draw(made[0], Path(options.picture))
        except ValueError as error:
            raise UsageError(f"--picture={options.picture}: {error}") from None
    return INCOMPLETE if all(point.refused for one in made for point in one.points) else OK


def _compared(options: argparse.Namespace, scores: list[Scored]) -> int:
    if not scores:
        where = f"--check={options.check}" if options.check else "--check"
        raise UsageError(
            f"{where}: it has no measurement of a size that was forecast (replicas, nodes and batch of a replica)"
        )
    sys.stdout.write(comparison(scores) + "\n")
    everything = keep(Path(options.score), scores) if options.score else scores
    if options.score:
        sys.stdout.write(f"\nscore of all {len(everything)} comparisons in {options.score}\n")
    sys.stdout.write("\n".join(["", *(str(one) for one in summaries(everything))]) + "\n")
    if all(one.refused for one in scores):
        return INCOMPLETE
    # Some of many series miss their interval by chance, so only single programs fail.
    alone = len({one.program for one in scores}) == 1
    return WRONG if alone and any(one.covered is False for one in scores) else OK


def _later(options: argparse.Namespace, strategy: str, stated: Stated) -> list[Observation]:
    """Return the later measurements of the same strategy.

    :raises SourceError: if there are none, or their replicas shared cores.
    """
    evidence = measured([Path(options.check)], options.strategy or strategy, stated)
    if evidence.shares_cores:
        raise UsageError(f"{options.check}: {evidence.shares_cores}")
    return list(evidence.observations)


def stated_by(options: argparse.Namespace) -> Stated:
    """Return what the options state about the machines.

    :raises UsageError: if a link has another form.
    """
    within, between = _link("--link-within", options.link_within, WITHIN), _link("--link", options.link, {})
    return Stated(options.per_node, options.nodes, within, between)


def _link(option: str, text: str | None, kinds: dict[str, float]) -> Link:
    """Return the link of an option, which gives a speed or one of the known kinds of links."""
    if not text:
        return UNKNOWN_LINK
    if speed_of(text, kinds) is not None:
        return Link(text, origin=Origin.ASSUMED)
    try:
        return parse_link(text)
    except ValueError as error:
        others = f", or one of {', '.join(kinds)}" if kinds else ""
        raise UsageError(f"{option}: {error}{others}") from None


def _replicas(options: argparse.Namespace) -> list[int]:
    return sorted(numbers("--replicas", options.replicas)) if options.replicas else []
