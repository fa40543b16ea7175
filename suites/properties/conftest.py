"""Fixtures of the property tests that check single operations."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

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
