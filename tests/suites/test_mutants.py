"""Mutants of Keras: how they are made, planted and drawn, and what is counted."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections import Counter
from itertools import product
from textwrap import dedent

import pytest

from suites.defects import planted
from suites.mutants import making, sampling
from suites.mutants.forking import results
from suites.mutants.making import Mutant, find, of_file

SOURCE = '''
def smallest(x, y=1, *, strict=False):
    """Return the smaller one of 1 and 2."""
    if x < y and not strict:
        return max(x, y, key=abs)
    else:
        y = y + 0
    if backend() == "torch":
        y = y * 2
    if y is None:
        raise ValueError(f"received {x + y} and 3")
    return (
        x
        - y
    )


class Sum:
    def __repr__(self):
        return "sum" + "1"

    def add(self, values, axis=-1):
        def inner(value):
            self.total += value

        for value in values:
            inner(value)
        return self.total
'''
FILE = "ops/of_a_test.py"
TWICE = ("default", "and, or, not", "comparison", "input returned", "arithmetic")
ONCE = ("branches swapped", "without key=", "else dropped", "statement dropped", "constant", "refusal dropped")


@pytest.fixture
def module(tmp_path, monkeypatch):
    """Return a module that is in the place of one of Keras."""
    (tmp_path / "ops").mkdir()
    (tmp_path / FILE).write_text(SOURCE)
    monkeypatch.setattr(making, "root", lambda: tmp_path)
    name = "keras.src.ops.of_a_test"
    spec = importlib.util.spec_from_file_location(name, tmp_path / FILE)
    assert spec is not None
    assert spec.loader is not None
    found = importlib.util.module_from_spec(spec)
    found.backend = lambda: "tensorflow"
    spec.loader.exec_module(found)
    monkeypatch.setitem(sys.modules, name, found)
    yield found
    making.source.cache_clear()
    making.of_file.cache_clear()


def _by(kind: str, function: str = "smallest") -> list[Mutant]:
    return [one for one in of_file(FILE) if one.kind == kind and one.function == function]


def test_mutants_are_of_code_that_runs(module):
    counted = Counter((one.function, one.kind) for one in of_file(FILE))
    assert counted == {
        **dict.fromkeys(product(["smallest"], TWICE), 2),
        **dict.fromkeys(product(["smallest"], ONCE), 1),
        ("Sum.add", "default"): 1,
        ("Sum.add", "input returned"): 1,
        ("Sum.add", "statement dropped"): 2,
    }
    assert {one.mutated().count("\n") for one in of_file(FILE)} == {SOURCE.count("\n")}
    assert [find(one.name) for one in of_file(FILE)] == of_file(FILE)


def test_a_mutant_is_planted_and_removed(module):
    (changed,) = [one for one in _by("arithmetic") if "x" in one.shown()]
    before = module.smallest
    assert before(7, 2) == 5
    with planted(changed.name):
        assert before(7, 2) == 9
    assert before(7, 2) == 5


def test_a_default_value_is_planted(module):
    (first, second) = _by("default")
    with planted(first.name):
        assert module.smallest(3) == 3
    with planted(second.name):
        assert module.smallest(0) == -1
    assert (module.smallest(3), module.smallest(0)) == (2, 1)


def test_code_inside_a_function_is_planted(module):
    (dropped,) = [one for one in _by("statement dropped", "Sum.add") if "+=" in one.shown()]
    total = module.Sum()
    total.total = 0
    with planted(dropped.name):
        assert total.add([1, 2]) == 0
    assert total.add([1, 2]) == 3


def test_there_is_no_such_mutant(module):
    with pytest.raises(KeyError, match="has no such mutant"), planted(f"{FILE}:1:2:comparison"):
        pass


def test_a_seed_draws_each_file_by_its_mutants(module, monkeypatch):
    monkeypatch.setattr(sampling, "files", lambda: [FILE])
    drawn = [[one.name for one in sampling.sample(seed, 6)] for seed in (1, 1, 2)]
    assert drawn[0] == drawn[1] != drawn[2]
    assert len({*drawn[0]}) == 6


def test_the_table_counts_each_folder():
    found = [{"folder": "ops", "outcome": "caught"}, {"folder": "losses", "outcome": "missed"}]
    expected = """\
        | folder | mutants | caught | by new tests | missed | not reached |
        | --- | --- | --- | --- | --- | --- |
        | `losses` | 1 | 0 | 0 | 1 | 0 |
        | `ops` | 1 | 1 | 0 | 0 | 0 |
        | all | 2 | 1 | 0 | 1 | 0 |
        """
    assert sampling.table(found) == dedent(expected)


def test_a_copy_that_dies_has_no_result():
    def dies() -> None:
        os._exit(3)

    assert dict(results([("one", lambda: 1), ("other", dies)], 2, 60)) == {"one": 1, "other": None}
