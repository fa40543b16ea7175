"""Results of GPUs are compared with NumPy before anything is trained there. Here a CPU stands for the GPU."""

from __future__ import annotations

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
    monkeypatch.setattr(gpu_check, "wrong_on", {"GPU:0": None, "GPU:1": "computes wrong numbers: 0"}.get)
    gpu_check.check_gpus(1)
    with pytest.raises(RuntimeError, match=r"GPU:1 computes wrong numbers: 0; .* is built for CUDA .* LD_LIBRARY_PATH"):
        gpu_check.check_gpus(2)
