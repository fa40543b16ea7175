"""Choice of few cases that cover all pairs."""

from __future__ import annotations

from itertools import combinations, product

from suites.pairwise import pairwise

DIMENSIONS = {"one": ("a", "b", "c"), "two": ("x", "y"), "three": ("k", "l", "m", "n")}


def pairs(case):
    return {frozenset(pair) for pair in combinations(case.items(), 2)}


def every_pair():
    return {
        frozenset({(first, one), (second, other)})
        for first, second in combinations(DIMENSIONS, 2)
        for one, other in product(DIMENSIONS[first], DIMENSIONS[second])
    }


def test_every_pair_occurs_in_few_cases():
    cases = pairwise(DIMENSIONS)
    assert set().union(*map(pairs, cases)) == every_pair()
    assert len(cases) <= 14 < 3 * 2 * 4
    assert pairwise(DIMENSIONS) == cases


def test_no_case_has_what_does_not_go_together():
    def allowed(case):
        return not (case.get("one") == "a" and case.get("three") == "k")

    cases = pairwise(DIMENSIONS, allowed)
    assert set().union(*map(pairs, cases)) == every_pair() - {frozenset({("one", "a"), ("three", "k")})}


def test_a_pair_that_no_whole_case_may_have_is_left_out():
    def allowed(case):
        return not (case.get("one") == "a" and case.get("two") in ("x", "y"))

    assert all(case["one"] != "a" for case in pairwise(DIMENSIONS, allowed))
