"""Results as JSON lines: written one by one, so that a run that was cut off goes on where it ended."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

Row = dict[str, Any]


def rows_of(path: Path) -> list[Row]:
    """What was written up to now."""
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line]


def run_missing(
    path: Path, cases: Iterable[Any], key: Callable[[Any], Row], run: Callable[[Any], Row], minutes: float | None
) -> Sequence[Row]:
    """Run the cases that the file has no row for, until the time is over; gives the rows of all cases.

    :param key: what tells a case from the others; part of its row.
    :param minutes: ``None`` for as long as it takes.
    """
    end = None if minutes is None else time.monotonic() + 60 * minutes
    cases = list(cases)
    wanted = [key(case) for case in cases]
    known = [row for row in rows_of(path) if any(_is_of(row, one) for one in wanted)]
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        for case, told in zip(cases, wanted, strict=True):
            if any(_is_of(row, told) for row in known):
                continue
            if end is not None and time.monotonic() > end:
                break
            started = time.monotonic()
            row = {**told, **run(case), "seconds": round(time.monotonic() - started, 2)}
            file.write(json.dumps(row) + "\n")
            file.flush()
            known.append(row)
    return known


def _is_of(row: Row, told: Row) -> bool:
    return all(row.get(name) == value for name, value in told.items())
