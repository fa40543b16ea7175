"""Picture of the examples that each replica consumed in each step; repeated and missing ones are marked."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from itertools import groupby

from pytest_ddl.equivalence.evidence.coverage import Coverage, Order, coverage
from pytest_ddl.equivalence.verdict.report import Report
from pytest_ddl.pages.picture import Picture
from pytest_ddl.records import BatchRecord, TrainingRecord
from pytest_ddl.web.units import DASH

TITLE = "Examples"
MOST_STEPS = 24
MOST_RUNS = 12
"""Maximum number of runs of examples in a cell."""
_Name = int | str


@dataclass(frozen=True)
class _Mark:
    """Example in a cell, with its mark."""

    name: _Name
    repeated: bool


def examples(report: Report) -> Picture:
    """Draw a table of steps and replicas."""
    reference, distributed = report.reference, report.distributed
    covered = coverage(reference, distributed)
    if covered is None:
        return Picture("examples", TITLE, absent=_why_not(reference, distributed))
    names = _Names(reference, covered)
    steps = _steps(covered)
    marked = _marked(distributed, covered)
    missing = _missing(reference, covered)
    replicas = sorted({batch.replica for step in range(1, covered.steps + 1) for batch in distributed.batches(step)})
    some_missing = any(missing.values())
    head = "".join(f'<th scope="col">replica {replica}</th>' for replica in replicas)
    head += '<th scope="col">missing</th>' if some_missing else ""
    body = "".join(
        f'<tr{" class=beyond" if step == covered.step else ""}><th scope="row">step {step}</th>'
        + "".join(f"<td>{_cell(marked.get((step, replica), []), names)}</td>" for replica in replicas)
        + (f'<td class="missing">{_plain(missing[step], names)}</td>' if some_missing else "")
        + "</tr>"
        for step in steps
    )
    return Picture(
        "examples",
        TITLE,
        f'<div class="scroll"><table class="examples"><caption class="unseen">Examples by step and replica</caption>'
        f'<thead><tr><th scope="col"></th>{head}</tr></thead><tbody>{body}</tbody></table></div>',
        about=f"{_summary(covered)} {names.meaning} {_left_out(covered, steps)}".strip(),
    )


def _why_not(reference: TrainingRecord, distributed: TrainingRecord) -> str:
    if not reference.num_steps or not distributed.num_steps:
        return "no step was recorded in both runs"
    return "the examples of some replicas were not observed (call run.examples(ids) inside the step to record them)"


class _Names:
    """Short names of examples: their ids, or their positions in the order in which one device consumed them."""

    def __init__(self, reference: TrainingRecord, found: Coverage) -> None:
        self._by_id = found.by == "ids"
        self._numbers: dict[_Name, int] = {}
        self.meaning = "Numbers are the ids that the program recorded."
        if self._by_id:
            return
        for step in range(1, reference.num_steps + 1):
            for name in _names(reference.batches(step), found.by):
                self._numbers.setdefault(name, len(self._numbers) + 1)
        self.meaning = "Examples are numbered by their contents, in the order in which one device consumed them."
        if found.theirs.keys() - self._numbers.keys():
            self.meaning += " A + is an example that one device did not consume."

    def __getitem__(self, name: _Name) -> _Name:
        return name if self._by_id else self._numbers.get(name, "+")


def _names(batches: Iterable[BatchRecord], by: str) -> list[_Name]:
    return [name for batch in batches for name in batch.names(by) or ()]


def _steps(found: Coverage) -> range:
    first = max(1, min(found.step - 2, found.steps - MOST_STEPS + 1)) if found.step else 1
    return range(first, min(found.steps, first + MOST_STEPS - 1) + 1)


def _marked(distributed: TrainingRecord, found: Coverage) -> Mapping[tuple[int, int], list[_Mark]]:
    """Mark each consumption of an example that exceeds its number on one device."""
    seen: Counter[_Name] = Counter()
    judged = found.order in (Order.WRONG, Order.REPEATED)
    marked: dict[tuple[int, int], list[_Mark]] = {}
    for step in range(1, found.steps + 1):
        for batch in distributed.batches(step):
            cell = marked.setdefault((step, batch.replica), [])
            for name in _names([batch], found.by):
                seen[name] += 1
                again = judged and name in found.theirs and seen[name] > max(found.ours[name], 1)
                cell.append(_Mark(name, again))
    return marked


def _missing(reference: TrainingRecord, found: Coverage) -> Mapping[int, list[_Name]]:
    """Return the examples that one device consumed in each step and that are missing under the strategy."""
    wrong = found.order in (Order.WRONG, Order.REPEATED)
    missing = found.ours - found.theirs if wrong else Counter[_Name]()
    return {
        step: [name for name in _names(reference.batches(step), found.by) if name in missing]
        for step in range(1, found.steps + 1)
    }


def _cell(marks: Sequence[_Mark], names: _Names) -> str:
    parts = []
    for repeated, group in groupby(marks, key=lambda mark: mark.repeated):
        texts = _runs([names[mark.name] for mark in group])
        if repeated:
            parts.append(f'<b class="again" title="consumed again">↻ {escape(", ".join(texts))}</b>')
        else:
            parts.append(escape(", ".join(texts)))
    return " ".join(parts) or "<small>none</small>"


def _plain(found: Sequence[_Name], names: _Names) -> str:
    return f"✗ {escape(', '.join(_runs([names[name] for name in found])))}" if found else ""


def _runs(names: Sequence[_Name]) -> list[str]:
    """Shorten names: ``[1, 2, 3, 7]`` is ``1–3`` and ``7``."""
    runs: list[list[_Name]] = []
    for name in names:
        last = runs[-1][-1] if runs else None
        follows = isinstance(name, int) and isinstance(last, int) and name == last + 1
        if follows:
            runs[-1].append(name)
        else:
            runs.append([name])
    texts = [str(run[0]) if len(run) == 1 else f"{run[0]}{DASH}{run[-1]}" for run in runs]
    return texts if len(texts) <= MOST_RUNS else [*texts[:MOST_RUNS], f"and {len(texts) - MOST_RUNS} more"]


def _summary(found: Coverage) -> str:
    if found.order is Order.SAME:
        return "Every step consumes the examples that one device consumes, each of them once."
    if found.order is Order.OTHER:
        return f"From step {found.step} on, global batches hold other examples than on one device."
    extra, missing = sum((found.theirs - found.ours).values()), sum((found.ours - found.theirs).values())
    facts = [
        f"{extra} example{'s are' if extra != 1 else ' is'} consumed more often than on one device (↻)"
        if extra
        else "",
        f"{missing} {'are' if missing != 1 else 'is'} missing (✗)" if missing else "",
    ]
    alike = "All replicas consume the same examples: " if found.order is Order.REPEATED else ""
    return f"{alike}{', and '.join(filter(None, facts))}, from step {found.step} on."


def _left_out(found: Coverage, steps: range) -> str:
    others = found.steps - len(steps)
    return f"Steps {steps[0]} to {steps[-1]} of {found.steps} are shown." if others > 0 else ""
