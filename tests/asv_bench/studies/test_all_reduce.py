"""Choices of an all-reduce: which can run, the proof of sums, and the named best."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from asv_bench.studies import all_reduce
from asv_bench.studies.all_reduce import Cell
from asv_bench.studies.all_reduce_choices import CHOICES
from pytest_ddl.bench.collectives import measure_collectives
from pytest_ddl.bench.launching.ranks import BenchError
from pytest_ddl.strategies.base import Machine
from pytest_ddl.strategies.registry import StrategyRegistry


def harness(gpus: int) -> Any:
    registry = StrategyRegistry()
    machine = Machine(gpus=gpus)

    def unavailable(spec: Any, mark: Any) -> str | None:
        return registry[spec.name].unavailable(spec, mark.device, machine)

    return SimpleNamespace(registry=registry, machine=machine, unavailable=unavailable)


def test_each_choice_is_named_once_for_its_strategy() -> None:
    names = [(choice.strategy, choice.name) for choice in CHOICES]
    assert len(set(names)) == len(names)
    assert {choice.strategy for choice in CHOICES} == set(all_reduce.SIZED)


def test_nccl_runs_only_with_a_gpu_for_each_replica() -> None:
    runnable, skipped = all_reduce._available(harness(2), "gpu", [2])
    assert "nccl" in [choice.name for choice in runnable["mirrored", 2]]
    assert "nccl of mirrored[replicas=2]" not in skipped
    runnable, skipped = all_reduce._available(harness(1), "gpu", [2])
    assert skipped["nccl of mirrored[replicas=2]"] == "needs 2 physical GPUs; this machine has 1"
    runnable, skipped = all_reduce._available(harness(0), "cpu", [2, 4])
    assert skipped["nccl of multi_worker_mirrored[workers=4]"] == "needs GPUs; this run is on cpu"
    assert [choice.name for choice in runnable["mirrored", 4]] == [
        "default", "one device", "hierarchical copy", "ring of copies",
    ]  # fmt: skip


def cell(**seconds: tuple[float, ...]) -> Cell:
    return Cell("mirrored", 2, 1024, seconds)


def test_the_table_names_the_best_only_if_it_is_separated() -> None:
    apart = cell(a=(1e-3, 1.1e-3, 1.05e-3), b=(5e-3, 5.1e-3, 5.2e-3))
    near = cell(a=(1e-3, 1.4e-3, 1.2e-3), b=(1.1e-3, 1.2e-3, 1.3e-3))
    for cells, last, count in (([apart], "a", "1 of 1"), ([near], "not separated: a, b", "0 of 1")):
        found = all_reduce.report(cells, {"nccl": "needs GPUs"}, "cpu")
        assert found.tables[0].rows[1][-1] == last
        assert count in found.headline
        assert found.tables[1].rows[1] == ("nccl", "needs GPUs")
        assert found.data["cells"][0]["best"] == (last if last == "a" else None)


def test_one_run_names_nothing() -> None:
    found = all_reduce.report([cell(a=(1e-3,), b=(5e-3,))], {}, "cpu")
    assert found.tables[0].rows[1][-1].startswith("not separated")
    assert any("no choice is named" in note for note in found.notes)


# -- on clusters -------------------------------------------------------------------------------------


def _ring() -> dict[str, Any]:
    from asv_bench.studies.ring import RingOfCopies

    return {"cross_device_ops": RingOfCopies()}


def _ring_that_swaps_parts() -> dict[str, Any]:
    """Planted: the second part of the sum is not that of all replicas. A fallback to another all-reduce hides it."""
    import tensorflow as tf

    from asv_bench.studies import ring

    whole = ring._ring

    def wrong(values: Any) -> list[Any]:
        def swapped(one: Any) -> Any:
            flat = tf.reshape(one, [-1])
            return tf.reshape(tf.concat([flat[:3], flat[3:] + 1], 0), tf.shape(one))

        return [swapped(one) for one in whole(values)]

    ring._ring = wrong
    return {"cross_device_ops": ring.RingOfCopies()}


@pytest.mark.slow
@pytest.mark.parametrize(("make", "right"), [(_ring, True), (_ring_that_swaps_parts, False)])
def test_the_sums_of_our_ring_are_proved(make: Callable[[], Mapping[str, Any]], right: bool) -> None:
    """16, 5000 and 4 bytes: parts of different sizes on 3 replicas, and fewer elements than replicas."""
    if right:
        found = measure_collectives(
            "mirrored[replicas=3]", [16, 5000, 4], samples=1, device="cpu", timeout=240, arguments=make
        )
        assert [timing.size for timing in found] == [16, 5000, 4]
        return
    with pytest.raises(BenchError, match=r"of 4 values over 3 replicas gave 25\.0, not 24\.0 at index 3"):
        measure_collectives("mirrored[replicas=3]", [16], samples=1, device="cpu", timeout=240, arguments=make)


@pytest.mark.slow
def test_arguments_reach_the_strategy() -> None:
    """An argument that the strategy does not have is refused in the rank."""
    with pytest.raises(Exception, match="no_such_argument"):
        measure_collectives("mirrored", [16], device="cpu", timeout=240, arguments=lambda: {"no_such_argument": 1})
