"""Counters of several ranks as one."""

from __future__ import annotations

from dataclasses import fields, replace

from pytest_ddl.bench.launching.launch import of_all_ranks
from pytest_ddl.bench.launching.records import Counters

ONE = Counters(
    collectives={"all_reduce": 2}, reduced_bytes=8, nodes=30, traces=1, steady_steps=40, copies={"device_to_host": 1}
)


def test_ranks_that_agree_are_as_one():
    assert of_all_ranks([ONE, ONE]) == ONE
    assert of_all_ranks([ONE]) == ONE


def test_the_rank_that_does_most_counts_and_what_differs_is_reported():
    other = replace(ONE, collectives={"all_reduce": 1, "broadcast": 3}, host_calls=2, eager=True, steady_steps=38)
    merged = of_all_ranks([ONE, other])
    assert merged.collectives == {"all_reduce": 2, "broadcast": 3}
    assert (merged.host_calls, merged.eager, merged.steady_steps) == (2, True, 38)
    (note,) = merged.notes
    assert note.startswith(
        "ranks differ, and the largest value is compared: collectives {'all_reduce': 2}, {'all_reduce': 1"
    )
    assert "host_calls 0, 2" in note


def test_notes_of_all_ranks_are_kept_once():
    told = replace(ONE, notes=("a", "b"), uncounted=("loop",))
    merged = of_all_ranks([replace(ONE, notes=("a",)), told, told])
    assert (merged.notes, merged.uncounted) == (("a", "b"), ("loop",))


def test_what_no_rank_counted_stays_unknown_and_what_one_did_is_kept():
    unknown = replace(ONE, copies=None)
    assert of_all_ranks([unknown, unknown]).copies is None
    assert of_all_ranks([unknown, ONE]).copies == {"device_to_host": 1}


def test_every_counter_is_merged():
    assert {item.name for item in fields(of_all_ranks([ONE, replace(ONE, misplaced=("v: CPU:0",))]))} == {
        item.name for item in fields(Counters)
    }
    assert of_all_ranks([ONE, replace(ONE, misplaced=("v: CPU:0",))]).misplaced == ("v: CPU:0",)
