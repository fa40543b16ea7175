"""A change that follows from another measured change is not a regression of its own."""

from __future__ import annotations

import pytest

from pytest_ddl.bench.history.detect import changes
from pytest_ddl.bench.history.model import Benchmark, Commit, HistoryPoint, Series
from pytest_ddl.bench.history.report import explain

VARIANT = (("strategy", "mirrored"), ("replicas", "2"))


def counted(name: str, before: int, after: int) -> Series:
    kind = Benchmark(f"training.Gate.track_{name}", "", "1", ("strategy", "replicas"), {"deterministic": True})
    points = [HistoryPoint(Commit(n, f"{n:040x}", n), float(before if n < 3 else after)) for n in range(6)]
    return Series("runner", "env", kind, VARIANT, tuple(points))


@pytest.mark.parametrize(
    ("parameters", "reduced", "is_explained"),
    [
        ((1000, 4000), (1004, 4004), True),  # a loss of 4 bytes beside the gradients
        ((1000, 4000), (1004, 4016), True),  # all of it in proportion
        ((1000, 4000), (1004, 8004), False),  # and cast to twice as many bytes
        ((1000, 1000), (1004, 2004), False),
        ((4000, 1000), (4004, 4008), False),  # a smaller model that reduces more
    ],
)
def test_more_reduced_bytes_of_a_larger_model(
    parameters: tuple[int, int], reduced: tuple[int, int], is_explained: bool
) -> None:
    bytes_, model = counted("reduced_bytes", *reduced), counted("parameter_bytes", *parameters)
    (found,) = explain(changes(bytes_), [bytes_, model])
    assert found.worse
    assert found.verdict.status == ("explained" if is_explained else "exact")
    assert found.alerts is not is_explained


def test_more_reduced_bytes_of_a_model_of_unknown_size() -> None:
    bytes_ = counted("reduced_bytes", 1004, 4004)
    (found,) = explain(changes(bytes_), [bytes_])
    assert found.alerts
