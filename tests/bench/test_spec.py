"""The declaration of a benchmark: what is refused, and with which words."""

from __future__ import annotations

import pytest

from pytest_ddl.bench.launching.records import BenchSpec


@pytest.mark.parametrize("name", ["warm_up", "steps_per_block", "blocks"])
@pytest.mark.parametrize("value", [0, -1, 2.5, True, "3"])
def test_a_number_of_steps_or_blocks_is_a_positive_whole_number(name, value):
    with pytest.raises(ValueError, match=f"{name}={value!r} must be a whole number, at least 1"):
        BenchSpec(**{name: value})


@pytest.mark.parametrize("name", ["batch_per_replica", "global_batch_size"])
@pytest.mark.parametrize("value", [0, -8, 1.0, False])
def test_a_batch_size_is_a_positive_whole_number(name, value):
    with pytest.raises(ValueError, match=f"{name}={value!r} must be a whole number, at least 1, or None"):
        BenchSpec(**{name: value})


@pytest.mark.parametrize("name", ["seconds", "timeout"])
@pytest.mark.parametrize("value", [0, -1.0, float("nan"), float("inf"), 1e10])
def test_a_time_is_positive(name, value):
    with pytest.raises(ValueError, match=f"{name}={value!r} must be a positive number of seconds"):
        BenchSpec(**{name: value})


def test_a_time_may_be_long():
    assert BenchSpec(seconds=7200, timeout=86_400).timeout == 86_400


def test_only_one_batch_size_can_be_kept():
    with pytest.raises(ValueError, match=r"batch_per_replica=8 and global_batch_size=16: give one of them \(the first"):
        BenchSpec(batch_per_replica=8, global_batch_size=16)


@pytest.mark.parametrize(
    ("given", "scaling", "batches"),
    [
        ({"batch_per_replica": 8}, "weak", [8, 16, 32]),
        ({"global_batch_size": 64}, "strong", [64, 64, 64]),
        ({}, "none", [None, None, None]),
    ],
)
def test_the_batch_size_follows_the_kind_of_scaling(given, scaling, batches):
    spec = BenchSpec(**given)
    assert spec.scaling == scaling
    assert [spec.batch_for(replicas) for replicas in (1, 2, 4)] == batches
