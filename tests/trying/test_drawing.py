"""Batches that a script draws, which are the same however many batches were read before."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from pytest_ddl.trying.drawing import same_items


class Sequence:
    """The class of a flavor of Keras."""

    def on_epoch_end(self) -> None: ...


class Drawn(Sequence):
    """Data whose batches are drawn, and whose order is drawn when it is read first."""

    def __init__(self) -> None:
        self.order: Any = None

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> Any:
        if self.order is None:
            self.order = np.random.permutation(8)
        return int(self.order[index]), random.random(), float(np.random.rand())

    def on_epoch_end(self) -> None:
        self.order = np.random.permutation(8)


KERAS: Any = SimpleNamespace(utils=SimpleNamespace(Sequence=Sequence))


def made(*before: int) -> tuple[list[Any], tuple[Any, ...]]:
    """Return batches of two epochs after others were read, and numbers that are drawn afterwards."""
    random.seed(1)
    np.random.seed(1)
    data = same_items(Drawn(), [KERAS])
    assert len(data) == data.num_batches == 8
    read = [data[index] for index in (0, *before)]
    first = [data[index] for index in range(4)]
    assert read[0] == first[0]
    data.on_epoch_end()
    return [*first, *(data[index] for index in range(4))], (random.random(), float(np.random.rand()))


@pytest.mark.parametrize("ahead", [(), (1,), (5, 3, 7)])
def test_batches_do_not_depend_on_what_was_read_ahead(ahead: tuple[int, ...]) -> None:
    assert made(*ahead) == made(1, 2)


def test_each_batch_and_epoch_draws_its_own_numbers() -> None:
    batches, _after = made()
    assert len({number for _row, number, _other in batches}) == 8


def test_other_data_is_unchanged() -> None:
    data = np.ones(3)
    assert same_items(data, [KERAS]) is data
