"""Tiers of the suite's tests."""

from __future__ import annotations

from pathlib import Path

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


@pytest.mark.parametrize("file", [FILE, Path(__file__).parents[1] / "tiers.toml"])
def test_the_file_is_right(file):
    assert load(file.read_text(encoding="utf-8"))


def test_one_in_some_tests_stays_in_the_default(tmp_path):
    file = tmp_path / "tiers.toml"
    file.write_text("[[tier]]\nname = 'full'\none_in = 4\ntests = ['test_a']\n")
    ids = [f"test_a.py::test[{number}]" for number in range(400)]
    default = [one for one in ids if tier_of(one, file) == "core"]
    assert 60 < len(default) < 140
    assert {tier_of(one, file) for one in ids} == {"core", "full"}
    assert tier_of("test_b.py::test", file) == "core"
