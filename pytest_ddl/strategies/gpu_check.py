"""Compare what the GPUs of this process compute with NumPy, before anything is trained there.

If the CUDA runtime is not of the version that TensorFlow was built for, kernels fail without an error: TensorFlow lists
the GPU, and a product of matrices is 0. Both sides of a comparison are then wrong in the same way, and may be equal.
"""

from __future__ import annotations

import contextlib
import ctypes
import re
from typing import Any

import numpy as np

_LIBRARY = re.compile(r"/lib(cudart|cublas|cudnn|cufft|cusolver|cusparse)\.so\.([\d.]+)$", re.MULTILINE)
SIZE = 48
"""Rows of the matrices. Their numbers are so small that every sum of products is exact in float32."""


def check_gpus(count: int) -> None:
    """Compute on the first logical GPUs of this process. TensorFlow would also list those of other workers.

    :raises RuntimeError: if a result is wrong. The message is one line.
    """
    for device in (f"GPU:{number}" for number in range(count)):
        found = wrong_on(device)
        if found is not None:
            raise RuntimeError(f"{device} {found}; {built_for()}")


def wrong_on(device: str) -> str | None:
    """Compute a product with a library of CUDA, and a sum and random numbers with kernels of TensorFlow.

    :return: what is wrong, or ``None``.
    """
    import tensorflow as tf

    left = (np.arange(SIZE * SIZE) % 7 - 3).reshape(SIZE, SIZE).astype(np.float32)
    right = (np.arange(SIZE * SIZE) % 5 - 2).reshape(SIZE, SIZE).astype(np.float32)
    bits = {"shape": [64], "seed": [1, 2], "minval": None, "maxval": None, "dtype": tf.int32}
    with tf.device("CPU:0"):
        drawn = tf.random.stateless_uniform(**bits).numpy()
    product = left @ right
    with tf.device(device):
        results = {
            "a product of matrices": (tf.matmul(left, right), product),
            "a sum": (tf.reduce_sum(tf.constant(product) * 2.0, axis=1), 2 * product.sum(axis=1)),
            "random numbers": (tf.random.stateless_uniform(**bits), drawn),
        }
        for name, (computed, expected) in results.items():
            if not np.array_equal(computed.numpy(), expected):
                return f"computes wrong numbers: {name} begins with {_first(computed)} in place of {_first(expected)}"
    return None


def libraries() -> dict[str, str]:
    """Return the versions of CUDA that this process has: ``built``, ``driver``, and its libraries by name.

    A version of a library is that of its file, whatever the name is by which it was loaded. Libraries are loaded when
    TensorFlow lists its GPUs.
    """
    import tensorflow as tf

    build = tf.sysconfig.get_build_info()
    versions = {"built": str(build.get("cuda_version", "")), "driver": _driver()}
    with contextlib.suppress(OSError), open("/proc/self/maps", encoding="utf-8") as maps:
        versions |= {name: version for line in maps for name, version in _LIBRARY.findall(line)}
    return versions


def _driver() -> str:
    """Return the version of CUDA that the driver supports, or an empty text."""
    number = ctypes.c_int()
    with contextlib.suppress(OSError, AttributeError):
        if ctypes.CDLL("libcuda.so.1").cuDriverGetVersion(ctypes.byref(number)) == 0:
            return f"{number.value // 1000}.{number.value % 1000 // 10}"
    return ""


def _first(array: Any) -> str:
    return f"{np.asarray(array).flat[0]:g}"


def built_for() -> str:
    """Return what to look at if a GPU computes wrong numbers."""
    import tensorflow as tf

    build = tf.sysconfig.get_build_info()
    cuda, cudnn = build.get("cuda_version", "unknown"), build.get("cudnn_version", "unknown")
    return (
        f"this TensorFlow is built for CUDA {cuda} and cuDNN {cudnn}, and perhaps loads others: look "
        "at LD_LIBRARY_PATH, and run pytest-ddl doctor --tensorflow"
    )
