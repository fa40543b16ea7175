"""Programs with operations that have no deterministic kernel on a GPU; imported inside the workers.

The machine of the tests has no GPU, so each program asks whether operations are to be deterministic, and raises what a
kernel of a GPU raises then.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import tensorflow as tf
from training_programs import make

from pytest_ddl.cluster.worker import own_rank
from pytest_ddl.records import RankRecord
from pytest_ddl.strategies.adapter import is_deterministic
from pytest_ddl.training.execute import execute
from pytest_ddl.training.observers.registry import OBSERVERS
from pytest_ddl.training.settings import RunSettings


def as_on_a_gpu(train: Callable[[Any], None]) -> tuple[RankRecord, bool]:
    """The record of a program whose rank says that it has a GPU, and whether operations are deterministic later."""
    context = own_rank()
    record = execute(train, RunSettings(is_reference=True), replace(context, device="gpu"), OBSERVERS)
    return record, is_deterministic()


def _step(run: Any) -> None:
    model, optimizer = make(run)
    run.watch(model=model, optimizer=optimizer)
    run.record(deterministic=float(is_deterministic()))


def deterministic(run: Any) -> None:
    _step(run)


def without_a_kernel(run: Any) -> None:
    if is_deterministic():
        raise tf.errors.UnimplementedError(None, None, "A deterministic GPU implementation is not available")
    _step(run)


def draws_without_a_seed(run: Any) -> None:
    tf.random.Generator.from_non_deterministic_state().normal([2])
    _step(run)


def fails_anyway(run: Any) -> None:
    raise RuntimeError(f"deterministic: {is_deterministic()}")


def never_implemented(run: Any) -> None:
    raise tf.errors.UnimplementedError(None, None, f"deterministic: {is_deterministic()}")
