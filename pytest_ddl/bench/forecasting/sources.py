"""Read what a forecast starts from: measured launches, a file of series, or an earlier forecast."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pytest_ddl.bench.forecasting.evidence import ForecastEvidence
from pytest_ddl.bench.forecasting.from_matrix import Stated, evidence_of
from pytest_ddl.bench.forecasting.predicting import ForecastPoint
from pytest_ddl.bench.forecasting.published import PublishedSeries, SeriesError, read_series
from pytest_ddl.bench.matrix import Matrix


class EvidenceFileError(ValueError):
    """Raised if a file cannot be the start of a forecast. The message is one line that names the file."""


@dataclass(frozen=True)
class Earlier:
    """Forecast that was made and saved before."""

    program: str
    strategy: str
    points: tuple[ForecastPoint, ...]


def series_of(path: Path) -> list[PublishedSeries]:
    """Return the series of a CSV file.

    :raises SourceError: if it cannot be read.
    """
    try:
        return read_series(path)
    except SeriesError as error:
        raise EvidenceFileError(str(error)) from None


def measured(paths: Sequence[Path], strategy: str | None, stated: Stated) -> ForecastEvidence:
    """Return the evidence of files of launches, written by ``Matrix.save`` or by ``pytest-ddl evaluate``.

    :raises SourceError: if one cannot be read, or the launches are not enough.
    """
    matrices = [matrix_of(path) for path in paths]
    try:
        return evidence_of(matrices, strategy, stated, name=f"{', '.join(map(str, paths))}")
    except ValueError as error:
        raise EvidenceFileError(f"{', '.join(map(str, paths))}: {error}") from None


def matrix_of(path: Path) -> Matrix:
    """Return the launches of a file.

    :raises SourceError: if it has none.
    """
    data = _json(path)
    found = data.get("matrix", data)
    try:
        return Matrix.from_json(found)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise EvidenceFileError(
            f"{path} has no launches ({type(error).__name__}: {error}): give a file of pytest-ddl evaluate, or one of "
            "Matrix.save()"
        ) from None


def earlier(path: Path) -> Earlier | None:
    """Return the forecast that a file holds; ``None`` if it is another kind of file.

    :raises SourceError: if it cannot be read.
    """
    data = _json(path)
    if not {"program", "points", "evidence"} <= data.keys():
        return None
    try:
        points = tuple(ForecastPoint.from_json(point) for point in data["points"])
        return Earlier(data["program"], data["evidence"]["strategy"], points)
    except (KeyError, TypeError, ValueError) as error:
        raise EvidenceFileError(f"{path} is no forecast of this version ({type(error).__name__}: {error})") from None


def _json(path: Path) -> dict[str, Any]:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise EvidenceFileError(f"{path} cannot be read: {error}") from None
    if not isinstance(data, dict):
        raise EvidenceFileError(f"{path} is not a file of launches or of a forecast")
    return data
