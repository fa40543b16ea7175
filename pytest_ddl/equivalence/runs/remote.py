"""Function that the ranks run for a comparison. They import it by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from pytest_ddl.cluster.worker import current_rank
from pytest_ddl.records import RankRecord
from pytest_ddl.training.execute import execute
from pytest_ddl.training.observers.registry import OBSERVERS
from pytest_ddl.training.settings import RunSettings


def run_training(train: Callable[[Any], Any], settings: RunSettings) -> RankRecord:
    """Run a training function on this rank and return its record."""
    context = current_rank()
    assert context is not None
    folder = Path(settings.tmp_path) / f"rank-{context.rank}"
    folder.mkdir(parents=True, exist_ok=True)
    return execute(train, replace(settings, rank_path=str(folder)), context, OBSERVERS)
