"""A part of an update that is not finite explains nothing."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from pytest_ddl.equivalence.diagnosis.candidates.aggregation import _combination


@pytest.mark.parametrize(("second", "explains"), [(np.nan, False), (np.inf, False), (1.0, True)])
def test_a_combination_needs_finite_parts(second: float, explains: bool) -> None:
    motion: Any = SimpleNamespace(variable=SimpleNamespace(index=0))
    predict = _combination({0: [np.ones(2), np.full(2, second)]}, [1.0, 0.0])
    assert (predict(motion) is not None) is explains
