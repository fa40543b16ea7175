"""Fixtures of the property tests that check single operations."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from suites.backends.numpy_backend import NumpyBackend
from suites.linear import in_float64


@pytest.fixture
def synchronous_strategy(ddl_strategy: Any) -> Any:
    """Return the strategy if its replicas meet in collectives; skip parameter servers and a single global program."""
    import tensorflow as tf

    asynchronous = isinstance(ddl_strategy, tf.distribute.experimental.ParameterServerStrategy)
    if asynchronous or hasattr(ddl_strategy, "mesh"):
        pytest.skip("its replicas meet in no collective that a replica function could call")
    return ddl_strategy


@pytest.fixture
def float64() -> Iterator[None]:
    """Build models in float64, because its rounding errors are far smaller than the effect of any defect."""
    with in_float64():
        yield


@pytest.fixture(scope="session")
def numpy_backend() -> Iterator[NumpyBackend]:
    """Return a process with the NumPy backend of the same Keras, or skip the test if it cannot be imported."""
    if int(np.__version__.partition(".")[0]) < 2:
        pytest.skip("NumPy 1 chooses other types for scalars, which the NumPy backend of Keras returns")
    found = NumpyBackend()
    try:
        if found.ready.error:
            pytest.skip(f"this Keras has no NumPy backend: {found.ready.error}: {found.ready.text}")
        yield found
    finally:
        found.close()
