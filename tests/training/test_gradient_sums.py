"""The class of an optimizer and its call decide what it does with the gradients of the replicas."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_ddl.records import GradientSum
from pytest_ddl.training.gradient_calls import sum_of


class _Framework:
    inner_optimizer: Any = None

    def apply_gradients(self, *args: Any, **kwargs: Any) -> None: ...


_Framework.__module__ = "keras.src.optimizers"


class _OwnUpdate(_Framework):
    def update_step(self) -> None: ...


class _OwnCall(_Framework):
    def apply_gradients(self, *args: Any, **kwargs: Any) -> None: ...


class _Scaled(_Framework):
    inner_optimizer = _Framework()


@pytest.mark.parametrize(
    ("optimizer", "args", "kwargs", "summed"),
    [
        (_Framework(), ([],), {}, GradientSum.ADDED),
        (_OwnUpdate(), ([],), {}, GradientSum.ADDED),
        (_Framework(), ([],), {"skip_gradients_aggregation": True}, GradientSum.TAKEN),
        (_Framework(), ([], "name", True), {}, GradientSum.TAKEN),
        (_Framework(), ([],), {"experimental_aggregate_gradients": False}, GradientSum.TAKEN),
        (_OwnCall(), ([],), {}, GradientSum.UNKNOWN),
        (_Scaled(), ([],), {}, GradientSum.UNKNOWN),
    ],
)
def test_sum_of(optimizer: Any, args: Any, kwargs: Any, summed: GradientSum) -> None:
    assert sum_of(optimizer, args, kwargs) is summed
