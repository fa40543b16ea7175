"""Weights of a weighted sum of gradients: found if they are the only ones, whatever other variables do."""

from __future__ import annotations

import numpy as np

from pytest_ddl.equivalence.evidence.combination import solve

PARTS = [{0: np.array([1.0, 2.0, 5.0])}, {0: np.array([3.0, 1.0, -1.0])}]
WHOLE = {0: PARTS[0][0] + 2 * PARTS[1][0]}


def test_weights_are_found() -> None:
    found = solve(WHOLE, PARTS, {0: 1e-12})
    assert found is not None
    assert found.are([1.0, 2.0])


def test_a_gradient_that_is_zero_everywhere_hides_no_weights() -> None:
    # Its slack is 0. The bias behind the difference of two outputs of a critic has such a gradient.
    zero = np.zeros(1)
    found = solve({**WHOLE, 1: zero}, [{**part, 1: zero} for part in PARTS], {0: 1e-12, 1: 0.0})
    assert found is not None
    assert found.are([1.0, 2.0])


def test_a_gradient_without_slack_is_not_ignored_if_one_part_has_it() -> None:
    zero, one = np.zeros(1), np.ones(1)
    parts = [{**PARTS[0], 1: one}, {**PARTS[1], 1: zero}]
    assert solve({**WHOLE, 1: zero}, parts, {0: 1e-12, 1: 0.0}) is None
