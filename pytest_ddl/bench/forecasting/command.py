"""Command ``pytest-ddl forecast``: say how fast a program is on more replicas, and keep the score of what was said."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from pytest_ddl.bench.forecasting.evidence import UNKNOWN_LINK, Evidence, Link, Observation, Origin, parse_link
from pytest_ddl.bench.forecasting.from_matrix import NoEvidenceError, Stated, evidence_of
from pytest_ddl.bench.forecasting.picture import draw
from pytest_ddl.bench.forecasting.predicting import FLOOR, Forecast, forecast
from pytest_ddl.bench.forecasting.priors import WITHIN, speed_of
from pytest_ddl.bench.forecasting.score import Scored, ScoreError, compare, keep, summaries
from pytest_ddl.bench.forecasting.sources import SourceError, earlier, matrix_of, measured, series_of
from pytest_ddl.bench.forecasting.text import comparison, report
from pytest_ddl.bench.metrics.registry import MissingPackageError
from pytest_ddl.bench.outcome import FAILED, INTERRUPTED, OK, USAGE, WRONG, failed, interruptible
from pytest_ddl.target import Target, TargetError

EPILOG = """\
exit status:
  0    forecast, or compared
  1    with --check: a measurement is outside of its interval
  2    an option or a file cannot be used
  4    a package is missing, or a file could not be written

examples:
  pytest-ddl forecast evaluation.json --replicas=16,64,256 --link=25Gbit/s --output=forecast.json
  pytest-ddl forecast forecast.json --check=later.json --score=score.json
  pytest-ddl forecast published.csv --check
  pytest-ddl forecast train.py:train --batch=64 --nodes=2 --replicas=2,4,8
"""

BUILT_IN = "pytest_ddl.bench.studies.medical:train_mlp"
MEASURED = "multi_worker_mirrored"
"""Strategy of which two replicas are measured if a training function is given."""


class UsageError(ValueError):
    """Raised if an option cannot be used. The message is one line that names it."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = EPILOG
    add = parser.add_argument
    source = (
        "Launches (JSON of evaluate or Matrix.save), series (CSV), an earlier forecast (JSON, with --check), or a "
        "training function to measure, MODULE:FUNCTION or path/to/file.py:FUNCTION. Default: the network of the "
        "medical study is measured."
    )
    add("source", nargs="*", metavar="SOURCE", help=source)
    add("--replicas", metavar="N,N", help="Numbers of replicas (default: doubled up to 16 times the measured ones).")
    strategy = f"Strategy of the launches (default: that with the most replicas; to measure: {MEASURED})."
    add("--strategy", metavar="NAME", help=strategy)
    batch = "Examples of a replica, if a training function is measured (default: %(default)s)."
    add("--batch", type=_positive, default=32, metavar="N", help=batch)
    launches = "Launches of each variant, if a training function is measured (default: %(default)s)."
    add("--launches", type=_positive, default=3, metavar="N", help=launches)
    timeout = "Maximum seconds of one launch (default: %(default)g)."
    add("--timeout", type=float, default=120.0, metavar="S", help=timeout)
    device = "Device of the replicas that are measured: auto (default), cpu or gpu."
    add("--device", default="auto", choices=["auto", "cpu", "gpu"], help=device)
    between = "Link between nodes, for example 25Gbit/s or 1.1GB/s,80us. It is marked as stated."
    add("--link", metavar="SPEED", help=between)
    within = f"Link within a node: a speed, or one of {', '.join(WITHIN)}."
    add("--link-within", metavar="SPEED", help=within)
    add("--per-node", type=_positive, metavar="N", help="Replicas of one node (default: those of the largest launch).")
    add("--nodes", type=_positive, metavar="N", help="Nodes on which the largest launch ran (default: 1).")
    add("--strong", action="store_true", help="Keep the global batch (default: keep the batch of each replica).")
    add("--floor", type=_share, default=FLOOR, metavar="X", help="Efficiency to look for (default: %(default)s).")
    add("--output", metavar="FILE.json", help="Write the forecast here, for a later --check.")
    add("--picture", metavar="FILE.svg", help="Draw the forecast.")
    check = "Compare with later launches; without a file, with the rows of a CSV file whose role is target."
    add("--check", nargs="?", const="", metavar="FILE", help=check)
    add("--score", metavar="FILE.json", help="With --check: add the comparison to this file, and sum up all it has.")


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} must be a whole number, at least 1")
    return number


def _share(text: str) -> float:
    number = float(text)
    if not 0 < number < 1:
        raise argparse.ArgumentTypeError(f"{text} must be between 0 and 1")
    return number


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
    except MissingPackageError as error:
        return failed("forecast", f"error: {error}", FAILED)
    except OSError as error:
        return failed("forecast", f"error: {error.filename} could not be written: {error.strerror}", FAILED)


def _run(options: argparse.Namespace) -> int:
    if options.score and options.check is None:
        raise UsageError(f"--score={options.score} needs --check: a score compares a forecast with a measurement")
    if not options.source or ":" in options.source[0]:
        return _measured(options)
    paths = [Path(one) for one in options.source]
    if any(path.suffix == ".csv" for path in paths):
        if len(paths) > 1:
            raise UsageError(f"{paths[0]}: give one file of series, and no other files")
        return _series(options, paths[0])
    before = earlier(paths[0]) if len(paths) == 1 else None
    if before is not None:
        if not options.check:
            raise UsageError(f"{paths[0]} is a forecast: give --check=FILE with the launches that were measured later")
        return _compared(options, compare(before.program, before.points, _later(options)))
    return _forecast(options, measured(paths, options.strategy, _stated(options)))


def _measured(options: argparse.Namespace) -> int:
    """Measure a training function, and forecast it."""
    # Imported here, because a forecast from files needs neither TensorFlow nor processes.
    from pytest_ddl.bench.forecasting.measuring import measured_program
    from pytest_ddl.bench.launching.answers import BenchError
    from pytest_ddl.harness import process_harness

    if len(options.source) > 1:
        raise UsageError(f"{options.source[0]}: give one training function, and no other files")
    sys.path.insert(0, str(Path.cwd()))
    name = options.source[0] if options.source else BUILT_IN
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
        evidence = evidence_of(matrices, strategy.partition("[")[0], _stated(options), name)
    except (BenchError, NoEvidenceError) as error:
        return failed("forecast", f"error: {name}: {error}", FAILED)
    except ValueError as error:
        raise UsageError(str(error)) from None
    finally:
        process_harness().close()
    return _forecast(options, evidence)


def _forecast(options: argparse.Namespace, evidence: Evidence) -> int:
    start = max(2, evidence.largest.size.replicas)
    replicas = _replicas(options.replicas) or [start * 2**power for power in range(5)]
    made = forecast(evidence, replicas, strong=options.strong, floor=options.floor)
    status = _show(options, [made])
    if options.check:
        return _compared(options, compare(evidence.name, made.points, _later(options)))
    if options.check is not None:
        raise UsageError("--check needs a file of later launches")
    return status


def _series(options: argparse.Namespace, path: Path) -> int:
    """Forecast all series of a CSV file, and compare them with its targets if asked for."""
    found = series_of(path)
    if not found:
        raise UsageError(f"{path} has no series with an anchor")
    if options.check is None:
        replicas = _replicas(options.replicas)
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
    if options.check:
        raise UsageError(f"--check={options.check}: the targets of {path} are in the file itself; give --check alone")
    scores: list[Scored] = []
    for one in found:
        points = forecast(one.evidence, [target.size for target in one.targets], floor=options.floor).points
        scores += compare(one.name, points, one.targets)
    return _compared(options, scores)


def _show(options: argparse.Namespace, made: list[Forecast]) -> int:
    sys.stdout.write("\n\n".join(report(one) for one in made) + "\n")
    if options.output:
        if len(made) != 1:
            raise UsageError(f"--output={options.output} holds one program, and there are {len(made)}")
        Path(options.output).write_text(json.dumps(made[0].as_json(), indent=1) + "\n", encoding="utf-8")
    if options.picture:
        if len(made) != 1:
            raise UsageError(f"--picture={options.picture} shows one program, and there are {len(made)}")
        try:
            draw(made[0], Path(options.picture))
        except ValueError as error:
            raise UsageError(f"--picture={options.picture}: {error}") from None
    return OK


def _compared(options: argparse.Namespace, scores: list[Scored]) -> int:
    if not scores:
        raise UsageError(f"--check={options.check}: it has no measurement of a size that was forecast")
    sys.stdout.write(comparison(scores) + "\n")
    everything = keep(Path(options.score), scores) if options.score else scores
    if options.score:
        sys.stdout.write(f"\nscore of all {len(everything)} comparisons in {options.score}\n")
    sys.stdout.write("\n".join(["", *(str(one) for one in summaries(everything))]) + "\n")
    # Some of many series miss their interval by chance, so only single programs fail.
    alone = len({one.program for one in scores}) == 1
    return WRONG if alone and any(one.covered is False for one in scores) else OK


def _later(options: argparse.Namespace) -> list[Observation]:
    path = Path(options.check)
    try:
        evidence = evidence_of([matrix_of(path)], options.strategy, _stated(options))
    except NoEvidenceError as error:
        raise SourceError(f"{path}: {error}") from None
    return list(evidence.observations)


def _tell(line: str) -> None:
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()


def _replicas(text: str | None) -> list[int]:
    if not text:
        return []
    try:
        found = [int(part) for part in text.split(",")]
    except ValueError:
        raise UsageError(f"--replicas={text} must be whole numbers with commas, such as 16,64,256") from None
    if min(found) < 1:
        raise UsageError(f"--replicas={text}: each number must be at least 1")
    return sorted(set(found))


def _stated(options: argparse.Namespace) -> Stated:
    return Stated(options.per_node, options.nodes, _within(options.link_within), _between(options.link))


def _between(text: str | None) -> Link:
    if not text:
        return UNKNOWN_LINK
    try:
        found = parse_link(text)
    except ValueError as error:
        raise UsageError(f"--link: {error}") from None
    if found.bytes_per_second is None:
        raise UsageError(f"--link={text} has no bandwidth: give a number, such as 25Gbit/s or 1.1GB/s,80us")
    return found


def _within(text: str | None) -> Link:
    if not text:
        return UNKNOWN_LINK
    found = parse_link(text)
    if found.bytes_per_second is None and speed_of(text, WITHIN) is None:
        raise UsageError(f"--link-within={text} is no speed (such as 60GB/s), and none of {', '.join(WITHIN)}")
    return found if found.bytes_per_second is not None else Link(text, origin=Origin.ASSUMED)
