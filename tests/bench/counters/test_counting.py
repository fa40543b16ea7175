"""The counters of steps that do a known amount of work: injected defects move the right one, refactorings none."""

from __future__ import annotations

import time
from collections import Counter as TimesOf

import counter_programs as programs
import pytest

from pytest_ddl.bench.counters.changes import compare, uncounted
from pytest_ddl.bench.launching import counting
from pytest_ddl.bench.launching.counting import reduction_ratio, wire_bytes
from pytest_ddl.bench.launching.executions import Executions
from pytest_ddl.cluster import ship
from pytest_ddl.cluster.protocol import RequestKind
from pytest_ddl.harness import process_harness
from pytest_ddl.items.selection import DdlMark
from pytest_ddl.records import CollectiveRecord, GraphRecord
from pytest_ddl.training.graphs import Executed

PARAMETERS = programs.LAYERS * programs.WIDTH**2 * 4
SYNCHRONOUS = ["mirrored", pytest.param("multi_worker_mirrored", marks=pytest.mark.slow)]


class Counts:
    """Counters of programs, each measured once for all tests."""

    def __init__(self, folder):
        self.folder = folder
        self.known = {}

    def __call__(self, strategy, *names, **settings):
        key = (strategy, *sorted(settings.items()))
        known = self.known.setdefault(key, {})
        missing = [name for name in names if name not in known]
        if missing:
            harness = process_harness()
            spec = harness.registry.parse_variant(strategy)
            with harness.cluster(spec, DdlMark(device="cpu")) as cluster:
                job = ship.pack(programs.count, (missing, str(self.folder)), settings)
                answers = cluster.ask(RequestKind.CALL, job, deadline=time.monotonic() + 300)
            assert all(answer.ok for answer in answers), [(one.failure, one.stdout, one.stderr) for one in answers]
            told = [ship.unpack(answer.body) for answer in answers]
            for name in missing:
                assert all(one[name][0].collectives == told[0][name][0].collectives for one in told)
                known[name] = told[0][name]
        return [known[name][0] for name in names]


@pytest.fixture(scope="module")
def counts(tmp_path_factory):
    return Counts(tmp_path_factory.mktemp("counts"))


def regressions(base, head):
    return {change.counter for change in compare(base, head) if change.is_regression}


@pytest.mark.nightly
@pytest.mark.parametrize("strategy", SYNCHRONOUS)
def test_what_a_right_step_does(counts, strategy):
    (right,) = counts(strategy, "right")
    scalars = 0 if strategy == "mirrored" else 1  # the loss that the loop reduces
    assert right.collectives == {"all_reduce": 1 + scalars}
    assert right.reduced_dtypes == {"float32": PARAMETERS + 4 * scalars}
    assert (right.packs, right.unpacked) == (1, scalars)
    assert right.parameter_bytes == PARAMETERS
    assert right.reduced_bytes == PARAMETERS + 4 * scalars
    assert (right.traces, right.retraces, right.steady_steps) == (1, 0, 8)
    assert (right.misplaced, right.eager, right.host_calls, right.notes) == ((), False, 0, ())
    assert reduction_ratio(right) == pytest.approx(1, rel=0.02)


INJECTED = [
    ("right", "extra all-reduce", {"collectives.all_reduce", "reduced_bytes", "unpacked"}),
    ("right", "one by one", {"collectives.all_reduce", "unpacked"}),
    ("right", "retrace", {"retraces"}),
    ("half", "cast before reduce", {"reduced_bytes"}),
    ("right", "reduced twice", {"collectives.all_reduce", "reduced_bytes"}),
    ("right", "python in the step", {"host_calls"}),
    ("right", "print in the step", {"host_calls"}),
    ("right", "summary in the step", {"host_calls"}),
    ("right", "eager", {"eager"}),
]


@pytest.mark.nightly(
    each_commit=("mirrored-right-retrace", "mirrored-right-reduced twice", "multi_worker_mirrored-right-extra all")
)
@pytest.mark.parametrize(
    ("base", "head", "caught"), [INJECTED[0], *(pytest.param(*one, marks=pytest.mark.slow) for one in INJECTED[1:])]
)
@pytest.mark.parametrize("strategy", SYNCHRONOUS)
def test_an_injected_defect_moves_its_counters_and_no_other(counts, strategy, base, head, caught):
    before, after = counts(strategy, base, head)
    found = regressions(before, after)
    # In one process, what is said on the host comes from the other replica's device.
    assert found - {"copies.device_to_device"} == caught


@pytest.mark.nightly(each_commit=("gathered on the host",))
@pytest.mark.slow
@pytest.mark.parametrize(
    ("head", "caught"),
    [
        ("wrong device", {"misplaced", "copies.device_to_device"}),
        ("gathered on the host", {"copies.device_to_device"}),
    ],
)
def test_what_lies_or_runs_on_another_device_is_caught_where_there_is_one(counts, head, caught):
    before, after = counts("mirrored", "right", head)
    assert regressions(before, after) == caught
    if head == "wrong device":
        assert after.misplaced == ("dense_last: CPU:0",)


@pytest.mark.nightly(each_commit=("mirrored-right", "multi_worker_mirrored-renamed"))
@pytest.mark.slow
@pytest.mark.parametrize("head", ["right", "renamed", "partial batches", "batches"])
@pytest.mark.parametrize("strategy", SYNCHRONOUS)
def test_an_equivalent_program_changes_nothing_that_is_gated(counts, strategy, head):
    before, after = counts(strategy, "right", head)
    assert regressions(before, after) == set()
    if head in ("right", "renamed"):
        assert compare(before, after) == []


@pytest.mark.nightly(each_commit=("mirrored",))
@pytest.mark.slow
@pytest.mark.parametrize("strategy", SYNCHRONOUS)
def test_another_batch_size_and_seed_change_nothing(counts, strategy):
    (before,) = counts(strategy, "right")
    for settings in ({"batch": 16}, {"seed": 11}):
        (after,) = counts(strategy, "right", **settings)
        assert compare(before, after) == []


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.parametrize("strategy", SYNCHRONOUS)
def test_a_larger_model_is_reported_and_passes(counts, strategy):
    before, after = counts(strategy, "right", "wider")
    found = compare(before, after)
    assert {change.counter for change in found} >= {"parameter_bytes", "reduced_bytes"}
    assert not [change for change in found if change.is_regression]


@pytest.mark.slow
def test_a_function_that_is_traced_once_more_after_the_warm_up_costs_a_block_and_is_no_retrace(counts):
    (late,) = counts("mirrored", "late trace")
    _counters, blocks, _loss = counts.known[("mirrored",)]["late trace"]
    assert (late.traces, late.retraces, blocks, late.steady_steps) == (2, 0, 2, 8)


@pytest.mark.slow
def test_a_shape_that_comes_once_an_epoch_is_traced_once_and_is_no_retrace(counts):
    (partial,) = counts("one_device", "partial batches")
    assert (partial.traces, partial.retraces, partial.steady_steps) == (2, 0, 8)


@pytest.mark.slow
def test_a_program_that_traces_on_is_measured_so_and_every_retrace_is_counted(counts):
    (retrace,) = counts("mirrored", "retrace")
    assert (retrace.retraces, retrace.steady_steps) == (8, 8)
    assert retrace.collectives == {"all_reduce": 1}


@pytest.mark.slow
def test_a_helper_that_is_traced_in_every_step_is_caught_though_it_is_no_step(counts):
    before, after = counts("one_device", "helper", "helper retraced")
    assert (before.retraces, after.retraces) == (0, 8)
    assert regressions(before, after) == {"retraces"}


@pytest.mark.slow
def test_functions_of_one_name_are_both_counted_and_a_function_of_two_shapes_once(counts):
    (both,) = counts("mirrored", "two functions")
    assert both.collectives == {"all_reduce": 2}
    assert both.reduced_bytes == (9 + 5) * 4
    assert both.retraces == 0


@pytest.mark.slow
def test_collectives_in_loops_and_branches_of_the_graph(counts):
    looped, unknown, branch = counts("multi_worker_mirrored", "in a loop", "in a loop of unknown length", "in a branch")
    assert looped.collectives == {"all_reduce": 8}
    assert (looped.reduced_bytes, looped.uncounted) == (8 * 4, ())
    assert unknown.collectives == {"all_reduce": 1}
    assert "HEAD: a loop with a collective or a call to the host is counted as one pass" in uncounted(looped, unknown)
    assert (branch.collectives, branch.conditional) == ({"all_reduce": 2}, {"all_reduce": 1})
    assert any("in a branch" in note for note in branch.notes)


@pytest.mark.slow
def test_fit_is_counted_as_a_loop_is(counts):
    (fit,) = counts("mirrored", "fit")
    parameters = (programs.WIDTH * 5 + 5 + 5 + 1) * 4
    assert (fit.collectives, fit.reduced_bytes, fit.packs) == ({"all_reduce": 1}, parameters, 1)
    assert (fit.parameter_bytes, fit.retraces, fit.eager, fit.host_calls) == (parameters, 0, False, 0)


@pytest.mark.slow
def test_steps_of_a_call_that_takes_several_are_counted_singly(counts):
    # One device only: Keras' loop fails if its body has a collective (see below).
    single, several = counts("one_device", "fit", "fit, 4 at once")
    assert (single.steady_steps, several.steady_steps) == (8, 8)
    assert not [change for change in compare(single, several) if change.is_regression]


class Keras:
    """Counters for a graph that holds several steps one after the other."""

    def __init__(self, steps_per_call=1, unrolled_steps=1):
        self.steps_per_call, self.unrolled_steps, self.notes = steps_per_call, unrolled_steps, []

    def remark(self, text):
        self.notes.append(text)


def collective(number):
    return CollectiveRecord("all_reduce", "SUM", (number,), "float32", "")


def of_graph(counts, **given):
    return Executed(
        GraphRecord("train", 0, nodes=9), {collective(size): number for size, number in counts.items()}, **given
    )


def counted(executed, watch, times=1):
    ran = [(executed, times, [])]
    found = counting.collectives(ran, watch, counting._steps_of_call(ran, watch))
    return {item.shape[0]: number for item, number in found.items()}


def test_steps_of_one_call_count_singly_looped_or_unrolled():
    # TensorFlow 2.21 cannot run this: a collective in the body of Keras' loop is not given its key.
    assert counted(of_graph({4: 6, 1: 6}), Keras(6, 2)) == {4: 1, 1: 1}
    assert counted(of_graph({4: 2, 1: 2}, unknown=("while",)), Keras(6, 2)) == {4: 1, 1: 1}
    assert counted(of_graph({4: 6, 1: 6}), Keras()) == {4: 6, 1: 6}


def test_collectives_that_the_steps_of_a_call_do_not_divide_are_reported():
    watch = Keras(2, 2)
    assert counted(of_graph({4: 2, 1: 1}), watch) == {4: 2, 1: 1}
    assert "those of 2 steps" in watch.notes[0]


class Warm:
    """A warm-up whose steps ran graphs, each an all-reduce of its own size."""

    def __init__(self, *steps):
        self.steps, self.notes, self.executions = [TimesOf(step) for step in steps], [], self

    def graph(self, key):
        return key

    def remark(self, text):
        self.notes.append(text)


def test_a_step_of_the_warm_up_that_does_more_than_the_last_is_reported(monkeypatch):
    monkeypatch.setattr(counting.graphs, "executed", lambda size: of_graph({size: 1}))
    same, less, more = Warm([4], [4]), Warm([4], [5], [4, 5]), Warm([4, 5], [4, 4, 5], [4], [7])
    for warm in (same, less, more):
        counting._note_other_steps(warm)
    assert (same.notes, less.notes) == ([], [])
    (note,) = more.notes
    assert note.startswith("2 of 4 steps of the warm-up had more collectives (3 all_reduce) than the last")


def test_a_graph_that_a_step_runs_twice_counts_twice():
    assert counted(of_graph({4: 1}), Keras(), times=3) == {4: 3}


def test_each_step_that_was_watched_is_counted():
    executions = Executions(lambda _text: None)
    first, second = object(), object()
    for number, graphs_of_step in enumerate([[first, second], [first], [first], [first, second, second], [first]]):
        for graph in graphs_of_step:
            executions._executed(graph, [])
        executions.end_step()
        if number == 2:
            executions.end_warm_up(watch_on=True)
    assert [one for one, times, _parts in executions.last_step] == [first]
    assert len(executions.steps) == 2
    assert [step[id(second)] for step, _eager in executions.counted] == [0, 0, 2, 0]


def test_what_a_step_does_has_the_names_of_the_comparison():
    ran = [(of_graph({4: 2, 1: 1}, host_calls=1), 2, [])]
    found = counting.of_step(ran)
    sizes = 2 * (2 * 16 + 4)
    assert found == {"collectives.all_reduce": 6, "reduced_bytes": sizes, "unpacked": 6, "host_calls": 2}


@pytest.mark.slow
def test_central_storage_reduces_by_copies_and_says_so(counts):
    (fit,) = counts("central_storage", "fit")
    assert fit.collectives == {}
    assert fit.copies["device_to_device"] >= 2 * 4  # four variables there, four gradients back
    assert any("central_storage" in note for note in fit.notes)
    assert fit.executions >= 1
    assert fit.kernels > 0
    assert fit.misplaced == ()


@pytest.mark.slow
def test_dtensor_inserts_its_collectives_late_and_they_are_counted(counts):
    (fit,) = counts("model_parallel", "keras loop")
    assert fit.collectives["all_reduce"] >= 1
    assert any("DTensor" in note for note in fit.notes)
    assert fit.misplaced == ()


@pytest.mark.slow
def test_parameter_server_says_what_cannot_be_counted(counts):
    (one,) = counts("parameter_server", "keras loop")
    assert (one.collectives, one.copies, one.misplaced, one.eager) == ({}, None, (), False)
    assert one.nodes > 50
    assert any("copies were not counted" in note for note in one.notes)
    assert "steps of parameter_server run on workers" in uncounted(one, one)


def test_wire_bytes_are_those_of_a_ring():
    assert wire_bytes(1000, 1) == 0
    assert wire_bytes(1000, 2) == 1000
    assert wire_bytes(1000, 4) == 1500
