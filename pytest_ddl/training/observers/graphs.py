"""Count the content of each graph that a run traces, and find steps that run eagerly without need."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from pytest_ddl.notes import NoteKind
from pytest_ddl.records import CollectiveRecord, GraphRecord
from pytest_ddl.training import adapter, frames
from pytest_ddl.training.graphs import analyse
from pytest_ddl.training.observer import Observer

LARGEST = 64
"""Maximum number of graphs to analyze; a program that traces more has a defect that fewer graphs already show."""


class GraphObserver(Observer):
    """Observer that fills ``RankRecord.graphs`` and ``StepRecord.eager``."""

    @contextmanager
    def installed(self) -> Iterator[None]:
        self._traced: list[Any] = []
        self._asked: dict[int, list[CollectiveRecord]] = {}
        self._records: list[GraphRecord] = []
        self._eager: bool | None = None
        yield
        self._traced.clear()

    def before_dispatch(self, traced: bool) -> None:
        import tensorflow as tf

        if adapter.outermost_graph() is not None or traced:
            self._eager = self._eager or False
            self.before_replica(None)
        elif not tf.config.functions_run_eagerly() and frames.called_by_program():
            # Not if Keras is the caller: it calls strategy.run eagerly only if the program chose run_eagerly=True.
            self._eager = True

    def before_replica(self, given: Any) -> None:
        graph = adapter.outermost_graph()
        if graph is not None and not any(graph is known for known in self._traced):
            self._traced.append(graph)

    def asked(self, items: list[CollectiveRecord]) -> None:
        """Record the collectives that the program requests in one call, while a graph is traced."""
        graph = adapter.outermost_graph()
        calls = self._asked.setdefault(id(graph), [])
        call = 1 + max((item.group for item in calls), default=-1)
        calls += [CollectiveRecord(i.kind, i.op, i.shape, i.dtype, i.where, group=call) for i in items]

    def end_step(self) -> Mapping[str, Any]:
        self._analyse(self.recorder.completed + 1)
        eager, self._eager = self._eager, None
        return {"eager": eager}

    def discard(self) -> None:
        self._traced.clear()
        self._asked.clear()
        self._eager = None

    def end_run(self) -> Mapping[str, Any]:
        return {"graphs": tuple(self._records)}

    def _analyse(self, step: int) -> None:
        traced, asked = self._traced, self._asked
        self._traced, self._asked = [], {}
        room = max(0, LARGEST - len(self._records))
        if len(traced) > room:
            self.recorder.note(NoteKind.GRAPHS, f"graphs after the first {LARGEST} of a run are not analyzed")
        for graph in traced[:room]:
            try:
                self._records.append(analyse(graph, step, tuple(asked.get(id(graph), ()))))
            except Exception as error:  # a failed count must not end the program
                self.recorder.note(NoteKind.GRAPHS, f"a graph could not be analyzed: {type(error).__name__}: {error}")
