"""Numbers that a step returns in a dict or tuple have names of their own, and are compared like others."""

from __future__ import annotations

import numpy as np
import pytest

from pytest_ddl.training.values import numbers


@pytest.mark.parametrize(
    ("returned", "expected"),
    [
        ({"loss": 1.0, "mae": np.float32(2)}, {"loss/loss": 1.0, "loss/mae": 2.0}),
        ((1.0, {"mae": 2.0}), {"loss[0]": 1.0, "loss[1]/mae": 2.0}),
        ([1.0, np.zeros(3)], {"loss[0]": 1.0}),
        ((1.0,), {}),  # perhaps the only replica's
        (np.zeros(3), {}),
        ("text", {}),
        (None, {}),
    ],
    ids=str,
)
def test_single_numbers_are_named_by_their_place(returned, expected):
    assert numbers(returned, "loss") == expected
