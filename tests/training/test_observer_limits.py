"""Observers that stop at a limit: the record of the rank says so."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_ddl.records import CollectiveRecord
from pytest_ddl.strategies.base import RankContext
from pytest_ddl.strategies.spec import StrategySpec
from pytest_ddl.training.observer import Observer
from pytest_ddl.training.observers import collectives, graphs
from pytest_ddl.training.settings import RunSettings


@pytest.fixture
def made(tmp_path: Path) -> Callable[[type[Observer]], tuple[Any, list[str]]]:
    """Makes an observer of the second of two ranks; gives it with the notes that it leaves."""

    def make(kind: type[Observer]) -> tuple[Any, list[str]]:
        notes: list[str] = []
        recorder: Any = SimpleNamespace(completed=0, note=lambda _kind, text: notes.append(text), points=None)
        context = RankContext(StrategySpec("multi_worker_mirrored"), None, "worker:1", 1, num_ranks=2, num_replicas=2)
        return kind(RunSettings(tmp_path=str(tmp_path)), context, recorder), notes

    return make


@pytest.mark.parametrize(("number", "notes"), [(2, []), (3, ["graphs after the first 2 of a run are not analyzed"])])
def test_graphs(made: Any, monkeypatch: pytest.MonkeyPatch, number: int, notes: list[str]) -> None:
    monkeypatch.setattr(graphs, "LARGEST", 2)
    monkeypatch.setattr(graphs, "analyse", lambda graph, step, asked: graph)
    observer, found = made(graphs.GraphObserver)
    with observer.installed():
        for graph in range(number):
            observer._traced.append(graph)
            observer.end_step()
        assert observer.end_run() == {"graphs": (0, 1)}
    assert found == notes


@pytest.mark.parametrize(
    ("number", "notes"), [(2, []), (4, ["collectives after the first 2 of worker:1 are not logged and not compared"])]
)
def test_collectives(made: Any, monkeypatch: pytest.MonkeyPatch, number: int, notes: list[str]) -> None:
    @contextmanager
    def caught(_strategy: Any, issued: Callable[[CollectiveRecord, int], None]) -> Iterator[bool]:
        yield True
        for _ in range(number):
            issued(CollectiveRecord("all_reduce", "SUM", (2,), "float32", "train.py:3"), 0)

    monkeypatch.setattr(collectives, "LARGEST", 2)
    monkeypatch.setattr(collectives, "caught", caught)
    observer, found = made(collectives.CollectiveObserver)
    with observer.installed():
        pass
    assert len(observer.end_run()["collectives"]) == 2
    assert list(dict.fromkeys(found)) == notes
