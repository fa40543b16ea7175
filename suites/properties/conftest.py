"""Fixtures of the property tests that look at single operations."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest


@pytest.fixture
def synchronous_strategy(ddl_strategy: Any) -> Any:
    """A strategy whose replicas meet in collectives: neither parameter servers nor one global program."""
    import tensorflow as tf

    asynchronous = isinstance(ddl_strategy, tf.distribute.experimental.ParameterServerStrategy)
    if asynchronous or hasattr(ddl_strategy, "mesh"):
        pytest.skip("its replicas meet in no collective that a replica function could call")
    return ddl_strategy


@pytest.fixture
def float64() -> Iterator[None]:
    """Models are made in float64, where rounding is far below every defect."""
    import keras

    floatx, policy = keras.config.floatx(), keras.config.dtype_policy()
    keras.config.set_floatx("float64")
    keras.config.set_dtype_policy("float64")
    yield
    keras.config.set_floatx(floatx)
    keras.config.set_dtype_policy(policy)
