"""Report the saves, restores and batches of a run to its log of points. Faults strike at points.

:class:`FaultPlan` in the settings of a run asks its ranks for that.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

from pytest_ddl.faults.rank import damage
from pytest_ddl.faults.rank.fault import Fault
from pytest_ddl.faults.rank.point_log import Points, path_of
from pytest_ddl.faults.rank.write_gate import WriteGate, why_not
from pytest_ddl.notes import NoteKind
from pytest_ddl.records import Array, VariableKind
from pytest_ddl.strategies.base import RankContext
from pytest_ddl.training import lineage, python_writes
from pytest_ddl.training.callback_ops import add_callback
from pytest_ddl.training.observer import Observer, Recording
from pytest_ddl.training.observers import saving
from pytest_ddl.training.settings import RunSettings


@dataclass(frozen=True)
class FaultPlan:
    """Plan of the points of one attempt, and of the faults that strike there."""

    writes: bool = False
    """True to log the changes of files in each save too, which costs a helper process."""
    faults: tuple[Fault, ...] = ()
    """Faults that strike in this attempt, of all tasks."""
    servers: tuple[str, ...] = ()
    """Tasks that run no program. They are struck at points of the first rank."""
    cut_outside: bool = False
    """True if the platform cuts the host of a task off for a partition, and not a relay."""

    @property
    def disturbs(self) -> bool:
        return bool(self.faults)

    def observer(self, settings: RunSettings, context: RankContext, recorder: Recording) -> PointObserver:
        return PointObserver(self, settings, context, recorder)


class PointObserver(Observer):
    """Observer that makes the log of points."""

    def __init__(self, plan: FaultPlan, settings: RunSettings, context: RankContext, recorder: Recording) -> None:
        super().__init__(settings, context, recorder)
        self._plan = plan

    @contextmanager
    def installed(self) -> Iterator[None]:
        plan = self._plan
        path = path_of(self.settings.tmp_path, self.settings.attempt, self.context.rank)
        tasks = [self.context.task, *(plan.servers if self.context.rank == 0 else ())]
        own = [fault for fault in plan.faults if fault.task in tasks]
        points = self.recorder.points = Points(path, own, plan.servers, cut_outside=plan.cut_outside)
        with ExitStack() as stack:
            stack.callback(points.close)
            gate = points.gate = self._gate(points, stack)
            saves = _Saves(self.recorder, self.settings.tmp_path, points, gate)
            stack.enter_context(saving.observed(lambda _call: None, saves.began, saves.ended))
            points.begin("training", 0)
            stack.enter_context(python_writes.heard(saves.wrote))
            yield

    def _gate(self, points: Points, stack: ExitStack) -> WriteGate | None:
        if not self._plan.writes:
            return None
        if why := why_not():
            self.recorder.note(NoteKind.WRITES, why)
            return None
        return stack.enter_context(WriteGate(points, self.settings.tmp_path))

    def before_replica(self, given: Any) -> None:
        if self.settings.observe:
            add_callback(self._has_batch, [])

    def _has_batch(self, replica: Any) -> None:
        if self.recorder.points is not None:
            self.recorder.points.event("batch", int(replica))


class _Saves:
    """Saves, restores and other writes of the program, as they get into the log."""

    def __init__(self, recorder: Recording, folder: str, points: Points, gate: WriteGate | None) -> None:
        self._recorder, self._folder, self._points, self._gate = recorder, folder, points, gate
        self._depth = 0
        self._before: frozenset[str] | None = None
        """Digests of the values when the current save began."""
        self._thread, self._inside = threading.get_ident(), os.path.realpath(folder) + os.sep

    def began(self, writes: bool) -> None:
        # A manager's save calls the save of its checkpoint: both are one save.
        self._depth += 1
        if self._depth > 1:
            return
        self._before = self._state() if writes else None
        self._points.begin("save" if writes else "restore", **_shown(self._before))
        if self._gate is not None and writes:
            self._gate.open()

    def ended(self, writes: bool, used: str | None) -> None:
        self._depth -= 1
        if self._depth > 0:
            return
        if self._gate is not None and writes:
            self._gate.close()
        if writes and used:
            for file in damage.files_of(used, self._folder):
                self._points.file(file, self._folder, self._trained)
        phase = "save" if writes else "restore"
        if used is None:
            self._points.leave(phase)
        else:
            self._points.end(phase, **(self._saved() if writes else {}))

    def wrote(self, path: str, _api: str) -> None:
        # In a save, the files are those of the save. Threads of the program write at any time.
        if self._depth or threading.get_ident() != self._thread:
            return
        shown = os.path.realpath(path).removeprefix(self._inside)
        if not os.path.isabs(shown) and not shown.startswith("."):
            self._points.write(shown)

    def _saved(self) -> dict[str, Any]:
        """Return what the log says about the values that a save contains, if steps run concurrently."""
        state = self._state()
        return _shown(state) if state == self._before else {"moving": True}

    def _state(self) -> frozenset[str] | None:
        """Return the digests of the current values if steps run concurrently, because no step then has these values."""
        if not self._recorder.asynchronous:
            return None
        values = [(item.record, {item.record.index: tuple(item.read())}) for item in self._recorder.watched]
        return lineage.digests(values)

    def _trained(self) -> list[Array]:
        """Return the current values of the trainable variables, which a save has just written."""
        watched = self._recorder.watched
        return [item.read()[0] for item in watched if item.record.kind is VariableKind.TRAINABLE]


def _shown(state: frozenset[str] | None) -> dict[str, Any]:
    return {} if state is None else {"state": sorted(state)}
