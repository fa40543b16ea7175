"""Results as JSON lines, written one by one, so that a run continues after the last result of one that was cut off."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

Row = dict[str, Any]


def rows_of(path: Path) -> list[Row]:
    """Return the rows written up to now."""
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line]


def run_missing(
    path: Path,
    cases: Iterable[Any],
    key: Callable[[Any], Row],
    run: Callable[[Any], Row],
    minutes: float | None,
    share: tuple[int, int] = (0, 1),
) -> Sequence[Row]:
    """Run the cases for which the file has no row until the time is over; return the rows of all cases.

    :param key: returns the part of a row that identifies its case.
    :param minutes: ``None`` for as long as it takes.
    :param share: ``(i, n)`` for the i-th of n processes that append to the file.
    """
    end = None if minutes is None else time.monotonic() + 60 * minutes
    cases = list(cases)
    wanted = [key(case) for case in cases]
    names = sorted({name for told in wanted for name in told})

    def identity(row: Row) -> str:
        return json.dumps([row.get(name) for name in names])

    known = {identity(row): row for row in rows_of(path)}
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        for case, told in list(zip(cases, wanted, strict=True))[share[0] :: share[1]]:
            if identity(told) in known:
                continue
            if end is not None and time.monotonic() > end:
                break
            started = time.monotonic()
            row = {**told, **run(case), "seconds": round(time.monotonic() - started, 2)}
            file.write(json.dumps(row) + "\n")
            file.flush()
            known[identity(row)] = row
    return [known[identity(told)] for told in wanted if identity(told) in known]
