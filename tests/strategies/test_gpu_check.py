"""Results of GPUs are compared with NumPy before anything is trained there. Here a CPU stands for the GPU."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pytest_ddl.cluster.obstacles import LaunchError
from pytest_ddl.config import resolve_without_pytest
from pytest_ddl.harness import Harness, built_in_launchers
from pytest_ddl.items.selection import DdlMark
from pytest_ddl.strategies import gpu_check
from pytest_ddl.strategies.base import Machine
from pytest_ddl.strategies.mirrored import Mirrored
from pytest_ddl.strategies.registry import StrategyRegistry
from pytest_ddl.strategies.spec import BuildContext

pytestmark = pytest.mark.slow


def test_right_kernels_are_right() -> None:
    assert gpu_check.wrong_on("CPU:0") is None


@pytest.mark.parametrize(
    ("function", "told"),
    [
        ("matmul", "a product of matrices begins with 0 in place of "),
        ("reduce_sum", "a sum begins with 0 in place of "),
    ],
)
def test_a_kernel_that_fails_without_an_error_is_found(
    function: str, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kernel gives 0 without an error, for example with a CUDA runtime of another version."""
    import tensorflow as tf

    right = getattr(tf, function)
    monkeypatch.setattr(tf, function, lambda *args, **kwargs: tf.zeros_like(right(*args, **kwargs)))
    assert told in str(gpu_check.wrong_on("CPU:0"))


def test_the_error_names_the_gpu_and_what_to_look_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_check, "wrong_on", {"GPU:0": None, "GPU:1": "computes wrong numbers: 0"}.get)
    gpu_check.check_gpus(1)
    with pytest.raises(RuntimeError, match=r"GPU:1 computes wrong numbers: 0; .* is built for CUDA .* LD_LIBRARY_PATH"):
        gpu_check.check_gpus(2)


class OnAGpu(Mirrored):
    """Strategy that is available and placed like mirrored on a GPU, and runs on virtual CPUs."""

    name = "on_a_gpu"
    aliases = ()

    def build(self, context: BuildContext) -> Any:
        return super().build(replace(context, device="cpu"))


class OnABrokenGpu(OnAGpu):
    """On a GPU whose products of matrices are 0."""

    name = "on_a_broken_gpu"

    def build(self, context: BuildContext) -> Any:
        import tensorflow as tf

        right = tf.matmul
        tf.matmul = lambda *args, **kwargs: tf.zeros_like(right(*args, **kwargs))
        return super().build(context)


@pytest.fixture
def with_a_gpu(tmp_path: Path) -> Iterator[Harness]:
    settings = resolve_without_pytest({"PYTEST_DDL_DEVICE": "gpu"})
    registry = StrategyRegistry([OnAGpu(), OnABrokenGpu()])
    launchers = built_in_launchers(settings)
    harness = Harness(settings, registry, launchers, folder=tmp_path, machine=Machine(gpus=1, gpu_memory_mb=80_000))
    yield harness
    harness.close()


def test_a_cluster_on_a_gpu_that_computes_nothing_does_not_start(with_a_gpu: Harness) -> None:
    broken, right = map(with_a_gpu.registry.parse_variant, ("on_a_broken_gpu", "on_a_gpu"))
    assert with_a_gpu.device_for(broken, DdlMark()) == "gpu"
    with pytest.raises((LaunchError, RuntimeError)) as error, with_a_gpu.cluster(broken, DdlMark()):
        pass
    assert "GPU:0 computes wrong numbers: a product of matrices begins with 0 in place of " in str(error.value)
    assert "is built for CUDA" in str(error.value)
    with with_a_gpu.cluster(right, DdlMark()) as cluster:
        assert cluster.num_replicas == 2
