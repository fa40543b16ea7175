"""Tiers of the suite's tests."""

from __future__ import annotations

import pytest

from suites.tiers import FILE, is_in, load, tier_of


def test_a_tier_holds_those_below_it():
    smoke = "suites/properties/test_collectives.py::test_all_reduce_sum_equals_numpy[mirrored]"
    assert tier_of(smoke) == "smoke"
    assert [is_in(smoke, tier) for tier in ("smoke", "core", "full")] == [True, True, True]
    core = "suites/test_training.py::test_fit[mirrored-mlp-even]"
    assert [is_in(core, tier) for tier in ("smoke", "core", "full")] == [False, True, True]


@pytest.mark.parametrize("text", ["[[tier]]\nname = 'nightly'\ntests = []\n", "[[tier]]\nname = 'full'\n"])
def test_a_wrong_entry_is_shown(text):
    with pytest.raises(ValueError, match="one of"):
        load(text)


def test_the_file_is_right():
    assert load(FILE.read_text(encoding="utf-8"))
