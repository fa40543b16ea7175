"""Picture of the collectives of all ranks in the order in which each rank issued them."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from pytest_ddl.equivalence.verdict.report import Report
from pytest_ddl.notes import NoteKind
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
    if reason:
        return Picture("collectives", TITLE, absent=reason)
    timeline = _Timeline.of(record, differs=any(finding.cause in CAUSES for finding in report.findings))
    summary = timeline.summary
    return Picture(
        "collectives",
        TITLE,
        f'<div class="scroll timeline">{timeline.drawing(summary)}</div>{timeline.legend()}',
        about=f"{summary} A letter stands for one collective of the program; the list below says which.",
    )


def _why_not(record: TrainingRecord) -> str:
    if not record.ranks:
        return "no rank ran"
    if len(record.ranks) < 2:
        return "one process issues the collectives of all replicas, so that they cannot be in different orders"
    if not any(rank.collectives for rank in record.ranks):
        notes = [note for rank in record.ranks for note in rank.notes if note.kind is NoteKind.COLLECTIVES]
        return f"the collectives of the ranks were not observed{f' ({notes[0]})' if notes else ''}"
    return ""


def _identity(item: CollectiveRecord) -> tuple[object, ...]:
    return item.kind, item.op, item.dtype, item.parts or item.shape, _line(item.where), _line(item.called), item.names


@dataclass(frozen=True)
class _Timeline:
    """Collectives of all ranks from a position on."""

    lanes: tuple[tuple[RankRecord, tuple[CollectiveRecord, ...]], ...]
    start: int
    marks: tuple[int, ...]
    """For each lane, the position of its first collective that differs, or its end; empty if none differs."""

    @classmethod
    def of(cls, record: TrainingRecord, *, differs: bool) -> _Timeline:
        marks = _first_difference([rank.collectives for rank in record.ranks]) if differs else ()
        start = max(0, min(marks, default=0) - BEFORE)
        lanes = tuple((rank, rank.collectives[start : start + SHOWN]) for rank in record.ranks)
        return cls(lanes, start, marks)

    @property
    def letters(self) -> dict[tuple[object, ...], str]:
        identities = dict.fromkeys(_identity(item) for _rank, items in self.lanes for item in items)
        return {key: _letters(number) for number, key in enumerate(identities)}

    @property
    def summary(self) -> str:
        ranks = len(self.lanes)
        if self.marks:
            said = [
                f"rank {rank.rank} {_does(rank, at)}" for (rank, _items), at in zip(self.lanes, self.marks, strict=True)
            ]
            return f"The ranks differ first at collective {min(self.marks) + 1}: {'; '.join(said)}."
        first, *others = [list(map(_identity, rank.collectives)) for rank, _items in self.lanes]
        if all(log == first for log in others):
            return f"All {ranks} ranks issue the same {len(first)} collectives in the same order."
        return f"{ranks} ranks, one lane each, in the order in which they issue their collectives."

    def drawing(self, summary: str) -> str:
        letters = self.letters
        parts = [self._lane(number, letters) for number in range(len(self.lanes))]
        for number, at in enumerate(self.marks):
            x, top = (at - self.start) * (_BOX + _GAP), _TOP + number * _LANE
            size = f'width="{_BOX + _GAP}" height="{_LANE}"'
            parts.insert(0, f'<rect class="differs" x="{x}" y="{top - 2}" {size} rx="4"/>')
        if self.marks:
            x = (self.marks[0] - self.start) * (_BOX + _GAP)
            parts.append(f'<text class="differs" x="{x}" y="11">▼ first difference</text>')
        longest = max(len(items) for _rank, items in self.lanes)
        room = (max((longest + 3) * (_BOX + _GAP), 300), _TOP + len(self.lanes) * _LANE)
        return svg("".join(parts), TITLE, summary, room)

    def _lane(self, number: int, letters: dict[tuple[object, ...], str]) -> str:
        (rank, items), top = self.lanes[number], _TOP + number * _LANE
        more = f", after {self.start} equal ones" if self.start else ""
        drawn = [f'<text class="lane" x="3" y="{top + 13}">rank {rank.rank} ({escape(rank.task)}){more}</text>']
        step = None
        for at, item in enumerate(items):
            x = 3 + at * (_BOX + _GAP)
            key = _identity(item)
            hue = _HUES[list(letters).index(key) % len(_HUES)]
            marked = " marked" if self.start + at in self.marks[number : number + 1] else ""
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
        end = f"and {left} more" if left > 0 else _end(rank)
        drawn.append(f'<text class="step" x="{x}" y="{top + 37}">{escape(end)}</text>')
        return "".join(drawn)

    def legend(self) -> str:
        known = {_identity(item): item for _rank, items in self.lanes for item in items}
        rows = "".join(
            f'<li class="{_HUES[number % len(_HUES)]}"><b>{letter}</b> {escape(described(known[key]))}</li>'
            for number, (key, letter) in enumerate(self.letters.items())
        )
        return f'<ul class="calls">{rows}</ul>'


def _first_difference(logs: Sequence[Sequence[CollectiveRecord]]) -> tuple[int, ...]:
    """Return for each rank the position of the first collective that differs from that of the other ranks.

    TensorFlow pairs the k-th collective of a group with the k-th of the other ranks, so each group is compared on its
    own. The position is the length of the log for a rank that has ended. The result is empty if nothing differs.
    """
    differences = []
    for group in sorted({item.group for log in logs for item in log}):
        places = [[at for at, item in enumerate(log) if item.group == group] for log in logs]
        for turn in range(max(map(len, places))):
            now = [own[turn] if turn < len(own) else len(log) for own, log in zip(places, logs, strict=True)]
            items = {_identity(log[at]) if at < len(log) else () for log, at in zip(logs, now, strict=True)}
            if len(items) > 1:
                differences.append(tuple(now))
                break
    return min(differences, key=min, default=())


def _does(rank: RankRecord, at: int) -> str:
    return f"issues {described(rank.collectives[at])}" if at < len(rank.collectives) else _end(rank)


def _end(rank: RankRecord) -> str:
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
    called = _line(item.called)
    called = f", called at {called}" if called and called not in _line(item.where) else ""
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
