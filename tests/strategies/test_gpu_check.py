"""What the GPUs compute is compared with NumPy before anything is trained there. Here a CPU stands for the GPU."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_ddl.strategies import gpu_check

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
    """As with a CUDA runtime of another version: the result is 0."""
    import tensorflow as tf

    right = getattr(tf, function)
    monkeypatch.setattr(tf, function, lambda *args, **kwargs: tf.zeros_like(right(*args, **kwargs)))
    assert told in str(gpu_check.wrong_on("CPU:0"))


def test_the_error_names_the_gpu_and_what_to_look_at(monkeypatch: pytest.MonkeyPatch) -> None:
    import tensorflow as tf

    def devices(_kind: str) -> list[Any]:
        return [tf.config.LogicalDevice("CPU:0", "CPU")]

    monkeypatch.setattr(tf.config, "list_logical_devices", devices)
    monkeypatch.setattr(tf, "matmul", lambda left, _right: tf.zeros_like(left))
    with pytest.raises(RuntimeError, match=r"CPU:0 computes wrong numbers: .* is built for CUDA .* LD_LIBRARY_PATH"):
        gpu_check.check_gpus()
