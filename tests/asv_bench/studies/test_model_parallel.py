"""Model against data parallelism: their crossover, and the bytes of a device."""

from __future__ import annotations

from typing import Any

import pytest

from asv_bench.studies import model_parallel
from asv_bench.studies.model_parallel import Cell
from pytest_ddl.bench import Counters, Launch
from tests.bench.made import launch


def launches(name: str, seconds: float, **given: Any) -> tuple[Launch, ...]:
    counters = Counters(**{"reduced_bytes": 2**20, **given})
    noise = (0.99, 1.0, 1.01)
    return tuple(launch(name, seconds * factor, batch=32, counters=counters) for factor in noise)


def cell(width: int, data: float, model: float, **given: Any) -> Cell:
    return Cell(width, launches("mirrored", data), launches("model_parallel", model, **given), 2**21, 2**20)


@pytest.mark.parametrize(
    ("times", "words"),
    [
        ([(1, 2), (1, 1), (2, 1)], "model parallelism becomes faster between 1 and 3 units"),
        ([(1, 2), (1, 3)], "data parallelism is faster at 1, 2 units; no width was found where model"),
        ([(3, 2), (1, 1)], "model parallelism is faster at 1 units; no width was found where data"),
        ([(1, 1)], "no width separates"),
        ([(2, 1), (1, 2)], "no single crossover: data parallelism is faster at 2 units, model parallelism at 1"),
    ],
)
def test_a_crossover_needs_intervals_on_both_sides(times: list[tuple[float, float]], words: str) -> None:
    cells = [cell(width, data, model) for width, (data, model) in enumerate(times, 1)]
    assert words in model_parallel.crossover(cells[::-1])


def test_bytes_that_were_not_counted_are_not_shown_as_zero() -> None:
    found = model_parallel.report([cell(8, 1, 2), cell(16, 1, 2, uncounted=("a loop",))], "checked", "cpu")
    _head, first, second = found.tables[1].rows
    assert first[1:5] == ("1 MiB", "1 MiB", "2 MiB", "1 MiB")
    assert second[2] == "-"
    assert found.tables[0].rows[1][-1] == "data parallel"


@pytest.mark.slow
def test_variables_on_a_device_are_counted() -> None:
    """Both kernels and their momentum are split; the rest has a copy on each device."""
    width = 16
    first, second, last = 64 * width + width, width * width + width, width * 10 + 10
    scalars = 8 + 4  # the optimizer's counter and its rate
    whole = 2 * 4 * (first + second + last) + scalars
    split = 2 * 4 * (first // 2 + width * width // 2 + width + last) + scalars
    assert model_parallel.device_bytes("mirrored[replicas=2]", width, "cpu", 240) == whole
    assert model_parallel.device_bytes("model_parallel[mesh=model:2]", width, "cpu", 240) == split
