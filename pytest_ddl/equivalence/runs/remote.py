"""Function that the ranks run for a comparison. They import it by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pytest_ddl.cluster.worker import own_rank
from pytest_ddl.records import RankRecord
from pytest_ddl.training.execute import execute
from pytest_ddl.training.observers.registry import OBSERVERS
from pytest_ddl.training.settings import RunSettings


def run_training(train: Callable[[Any], Any], settings: RunSettings) -> RankRecord:
    """Run a training function on this rank and return its record."""
    context = own_rank()
    return execute(train, settings.of_rank(context.rank), context, OBSERVERS)
