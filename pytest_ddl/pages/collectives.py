"""Picture of the collectives of all ranks in the order in which each rank issued them."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from itertools import count, takewhile

from pytest_ddl.equivalence.report import Report
from pytest_ddl.pages.picture import Picture, svg
from pytest_ddl.records import CollectiveRecord, RankRecord, TrainingRecord

TITLE = "Collectives of the ranks"
BEFORE, SHOWN = 6, 40
"""Number of collectives before the first difference, and number of all collectives, that are shown."""
CAUSES = ("collective-order-mismatch", "collective-shape-mismatch", "rank-conditional-collective", "unequal-steps")
"""Causes that a difference between the logs explains. Without one, it may be that correct ranks use other lines."""
_BOX, _GAP, _LANE, _TOP = 40, 6, 74, 18
_NO_FILE = re.compile(r"^<|__autograph_generated_file")
_HUES = ("blue", "orange", "green", "purple", "ink")


def collectives(report: Report) -> Picture:
    """Draw one lane for each rank, and mark the first position at which the ranks differ."""
    record = report.distributed
    reason = _why_not(record)
    if reason or record is None:
        return Picture("collectives", TITLE, absent=reason)
    timeline = _Timeline.of(record, differs=any(finding.cause in CAUSES for finding in report.findings))
    summary = timeline.summary
    return Picture(
        "collectives",
        TITLE,
        f'<div class="scroll timeline">{timeline.drawing(summary)}</div>{timeline.legend()}',
        about=f"{summary} A letter stands for one collective of the program; the list below says which.",
    )


def _why_not(record: TrainingRecord | None) -> str:
    if record is None or not record.ranks:
        return "no rank ran"
    if len(record.ranks) < 2:
        return "one process issues the collectives of all replicas, so that they cannot be in different orders"
    if not any(rank.collectives for rank in record.ranks):
        notes = [note for rank in record.ranks for note in rank.notes]
        return f"the collectives of the ranks were not observed{f' ({notes[0]})' if notes else ''}"
    return ""


def _identity(item: CollectiveRecord) -> tuple[object, ...]:
    return item.kind, item.op, item.dtype, item.parts or item.shape, _line(item.where), _line(item.called), item.names


@dataclass(frozen=True)
class _Timeline:
    """Collectives of all ranks from a position on."""

    lanes: tuple[tuple[RankRecord, tuple[CollectiveRecord, ...]], ...]
    start: int
    different: int | None
    """Position of the first difference."""

    @classmethod
    def of(cls, record: TrainingRecord, *, differs: bool) -> _Timeline:
        logs = [rank.collectives for rank in record.ranks]
        different = _first_difference(logs) if differs else None
        start = max(0, (different or 0) - BEFORE)
        lanes = tuple((rank, rank.collectives[start : start + SHOWN]) for rank in record.ranks)
        return cls(lanes, start, different)

    @property
    def letters(self) -> dict[tuple[object, ...], str]:
        found = dict.fromkeys(_identity(item) for _rank, items in self.lanes for item in items)
        return {key: _letters(number) for number, key in enumerate(found)}

    @property
    def summary(self) -> str:
        ranks = len(self.lanes)
        if self.different is None:
            first, *others = [rank.collectives for rank, _items in self.lanes]
            same = all(list(map(_identity, log)) == list(map(_identity, first)) for log in others)
            if same:
                return f"All {ranks} ranks issue the same {len(first)} collectives in the same order."
            return f"{ranks} ranks, one lane each, in the order in which they issue their collectives."
        said = []
        for rank, items in self.lanes:
            at = self.different - self.start
            said.append(f"rank {rank.rank} {f'issues {described(items[at])}' if at < len(items) else _ending(rank)}")
        return f"The ranks differ first at collective {self.different + 1}: {'; '.join(said)}."

    def drawing(self, summary: str) -> str:
        letters = self.letters
        parts = []
        for number, (rank, items) in enumerate(self.lanes):
            parts.append(self._lane(rank, items, _TOP + number * _LANE, letters))
        if self.different is not None:
            x = (self.different - self.start) * (_BOX + _GAP)
            tall = len(self.lanes) * _LANE
            parts.insert(
                0, f'<rect class="differs" x="{x}" y="{_TOP - 2}" width="{_BOX + _GAP}" height="{tall}" rx="4"/>'
            )
            parts.append(f'<text class="differs" x="{x}" y="11">▼ first difference</text>')
        longest = max(len(items) for _rank, items in self.lanes)
        size = (max((longest + 3) * (_BOX + _GAP), 300), _TOP + len(self.lanes) * _LANE)
        return svg("".join(parts), TITLE, summary, size)

    def _lane(
        self, rank: RankRecord, items: Sequence[CollectiveRecord], top: int, letters: dict[tuple[object, ...], str]
    ) -> str:
        more = f", after {self.start} equal ones" if self.start else ""
        drawn = [f'<text class="lane" x="3" y="{top + 13}">rank {rank.rank} ({escape(rank.task)}){more}</text>']
        step = None
        for at, item in enumerate(items):
            x = 3 + at * (_BOX + _GAP)
            key = _identity(item)
            hue = _HUES[list(letters).index(key) % len(_HUES)]
            marked = " marked" if self.start + at == self.different else ""
            drawn.append(
                f'<g class="{hue}"><title>{escape(described(item))}</title>'
                f'<rect class="call{marked}" x="{x}" y="{top + 20}" width="{_BOX}" height="26" rx="3"/>'
                f'<text class="call{marked}" x="{x + _BOX / 2}" y="{top + 38}">{letters[key]}</text></g>'
            )
            if item.step != step:
                step = item.step
                drawn.append(f'<text class="step" x="{x}" y="{top + 60}">step {step + 1}</text>')
        x = 3 + len(items) * (_BOX + _GAP)
        left = len(rank.collectives) - self.start - len(items)
        end = f"and {left} more" if left > 0 else _ending(rank)
        drawn.append(f'<text class="step" x="{x}" y="{top + 37}">{escape(end)}</text>')
        return "".join(drawn)

    def legend(self) -> str:
        known = {_identity(item): item for _rank, items in self.lanes for item in items}
        rows = "".join(
            f'<li class="{_HUES[number % len(_HUES)]}"><b>{letter}</b> {escape(described(known[key]))}</li>'
            for number, (key, letter) in enumerate(self.letters.items())
        )
        return f'<ul class="calls">{rows}</ul>'


def _first_difference(logs: Sequence[Sequence[CollectiveRecord]]) -> int | None:
    """Return the first position at which the ranks issue different collectives, or only some issue one."""
    longest = max(map(len, logs))
    same = takewhile(
        lambda at: all(at < len(log) for log in logs) and len({_identity(log[at]) for log in logs}) == 1, count()
    )
    place = sum(1 for _ in same)
    return place if place < longest else None


def _ending(rank: RankRecord) -> str:
    """Return what became of a rank after its last collective."""
    if rank.error is None:
        return "ends"
    return {"deadline": "waits", "stuck": "waits", "stopped": "was stopped", "died": "died"}.get(
        rank.error.type, f"raised {rank.error.type.rpartition('.')[2]}"
    )


def described(item: CollectiveRecord) -> str:
    """Return a collective with what it carries, and the user's line if it is known."""
    dims = "" if item.shape is None else "x".join("?" if dim is None else str(dim) for dim in item.shape) or "scalar"
    what = f"{len(item.parts)} tensors ({', '.join(item.parts[:4])}{', …' if len(item.parts) > 4 else ''})"
    what = what if item.parts else f"{dims} {item.dtype}".strip() or "a variable"
    name = f" {item.names[0]!r}" if len(item.names) == 1 and item.names[0] else ""
    called = f", called at {_line(item.called)}" if _line(item.called) else ""
    operation = f"{item.kind} {item.op}".strip()
    return f"{operation} of {what}{name} at {_line(item.where) or 'a line that is not known'}{called}"


def _line(where: str) -> str:
    """Return the lines of a place that are in files of the program, with paths relative to the working directory.

    AutoGraph's files have another name on every rank.
    """
    frames = [frame for frame in where.split(", from ") if not _NO_FILE.search(frame)]
    return ", from ".join(frame.removeprefix(os.getcwd() + os.sep) for frame in frames)


def _letters(number: int) -> str:
    """Return ``A`` for 0, ``Z`` for 25, ``AA`` for 26."""
    first, last = divmod(number, 26)
    return (_letters(first - 1) if first else "") + chr(ord("A") + last)
