"""A run does no work twice around the program, counted without a clock."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import cost_programs as programs

InRank = Callable[[str, Callable[[], Any]], list[Any]]


def test_a_run_collects_garbage_once_over_the_graphs_of_all_earlier_runs(in_rank: InRank) -> None:
    assert in_rank("one_device", programs.collections) == [[2]]


def test_an_attribute_of_a_model_that_is_built_costs_few_calls(in_rank: InRank) -> None:
    ((bare, observed),) = in_rank("one_device", programs.calls_for_an_attribute)
    # The replacement itself, and the question whether this is a replica.
    assert observed - bare <= 8, (bare, observed)
