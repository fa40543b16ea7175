"""Runs training programs on real clusters, kept warm for the whole session."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pytest_ddl.cluster import ship
from pytest_ddl.cluster.explain import explain
from pytest_ddl.cluster.protocol import RequestKind
from pytest_ddl.equivalence.runs.remote import run_training
from pytest_ddl.harness import process_harness
from pytest_ddl.items.selection import DdlMark
from pytest_ddl.records import RankRecord
from pytest_ddl.training.settings import RunSettings

DEADLINE = 100.0
Runner = Callable[..., list[RankRecord]]


@pytest.fixture
def records(tmp_path: Path) -> Runner:
    """Records of a program's ranks, whatever happened in it: ``records(strategy, train, **settings)``."""
    harness = process_harness()

    def run(name: str, train: Callable[..., Any], **given: Any) -> list[RankRecord]:
        settings = RunSettings(tmp_path=str(tmp_path), is_reference=name == "one_device", seed=7)
        job = ship.pack(run_training, (train, replace(settings, **given)))
        with harness.cluster(harness.registry.parse_variant(name), DdlMark()) as cluster:
            answers = cluster.ask(RequestKind.CALL, job, deadline=time.monotonic() + DEADLINE)
            assert all(answer.ok for answer in answers), explain(answers)
            found = [ship.unpack(answer.body) for answer in answers]
            if any(record.failed for record in found):
                cluster.retired = "the program failed in it"
            return found

    return run


@pytest.fixture
def in_rank() -> Callable[[str, Callable[[], Any]], list[Any]]:
    """Results of a function that each rank calls outside of any training: ``in_rank(strategy, function)``."""

    def call(name: str, function: Callable[[], Any]) -> list[Any]:
        harness = process_harness()
        with harness.cluster(harness.registry.parse_variant(name), DdlMark()) as cluster:
            answers = cluster.ask(RequestKind.CALL, ship.pack(function, ()), deadline=time.monotonic() + DEADLINE)
            assert all(answer.ok for answer in answers), explain(answers)
            return [ship.unpack(answer.body) for answer in answers]

    return call


@pytest.fixture
def ranks(records: Runner) -> Runner:
    """Return a function that trains like ``records`` and returns the ranks, for a program that must not fail."""

    def run(name: str, train: Callable[..., Any], **given: Any) -> list[RankRecord]:
        found = records(name, train, **given)
        for record in found:
            assert record.error is None, record.error.traceback
        return found

    return run
