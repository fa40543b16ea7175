"""Confirm candidates: run both commits again, side by side, before a change is reported as a regression."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from pytest_ddl.bench.history.detect import MARGIN, NOT_RE_RUN, Change, ChangeVerdict, beyond_steps
from pytest_ddl.bench.history.meaning import family, variant, whole_workload
from pytest_ddl.bench.history.model import Series

Confirm = Callable[[str, str, Series], ChangeVerdict]
"""Function that takes the hashes of the commits before and after, and the series, and returns the re-run's verdict.

If a re-run fails, the verdict is ``unconfirmed`` with the reason. If nothing can be run, the function raises
:class:`NotRerunError`."""
FILE = "confirmations.jsonl"
"""Name of a file in the folder of results, so that verdicts stay with them. asv reads only ``.json`` files there."""
RERUN = ("step", "throughput", "overhead", "efficiency", "communication")
"""Families that one re-run of a step decides about.

If a strategy's efficiency fell because one device became faster, its step is as fast as before. The re-run refutes
such a change."""


_Given = ParamSpec("_Given")
_Found = TypeVar("_Found")


class NotRerunError(Exception):
    """Raised if a candidate cannot be measured again here or now. The message says why."""


@dataclass
class Confirmations:
    """Verdicts of earlier runs, so that a regression is not re-run every night."""

    path: Path | None
    rows: list[dict[str, Any]]
    unread: int = 0
    """Number of lines of the file that are no verdicts."""

    @classmethod
    def load(cls, path: Path | None) -> Confirmations:
        """Read a file of JSON lines. Lines that cannot be read are left out, and their candidates run again."""
        rows, unread = [], 0
        if path is not None and path.is_file():
            for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
                try:
                    row = json.loads(line)
                except (ValueError, RecursionError):
                    row = None
                if _is_verdict(row):
                    rows.append(row)
                else:
                    unread += 1
        return cls(path, rows, unread)

    def find(self, change: Change, places: Mapping[str, int]) -> ChangeVerdict | None:
        """Return an earlier verdict on this change: for the same cell, from a re-run of commits on both sides of it."""
        for row in reversed(self.rows):
            base, head = places.get(row["base"]), places.get(row["head"])
            if row.get("cell") != cell(change.series) or row.get("kind") != change.kind or base is None or head is None:
                continue
            if change.kind == "step":
                same = base < change.likely.position <= head
            else:
                # Later commits may have added to a refuted creep. A confirmed creep stays confirmed.
                same = base == change.before.position and (
                    row["status"] == "confirmed" or head == change.after.position
                )
            if same:
                return ChangeVerdict(row["status"], str(row.get("message", "")), row.get("effect"))
        return None

    def add(self, change: Change, verdict: ChangeVerdict) -> None:
        """Keep a verdict, also in the file. An undecided one is not kept, so that the candidate runs again."""
        if verdict.status not in ("confirmed", "refuted"):
            return
        row = {
            "cell": cell(change.series),
            "kind": change.kind,
            "base": change.before.hash,
            "head": change.after.hash,
            "status": verdict.status,
            "message": verdict.message,
            "effect": verdict.effect,
        }
        self.rows.append(row)
        if self.path is not None:
            with self.path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")


def _is_verdict(row: Any) -> bool:
    return (
        isinstance(row, dict)
        and row.get("status") in ("confirmed", "refuted")
        and all(isinstance(row.get(key), str) for key in ("base", "head"))
        and isinstance(row.get("effect"), int | float | None)
    )


def at_most(reruns: int, rerun: Callable[_Given, _Found]) -> Callable[_Given, _Found]:
    """Limit a function to ``reruns`` calls. Then it raises :class:`NotRerunError`, which leaves candidates for later.

    A call that raises has run nothing and is not counted. Otherwise candidates that cannot be re-run would use up the
    calls every time.
    """
    done = 0

    def limited(*given: _Given.args, **named: _Given.kwargs) -> _Found:
        nonlocal done
        if done >= reruns:
            raise NotRerunError(f"left for the next call: {reruns} were re-run (--max-reruns)")
        benchmark = rerun(*given, **named)
        done += 1
        return benchmark

    return limited


def cell(series: Series) -> list[str]:
    """Return the key for one re-run: a strategy with its replicas and workload of one suite, on one machine.

    Each series of memory, energy and similar metrics has its own key, as a re-run of a step says nothing about it.
    """
    own = [] if family(series.benchmark).name in RERUN else [series.benchmark.name]
    found = variant(series)
    shown = [found.strategy, str(found.replicas)] if found else [repr(series.parameters)]
    return [series.machine, series.environment, whole_workload(series), *shown, *own]


def confirm_all(
    changes: Sequence[Change],
    confirm: Confirm | None,
    known: Confirmations,
    places: Mapping[str, int],
    margin: float = MARGIN,
) -> list[Change]:
    """Return the changes in the same order, each candidate with its verdict: an earlier one, else that of a re-run.

    A creep that the steps of its series explain is left out.

    Changes of one cell with overlapping ranges of commits share one re-run. It uses the outermost commits of all these
    ranges.

    :param confirm: ``None`` to re-run nothing; candidates without an earlier verdict are then ``unconfirmed``.
    :param places: hash -> position in the history.
    """
    steps = _judged([one for one in changes if one.kind == "step"], confirm, known, places)
    # Small steps that were refuted one by one may still add up to a real slowdown.
    slow = [one for one in changes if one.kind == "creep" and beyond_steps(one, steps, margin)]
    done = {one.id: one for one in (*steps, *_judged(slow, confirm, known, places))}
    return [done[one.id] for one in changes if one.id in done]


def _judged(
    changes: Sequence[Change],
    confirm: Confirm | None,
    known: Confirmations,
    places: Mapping[str, int],
) -> list[Change]:
    judged = {one.id: one for one in changes}
    waiting: list[Change] = []
    for one in changes:
        if not one.is_candidate:
            continue
        earlier = known.find(one, places)
        if earlier is not None:
            judged[one.id] = one.judged(earlier)
        elif confirm is None:
            judged[one.id] = one.judged(NOT_RE_RUN)
        else:
            waiting.append(one)
    for group in _together(waiting):
        assert confirm is not None
        subject = min(group, key=lambda one: (*RERUN, "").index(_kind(one)))
        before = min((one.before for one in group), key=lambda commit: commit.position)
        after = max((one.after for one in group), key=lambda commit: commit.position)
        try:
            verdict = confirm(before.hash, after.hash, subject.series)
        except NotRerunError as error:
            verdict = ChangeVerdict("unconfirmed", str(error))
        known.add(Change(**{**vars(subject), "before": before, "after": after}), verdict)
        for one in group:
            judged[one.id] = one.judged(verdict)
    return [judged[one.id] for one in changes]


def _kind(change: Change) -> str:
    name = family(change.series.benchmark).name
    return name if name in RERUN else ""


def _together(changes: Iterable[Change]) -> list[list[Change]]:
    groups: list[list[Change]] = []
    for one in sorted(changes, key=lambda one: (cell(one.series), one.kind, one.before.position)):
        last = groups[-1] if groups else None
        if (
            last
            and cell(last[0].series) == cell(one.series)
            and last[0].kind == one.kind
            and one.before.position < max(other.after.position for other in last)
        ):
            last.append(one)
        else:
            groups.append([one])
    return groups
