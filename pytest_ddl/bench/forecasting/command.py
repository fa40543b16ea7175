"""Command ``pytest-ddl forecast``: say how fast a program is on more replicas, and keep the score of what was said."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import replace
from pathlib import Path

from pytest_ddl.bench.forecasting.evidence import UNKNOWN_LINK, Evidence, Observation
from pytest_ddl.bench.forecasting.from_matrix import NoEvidenceError, Stated, evidence_of
from pytest_ddl.bench.forecasting.options import MEASURED, add_arguments, replicas_of, stated_by
from pytest_ddl.bench.forecasting.picture import draw
from pytest_ddl.bench.forecasting.predicting import Forecast, forecast
from pytest_ddl.bench.forecasting.published import Series
from pytest_ddl.bench.forecasting.score import Scored, ScoreError, compare, keep, summaries
from pytest_ddl.bench.forecasting.sources import SourceError, earlier, measured, series_of
from pytest_ddl.bench.forecasting.text import comparison, report
from pytest_ddl.bench.metrics.registry import MissingPackageError
from pytest_ddl.bench.outcome import (
    FAILED,
    INCOMPLETE,
    INTERRUPTED,
    OK,
    USAGE,
    WRONG,
    UsageError,
    failed,
    interruptible,
)
from pytest_ddl.target import Target, TargetError

__all__ = ["add_arguments", "main"]


class FailedError(RuntimeError):
    """Raised if the measurement itself failed."""


def main(options: argparse.Namespace) -> int:
    """Forecast or compare, and return the exit status."""
    try:
        with interruptible():
            return _run(options)
    except (UsageError, SourceError, ScoreError, TargetError) as error:
        return failed("forecast", f"error: {error}", USAGE)
    except KeyboardInterrupt:
        _tell("interrupted: nothing was written")
        return INTERRUPTED
    except (FailedError, MissingPackageError) as error:
        return failed("forecast", f"error: {error}", FAILED)
    except OSError as error:
        return failed("forecast", f"error: {error.filename} could not be written: {error.strerror}", FAILED)


def _run(options: argparse.Namespace) -> int:
    if options.score and options.check is None:
        raise UsageError(f"--score={options.score} needs --check: a score compares a forecast with a measurement")
    # Looked at first, because a measurement takes long.
    stated, replicas = stated_by(options), replicas_of(options.replicas)
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


def _measured(options: argparse.Namespace, stated: Stated) -> Evidence:
    """Measure a training function.

    :raises UsageError: if it cannot be measured here.
    :raises FailedError: if a launch of it fails.
    """
    # Imported here, because a forecast from files needs neither TensorFlow nor processes.
    from pytest_ddl.bench.forecasting.measuring import measured_program
    from pytest_ddl.bench.launching.answers import BenchError
    from pytest_ddl.harness import process_harness

    if len(options.source) > 1:
        raise UsageError(f"{options.source[0]}: give one training function, and no other files")
    sys.path.insert(0, str(Path.cwd()))
    name = options.source[0]
    strategy = options.strategy or MEASURED
    train = Target.find(name).load()
    try:
        matrices = measured_program(
            train,
            strategy,
            options.batch,
            launches=options.launches,
            device=options.device,
            timeout=options.timeout,
            tell=_tell,
        )
        return evidence_of(matrices, strategy.partition("[")[0], stated, name)
    except BenchError as error:
        raise FailedError(f"{name} could not be measured: {error}") from None
    except (NoEvidenceError, ValueError) as error:
        raise UsageError(f"{name} could not be measured: {error}") from None
    finally:
        process_harness().close()


def _forecast(options: argparse.Namespace, evidence: Evidence, replicas: list[int]) -> int:
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
    found = [_with_options(one, stated, options.servers) for one in series_of(path)]
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


def _with_options(series: Series, stated: Stated, servers: int | None) -> Series:
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
        raise SourceError(f"{options.check}: {evidence.shares_cores}")
    return list(evidence.observations)


def _tell(line: str) -> None:
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()
