"""The gate on counters: exact both ways, without a machine."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pytest_ddl.bench.counters.changes import NAMES, REFUSED, compare, compare_launches, explained_bytes, uncounted
from pytest_ddl.bench.launching.records import Counters

BASE = Counters(
    collectives={"all_reduce": 2},
    reduced_bytes=1004,
    packs=1,
    unpacked=1,
    nodes=300,
    executions=1,
    kernels=90,
    traces=1,
    steady_steps=200,
    parameter_bytes=1000,
    reduced_dtypes={"float32": 1004},
    copies={"device_to_device": 3},
)


def changed(**given):
    return replace(BASE, **given)


def only(base, head, **settings):
    (change,) = compare(base, head, **settings)
    return change


REGRESSIONS = [
    ("collectives.all_reduce", changed(collectives={"all_reduce": 3}), "1 more all_reduce per step (2 -> 3)"),
    ("collectives.broadcast", changed(collectives={"all_reduce": 2, "broadcast": 6}), "ONLY_FIRST_REPLICA"),
    ("collectives.all_gather", changed(collectives={"all_reduce": 2, "all_gather": 1}), "Gather it only when needed"),
    ("reduced_bytes", changed(reduced_bytes=2004, reduced_dtypes={"float32": 2004}), "1 -> 2 times the parameters"),
    ("gathered_bytes", changed(gathered_bytes=64), "0 bytes -> 64 bytes gathered and broadcast"),
    ("unpacked", changed(unpacked=4), "3 more reductions of a single tensor (1 -> 4; packs 1 -> 1)"),
    ("retraces", changed(retraces=1), "1 in 200 steady steps"),
    ("copies.device_to_device", changed(copies={"device_to_device": 4}), "1 more tensors copied device to device"),
    ("copies.device_to_host", changed(copies={"device_to_device": 3, "device_to_host": 1}), "a summary, a print"),
    ("host_calls", changed(host_calls=2), "tf.py_function"),
    ("misplaced", changed(misplaced=("kernel: CPU:0",)), "kernel: CPU:0"),
    ("steady_steps", changed(steady_steps=0), "nothing to compare"),
]


@pytest.mark.parametrize(("counter", "head", "words"), REGRESSIONS, ids=[name for name, _head, _words in REGRESSIONS])
def test_more_is_a_regression_and_less_is_reported_as_an_improvement(counter, head, words):
    worse = only(BASE, head)
    assert (worse.counter, worse.is_regression) == (counter, True)
    assert words in worse.message
    if counter != "steady_steps":
        better = only(head, BASE)
        assert (better.counter, better.is_regression) == (counter, False)


def test_nothing_changed_is_nothing():
    assert compare(BASE, replace(BASE)) == []


def test_how_long_was_measured_is_no_change():
    assert compare(BASE, changed(steady_steps=520)) == []


@pytest.mark.parametrize("changes", [{"nodes": 900}, {"executions": 2}, {"kernels": 91}, {"traces": 4}, {"packs": 2}])
def test_what_costs_nothing_by_itself_is_reported_alone(changes):
    assert not only(BASE, changed(**changes)).is_regression


def test_kernels_that_one_version_did_not_count_are_no_change():
    assert compare(changed(kernels=0), BASE) == compare(BASE, changed(kernels=0)) == []
    with pytest.raises(ValueError, match="only reported"):
        compare(BASE, changed(kernels=91), accept={"kernels": "another layer"})


def test_steps_that_become_eager_are_one_regression_and_their_collectives_none():
    lost = replace(BASE, eager=True, collectives={}, reduced_bytes=0, packs=0, unpacked=0)
    eager = only(BASE, lost)
    assert eager.counter == "eager"
    assert "@tf.function" in eager.message
    assert [change.is_regression for change in compare(lost, BASE)] == [False]


@pytest.mark.parametrize("side", [0, 1])
def test_graphs_that_could_not_be_counted_are_neither_better_nor_worse_and_are_reported(side):
    lost = changed(
        nodes=0,
        collectives={},
        reduced_bytes=0,
        packs=0,
        unpacked=0,
        copies=None,
        notes=("graphs were not counted: why",),
    )
    pair = (lost, BASE) if side == 0 else (BASE, lost)
    found = only(*pair)
    assert (found.counter, found.is_regression) == ("nodes", False)
    name = ("BASE", "HEAD")[side]
    assert f"The graphs of {name} were not counted" in found.message
    assert uncounted(*pair) == f"no graph of {name} could be counted: graphs were not counted: why"


def test_what_was_counted_in_both_can_be_compared():
    assert uncounted(BASE, changed(collectives={"all_reduce": 9}, retraces=3)) == ""


@pytest.mark.parametrize("pair", [(True, True), (True, False), (False, True)])
def test_eager_steps_cannot_be_compared_whatever_small_graphs_they_have(pair):
    told = uncounted(*(changed(eager=eager, nodes=7) for eager in pair))
    assert [name in told for name in ("the steps of BASE run eagerly", "the steps of HEAD run eagerly")] == list(pair)


def test_loops_of_unknown_length_and_copies_of_one_side_cannot_be_compared():
    assert uncounted(BASE, changed(uncounted=("a loop of unknown length",))) == "HEAD: a loop of unknown length"
    assert uncounted(changed(uncounted=("steps run elsewhere",)), BASE) == "BASE: steps run elsewhere"
    assert "copies of HEAD were not counted: why" in uncounted(BASE, changed(copies=None, notes=("why",)))
    assert uncounted(changed(copies=None), changed(copies=None)) == ""


def test_copies_that_were_not_counted_are_not_compared():
    assert compare(changed(copies=None), BASE) == []
    assert compare(BASE, changed(copies=None)) == []


def test_a_cast_before_the_reduction_is_named():
    half = changed(reduced_bytes=504, reduced_dtypes={"float16": 500, "float32": 4})
    found = only(half, BASE)
    assert found.counter == "reduced_bytes"
    assert "tensors that were reduced as float16 are cast to float32" in found.message


def test_gradients_that_are_reduced_one_by_one_are_named():
    head = changed(collectives={"all_reduce": 9}, packs=0, unpacked=9)
    found = {change.counter: change for change in compare(BASE, head)}
    assert "reduced one by one" in found["collectives.all_reduce"].message
    assert found["collectives.all_reduce"].is_regression
    assert found["unpacked"].is_regression
    assert not found["packs"].is_regression


def test_gradients_that_are_reduced_twice_are_named():
    head = changed(collectives={"all_reduce": 3}, packs=2, reduced_bytes=2004)
    assert (
        "reduced twice" in {change.counter: change for change in compare(BASE, head)}["collectives.all_reduce"].message
    )


@pytest.mark.parametrize("factor", [0.25, 0.5, 1, 1.5, 2, 10])
@pytest.mark.parametrize("dtype_size", [1, 2, 4])
@pytest.mark.parametrize("rest", [0, 4, 96])
def test_a_model_of_another_size_explains_its_bytes_whatever_the_dtype_of_its_gradients(factor, dtype_size, rest):
    base = changed(parameter_bytes=4000, reduced_bytes=1000 * dtype_size + rest)
    head = changed(parameter_bytes=int(4000 * factor), reduced_bytes=int(1000 * factor) * dtype_size + rest)
    assert head.reduced_bytes <= explained_bytes(base, head)
    assert not any(change.is_regression for change in compare(base, head))
    twice = replace(head, reduced_bytes=2 * head.reduced_bytes + 200)
    assert [change.counter for change in compare(base, twice) if change.is_regression] == ["reduced_bytes"]


def test_of_a_model_that_is_not_watched_nothing_explains_more_bytes():
    base, head = changed(parameter_bytes=0), changed(parameter_bytes=0, reduced_bytes=1008)
    assert "the program watches no model" in only(base, head).message


def test_retraces_are_held_against_as_many_steps():
    base = changed(retraces=10, steady_steps=100)
    assert compare(base, changed(retraces=20, steady_steps=200)) == []
    assert not only(base, changed(retraces=21, steady_steps=200)).is_regression
    assert only(base, changed(retraces=61, steady_steps=200)).is_regression
    assert not only(base, changed(retraces=0)).is_regression
    assert compare(changed(retraces=200), changed(retraces=520, steady_steps=520)) == []


def test_launches_give_their_worst_and_their_retraces_together():
    assert compare_launches([]) == []
    worse = changed(host_calls=1)
    (change,) = compare_launches([(BASE, BASE), (BASE, worse), (BASE, BASE)])
    assert (change.counter, change.is_regression) == ("host_calls", True)
    ragged = [(changed(retraces=before), changed(retraces=after)) for before, after in ((9, 14), (13, 8), (7, 11))]
    (told,) = compare_launches(ragged)
    assert (told.base, told.head, told.is_regression) == (29, 33, False)
    assert "not clearly more" in told.message
    (accepted,) = compare_launches([(BASE, changed(retraces=4))] * 2, {"retraces": "ragged on purpose"})
    assert (accepted.head, accepted.is_regression) == (8, False)


def test_a_launch_that_measured_nothing_is_a_regression_among_others():
    found = compare_launches([(BASE, BASE), (BASE, changed(steady_steps=0))])
    assert [change.counter for change in found if change.is_regression] == ["steady_steps"]


def test_the_message_of_a_collective_names_all_that_has_to_be_accepted():
    head = changed(collectives={"all_reduce": 3}, reduced_bytes=1008, unpacked=2, conditional={"all_reduce": 1})
    found = {change.counter: change.message for change in compare(BASE, head)}
    assert "In HEAD, 1 are in a branch" in found["collectives.all_reduce"]
    told = "If this is intended, accept collectives.all_reduce, reduced_bytes, unpacked."
    assert found["collectives.all_reduce"].endswith(told)
    names = told.removesuffix(".").split("accept ")[1].split(", ")
    assert not any(change.is_regression for change in compare(BASE, head, dict.fromkeys(names, "a metric")))


def test_gathered_parameters_may_grow_as_the_parameters_do():
    base = changed(gathered_bytes=500)
    grown = changed(parameter_bytes=2000, gathered_bytes=1000)
    assert not any(change.is_regression for change in compare(base, grown))
    assert any(change.is_regression for change in compare(base, replace(grown, gathered_bytes=1001)))


def test_a_misplaced_variable_that_was_renamed_is_no_change():
    assert compare(changed(misplaced=("a: CPU:0",)), changed(misplaced=("b: CPU:0",))) == []


def test_what_is_accepted_is_reported_with_its_reason():
    head = changed(collectives={"all_reduce": 3}, host_calls=1)
    found = compare(BASE, head, accept={"collectives.all_reduce": "global norm for clipping"})
    assert [(change.counter, change.is_regression) for change in found] == [
        ("host_calls", True),
        ("collectives.all_reduce", False),
    ]
    assert found[1].message.endswith("Accepted: global norm for clipping")


@pytest.mark.parametrize("name", NAMES)
def test_every_counter_can_be_accepted(name):
    assert compare(BASE, BASE, accept={name: "reason"}) == []


@pytest.mark.parametrize("name", REFUSED)
def test_what_would_hide_all_else_cannot_be_accepted(name):
    with pytest.raises(ValueError, match=f"'{name}' cannot be accepted: "):
        compare(BASE, BASE, accept={name: "reason"})


def test_an_unknown_name_or_no_reason_is_refused():
    with pytest.raises(ValueError, match=r"'all_reduce' is not a counter; valid: collectives\.all_gather"):
        compare(BASE, BASE, accept={"all_reduce": "reason"})
    with pytest.raises(ValueError, match="'unpacked' needs a reason"):
        compare(BASE, BASE, accept={"unpacked": " "})


def test_a_kind_that_is_new_to_us_can_be_accepted_where_it_was_seen():
    head = changed(collectives={"all_reduce": 2, "permute": 1})
    assert only(BASE, head).is_regression
    assert not only(BASE, head, accept={"collectives.permute": "ring attention"}).is_regression


def of_steps(*values, **given):
    """Counters of a program whose steps have so many collectives."""
    return changed(of_steps={"eager": (0,) * len(values), "collectives.all_reduce": values}, **given)


def test_work_of_some_steps_only_is_a_regression():
    change = only(of_steps(2, 2, 2, 2), of_steps(2, 2, 3, 2))
    assert (change.counter, change.is_regression) == ("collectives.all_reduce", True)
    assert "1 more in 4 counted steps (8 -> 9; at most 2 -> 3 in one step)" in change.message
    assert "the first of them is step 4" in change.message


def test_the_same_work_in_other_steps_is_none():
    assert compare(of_steps(2, 3, 2, 2), of_steps(2, 2, 2, 3)) == []
    assert compare(of_steps(2, 3, 2, 3), of_steps(2, 2, 2, 2)) == []


def test_only_steps_that_both_versions_counted_are_compared():
    assert compare(of_steps(2, 2), of_steps(2, 2, 2, 9)) == []
    assert compare(changed(), of_steps(2, 2, 9)) == []


def test_work_of_some_steps_may_be_accepted_and_is_said_once():
    accept = {"collectives.all_reduce": "a metric in every third step"}
    assert not only(of_steps(2, 2, 2), of_steps(2, 2, 3), accept=accept).is_regression
    (change,) = compare(of_steps(2, 2), of_steps(3, 3, collectives={"all_reduce": 3}))
    assert "per step (2 -> 3)" in change.message


def test_a_step_that_does_less_at_the_end_of_the_warm_up_does_not_hide_the_others():
    change = only(of_steps(2, 2, 2), of_steps(3, 3, 1, collectives={"all_reduce": 1}))
    assert change.is_regression


def test_some_eager_steps_are_a_regression():
    before, after = (changed(of_steps={"eager": eager}) for eager in ((0, 0, 0), (0, 1, 0)))
    assert (only(before, after).counter, only(before, after).is_regression) == ("eager", True)


def test_bytes_of_steps_may_grow_with_the_parameters():
    before = changed(of_steps={"eager": (0, 0), "reduced_bytes": (1000, 1004)})
    larger = changed(
        of_steps={"eager": (0, 0), "reduced_bytes": (2000, 2008)}, reduced_bytes=2008, parameter_bytes=2000
    )
    assert not any(change.is_regression for change in compare(before, larger))
    more = replace(larger, of_steps={"eager": (0, 0), "reduced_bytes": (2000, 2009)})
    assert [change.counter for change in compare(before, more) if change.is_regression] == ["reduced_bytes"]
