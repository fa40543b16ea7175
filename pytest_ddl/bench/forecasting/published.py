"""Read series of throughput by number of replicas from a CSV file, such as published tables."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from pytest_ddl.bench.forecasting.evidence import Evidence, Link, Observation, Origin, Size, parse_link
from pytest_ddl.bench.forecasting.priors import WITHIN, speed_of

COLUMNS = ("series", "role", "devices", "nodes", "throughput")
"""Columns that a file must have."""
OPTIONAL = (
    "devices_per_node", "link_intra", "link_inter", "batch_per_device", "accumulation", "gradient_mb_fp32", "sync",
)  # fmt: skip
"""Columns that are used if the file has them."""


class SeriesError(ValueError):
    """Raised if a file of series cannot be read. The message names the file, the line and what is wrong."""


@dataclass(frozen=True)
class Series:
    """Curve of one program: what may be given to the forecast, and what it must predict."""

    evidence: Evidence
    targets: tuple[Observation, ...]

    @property
    def name(self) -> str:
        return self.evidence.name


def read_series(path: Path) -> list[Series]:
    """Read all series of a file that have at least one row with the role ``anchor``.

    Columns: ``series``, ``role`` (``anchor`` or ``target``), ``devices``, ``nodes``, ``throughput``; and if they are
    there: ``devices_per_node``, ``link_intra``, ``link_inter``, ``batch_per_device``, ``accumulation``,
    ``gradient_mb_fp32`` (decimal MB), and ``sync``, in which ``distributed ps`` means parameter servers over a network.

    :raises SeriesError: if the file cannot be read.
    """
    rows: dict[str, list[tuple[int, Mapping[str, str]]]] = {}
    try:
        with path.open(encoding="utf-8", newline="") as file:
            reader = csv.DictReader(file)
            missing = [name for name in COLUMNS if name not in (reader.fieldnames or ())]
            if missing:
                raise SeriesError(f"{path} has no column {missing[0]}; a file of series has {', '.join(COLUMNS)}")
            for row in reader:
                rows.setdefault(row["series"], []).append((reader.line_num, row))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise SeriesError(f"{path} cannot be read: {error}") from None
    return [found for name, group in rows.items() if (found := _series(path, name, group)) is not None]


def _series(path: Path, name: str, rows: Iterable[tuple[int, Mapping[str, str]]]) -> Series | None:
    anchors: list[Observation] = []
    targets: list[Observation] = []
    first: Mapping[str, str] = {}
    for line, row in rows:
        role = row["role"].strip()
        if role not in ("anchor", "target"):
            raise SeriesError(f"{path}, line {line}: role={role!r} is neither anchor nor target")
        try:
            (anchors if role == "anchor" else targets).append(_observation(row))
        except (ValueError, ZeroDivisionError) as error:
            raise SeriesError(f"{path}, line {line}: {error}") from None
        first = first or row
    if not anchors:
        return None
    try:
        gradient = _number(first, "gradient_mb_fp32")
        evidence = Evidence(
            name,
            tuple(anchors),
            per_node=int(_number(first, "devices_per_node") or max(one.size.replicas for one in anchors)),
            gradient_bytes=gradient * 1e6 if gradient else None,
            within=_within(first.get("link_intra") or ""),
            between=parse_link(first.get("link_inter") or ""),
            servers="distributed ps" in (first.get("sync") or ""),
        )
    except ValueError as error:
        raise SeriesError(f"{path}: {error}") from None
    return Series(evidence, tuple(targets))


def _observation(row: Mapping[str, str]) -> Observation:
    size = Size(
        int(row["devices"]), int(row["nodes"]), _number(row, "batch_per_device"), _number(row, "accumulation") or 1.0
    )
    return Observation(size, size.examples / float(row["throughput"]))


def _number(row: Mapping[str, str], column: str) -> float | None:
    text = (row.get(column) or "").strip()
    return float(text) if text else None


def _within(text: str) -> Link:
    found = parse_link(text)
    kind = speed_of(found.kind, WITHIN)
    return found if found.bytes_per_second is not None or kind is None else Link(found.kind, origin=Origin.ASSUMED)
