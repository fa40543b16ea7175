"""List of equations: it is complete, and its tests exist."""

from __future__ import annotations

import pytest

from suites.equations import Equation, equations, ids, load, report
from suites.proofs import all_tests

ENTRY = '[[equation]]\nid = "C01"\nwhat = "A sum."\ntruth = ["arithmetic"]\n'


def test_the_file_has_every_equation_once_in_order():
    assert [one.id for one in equations()] == ids()


def test_every_named_test_exists():
    known = {*all_tests(), *all_tests(("regressions/test_*.py",))}
    lost = {test: one.id for one in equations() for test in one.tests if test not in known}
    assert not lost


def test_an_equation_names_a_test_once():
    assert not [one.id for one in equations() if len(set(one.tests)) < len(one.tests)]


def test_texts_are_sentences_or_reasons():
    for one in equations():
        assert one.what.endswith("."), one.id
        assert not one.part.endswith("."), one.id
        assert not one.untested or len(one.untested.split()) > 3, one.id


@pytest.mark.parametrize(
    ("rest", "told"),
    [
        ("", "C01 needs tests"),
        ('tests = ["a"]\nuntested = "no"', "and not both"),
        ('tests = ["a"]\nwhy = "no"', "unknown"),
    ],
)
def test_a_wrong_entry_is_shown(rest, told):
    with pytest.raises(ValueError, match=told):
        load(ENTRY + rest)


def test_tests_and_the_missing_part_follow_from_quantities():
    """A claim that nobody can check is refused: the quantities say what is compared, and what is not."""
    entry = '[[equation]]\nid = "C01"\nwhat = "Losses and rates are right."\ntruth = ["arithmetic"]\n'
    (found,) = load(entry + 'quantities = { Losses = ["a", "b"], rates = [] }')
    assert (found.tests, found.part) == (("a", "b"), "rates")
    for wrong in ('tests = ["a"]\nquantities = { Losses = ["a"] }', 'quantities = { weights = ["a"] }'):
        with pytest.raises(ValueError, match="C01"):
            load(entry + wrong)


def test_entries_that_were_refuted_name_their_quantities():
    assert all(one.quantities and not one.part for one in equations() if one.id in ("F04", "F13", "F19", "F23"))


def test_the_report_counts_and_tells_what_is_missing():
    truth, tests = ("arithmetic",), ("a",)
    found = [
        Equation("C01", "A sum.", truth, tests),
        Equation("C02", "A mean.", truth, tests, part="means of integers"),
        Equation("C03", "A gather.", truth, untested="it needs GPUs"),
        Equation("C04", "A maximum.", truth, tests, quantities={"maximum": tests}),
    ]
    assert report(found).splitlines() == [
        "4 equations: 2 tested as a whole, 1 of them quantity by quantity, 1 in part, 1 not",
        "C02 in part, without: means of integers",
        "C03 not tested: it needs GPUs",
    ]
