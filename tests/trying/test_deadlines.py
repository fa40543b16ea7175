"""Time of the runs of a script: each has the whole time."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_ddl.equivalence.runs.program import Program
from pytest_ddl.training.settings import RunSettings


@pytest.mark.parametrize("renewed", [None, 60.0])
def test_a_run_of_a_script_has_the_whole_time_whatever_the_runs_before_it_took(renewed: float | None) -> None:
    asked: list[float] = []

    def ask(*_args: Any, deadline: float, **_options: Any) -> list[Any]:
        asked.append(deadline)
        return []

    @contextmanager
    def cluster(*_args: Any, **_options: Any) -> Iterator[Any]:
        yield SimpleNamespace(num_ranks=1, num_replicas=1, ask=ask)

    harness: Any = SimpleNamespace(cluster=cluster)
    question: Any = SimpleNamespace(train=abs, mark=None)
    over = time.monotonic()
    program = Program(harness, SimpleNamespace(), question, over, None, renewed)  # type: ignore[arg-type]
    settings = replace(RunSettings(), tmp_path="/nowhere")
    program.attempt(None, settings)  # type: ignore[arg-type]
    assert (asked[0] > over) is (renewed is not None)
