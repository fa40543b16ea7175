"""Read series of throughput by number of replicas from a CSV file, such as published tables."""

from __future__ import annotations

import csv
import math
import statistics
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from pytest_ddl.bench.forecasting.evidence import ForecastEvidence, Link, Observation, Origin, Size, named_link
from pytest_ddl.bench.forecasting.priors import WITHIN, speed_of
from pytest_ddl.bench.outcome import UsageError

COLUMNS = ("series", "role", "devices", "nodes", "throughput")
"""Columns that a file must have."""


@dataclass(frozen=True)
class PublishedSeries:
    """Curve of one program: what may be given to the forecast, and what it must predict."""

    evidence: ForecastEvidence
    targets: tuple[Observation, ...]

    @property
    def name(self) -> str:
        return self.evidence.name


def read_series(path: Path) -> list[PublishedSeries]:
    """Read all series of a file that have at least one row with the role ``anchor``.

    Columns: ``series``, ``role`` (``anchor`` or ``target``), ``devices``, ``nodes``, ``throughput``; and if they are
    there: ``devices_per_node``, ``link_intra``, ``link_inter``, ``batch_per_device``, ``accumulation``,
    ``gradient_mb_fp32`` (decimal MB), ``sync``, in which ``distributed ps`` means parameter servers over a network, and
    ``servers``, their number. Rows of one size are merged.

    :raises UsageError: if the file cannot be read.
    """
    rows: dict[str, list[tuple[int, Mapping[str, str]]]] = {}
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.DictReader(file)
            missing = [name for name in COLUMNS if name not in (reader.fieldnames or ())]
            if missing:
                raise UsageError(f"{path} has no column {missing[0]}; a file of series has {', '.join(COLUMNS)}")
            for row in reader:
                rows.setdefault(row["series"], []).append((reader.line_num, row))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise UsageError(f"{path} cannot be read: {error}") from None
    return [series for name, group in rows.items() if (series := _series(path, name, group)) is not None]


def _series(path: Path, name: str, rows: Iterable[tuple[int, Mapping[str, str]]]) -> PublishedSeries | None:
    anchors: list[Observation] = []
    targets: list[Observation] = []
    first: Mapping[str, str] = {}
    for line, row in rows:
        try:
            role = (row["role"] or "").strip()
            if role not in ("anchor", "target"):
                raise ValueError(f"role={role!r} is neither anchor nor target")
            (anchors if role == "anchor" else targets).append(_observation(row))
        except ValueError as error:
            raise UsageError(f"{path}, line {line}: {error}") from None
        first = first or row
    if not anchors:
        return None
    if len({one.size.batch_per_replica is None for one in (*anchors, *targets)}) > 1:
        raise UsageError(f"{path}: {name}: some rows have batch_per_device and some do not; give it for all or none")
    try:
        gradient = _number(first, "gradient_mb_fp32")
        most = max(math.ceil(one.size.replicas / one.size.nodes) for one in anchors)
        evidence = ForecastEvidence(
            name,
            tuple(_merged(anchors)),
            per_node=_whole(first, "devices_per_node") or most,
            gradient_bytes=None if gradient is None else gradient * 1e6,
            within=_within(first.get("link_intra") or ""),
            between=named_link(first.get("link_inter") or ""),
            servers=(_whole(first, "servers") or 0) if "distributed ps" in (first.get("sync") or "") else None,
        )
    except ValueError as error:
        raise UsageError(f"{path}: {error}") from None
    return PublishedSeries(evidence, tuple(targets))


def _merged(observations: Iterable[Observation]) -> Iterator[Observation]:
    """Yield one observation for each size: a repeated row is no further evidence."""
    times: dict[Size, list[float]] = {}
    for one in observations:
        times.setdefault(one.size, []).append(one.seconds)
    for size, found in times.items():
        yield Observation(size, statistics.geometric_mean(found))


def _observation(row: Mapping[str, str]) -> Observation:
    replicas, nodes = _whole(row, "devices"), _whole(row, "nodes")
    throughput = _number(row, "throughput")
    if replicas is None or nodes is None or throughput is None:
        raise ValueError("devices, nodes and throughput must be numbers")
    if not throughput > 0:
        raise ValueError(f"throughput={throughput!r} must be a positive number")
    accumulation = _number(row, "accumulation")
    size = Size(replicas, nodes, _number(row, "batch_per_device"), 1.0 if accumulation is None else accumulation)
    return Observation(size, size.examples / throughput)


def _number(row: Mapping[str, str], column: str) -> float | None:
    text = (row.get(column) or "").strip()
    if not text:
        return None
    try:
        number = float(text)
    except ValueError:
        raise ValueError(f"{column}={text!r} is not a number") from None
    if not math.isfinite(number):
        raise ValueError(f"{column}={text!r} must be finite")
    return number


def _whole(row: Mapping[str, str], column: str) -> int | None:
    number = _number(row, column)
    if number is not None and (number < 1 or number != int(number)):
        raise ValueError(f"{column}={number:g} must be a whole number, at least 1")
    return None if number is None else int(number)


def _within(text: str) -> Link:
    link = named_link(text)
    kind = speed_of(link.kind, WITHIN)
    return link if link.bytes_per_second is not None or kind is None else Link(link.kind, origin=Origin.ASSUMED)
