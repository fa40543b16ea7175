"""Compare forecasts with later measurements, and keep the score in a file."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from pytest_ddl.bench.forecasting.evidence import Observation, Size
from pytest_ddl.bench.forecasting.predicting import LEVEL, ForecastPoint
from pytest_ddl.bench.outcome import UsageError
from pytest_ddl.json_records import JsonRecord

CLOSE = 0.1
"""Error up to which a forecast counts as close."""


@dataclass(frozen=True)
class Scored(JsonRecord):
    """Forecast of one size beside its measurement."""

    program: str
    size: Size
    measured: float
    """Seconds of an update."""
    predicted: float | None = None
    low: float | None = None
    high: float | None = None
    refused: str = ""

    @property
    def error(self) -> float | None:
        """Predicted throughput / measured throughput - 1."""
        return None if self.predicted is None else self.measured / self.predicted - 1

    @property
    def covered(self) -> bool | None:
        """True if the measurement lies in the interval."""
        if self.low is None or self.high is None:
            return None
        return self.low <= self.measured <= self.high

    @property
    def across_nodes(self) -> bool:
        return self.size.nodes > 1


def compare(program: str, points: Sequence[ForecastPoint], measured: Iterable[Observation]) -> list[Scored]:
    """Return each measurement for which there is a forecast or a refusal, beside it."""
    by_size = {point.size: point for point in points}
    scored = []
    for one in measured:
        point = by_size.get(one.size)
        if point is not None:
            scored.append(Scored(program, one.size, one.seconds, point.seconds, point.low, point.high, point.refused))
    return scored


@dataclass(frozen=True)
class Summary:
    """Score of several forecasts."""

    name: str
    count: int
    refused: int
    median_error: float | None
    close: float | None
    """Share of the forecasts within ``CLOSE`` of the measurement."""
    covered: float | None
    """Share of the measurements in the interval."""

    def __str__(self) -> str:
        if self.median_error is None or self.close is None or self.covered is None:
            return f"{self.name}: {self.refused} refused, none forecast"
        return (
            f"{self.name}: {self.count} forecast, median error {self.median_error:.1%}, {self.close:.0%} within "
            f"{CLOSE:.0%}, {self.covered:.0%} in the {LEVEL:.0%} interval; {self.refused} refused"
        )


def summaries(scores: Sequence[Scored]) -> list[Summary]:
    """Return the summary of the sizes in one node, and of those across nodes."""
    groups = {
        "in one node": [one for one in scores if not one.across_nodes],
        "across nodes": [one for one in scores if one.across_nodes],
    }
    return [_summary(name, group) for name, group in groups.items() if group]


def _summary(name: str, scores: Sequence[Scored]) -> Summary:
    errors = [abs(one.error) for one in scores if one.error is not None]
    covered = [one.covered for one in scores if one.covered is not None]
    if not errors:
        return Summary(name, 0, len(scores), None, None, None)
    return Summary(
        name,
        len(errors),
        len(scores) - len(errors),
        statistics.median(errors),
        sum(error <= CLOSE for error in errors) / len(errors),
        sum(covered) / len(covered),
    )


def keep(path: Path, scores: Sequence[Scored]) -> list[Scored]:
    """Add scores to a file, and return all that it has. The newest one of the same program and size is kept.

    :raises UsageError: if the file exists and is not one of scores, or cannot be written.
    """
    kept = {(one.program, one.size): one for one in (*load(path), *scores)}
    text = json.dumps([one.as_json() for one in kept.values()], indent=1) + "\n"
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"--score={path} cannot be written: {error}") from None
    return list(kept.values())


def load(path: Path) -> list[Scored]:
    """Return the scores of a file; none if it does not exist.

    :raises UsageError: if it is not a file of scores.
    """
    try:
        return [Scored.from_json(item) for item in json.loads(path.read_text(encoding="utf-8"))]
    except FileNotFoundError:
        return []
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise UsageError(f"--score={path} is not a file of scores: {error}") from None
