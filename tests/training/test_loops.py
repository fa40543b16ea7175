"""Loops of graphs, counted as often as they run if the graph shows that number."""

from __future__ import annotations

import pytest
import tensorflow as tf

from pytest_ddl.training.graphs import analyse, executed


def reduced(x):
    """An all-reduce, of which there is nothing to run here."""
    return tf.raw_ops.CollectiveReduceV2(
        input=x, group_size=1, group_key=1, instance_key=1, ordering_token=[], merge_op="Add", final_op="Id"
    )


def counted(function, *arguments):
    graph = tf.function(function).get_concrete_function(*arguments).graph
    found = executed(graph)
    assert len(analyse(graph, 0).collectives) <= 2  # as before: a body once
    return sum(found.collectives.values()), found


X = tf.zeros((3,))


def ranged(limit):
    def step(x):
        for _ in tf.range(limit):
            x = reduced(x)
        return x

    return step


@pytest.mark.parametrize("passes", [0, 1, 8, 300])
def test_a_loop_over_a_constant_range_counts_its_passes(passes):
    number, found = counted(ranged(passes), X)
    assert (number, found.unknown) == (passes, ())


def test_ranges_with_a_start_and_a_step_and_loops_in_loops_multiply():
    def step(x):
        for _ in tf.range(2, 11, 3):
            for _ in tf.range(4):
                x = reduced(x)
        return reduced(x)

    number, found = counted(step, X)
    assert (number, found.unknown) == (3 * 4 + 1, ())


def test_while_counts_what_its_condition_tells_and_a_loop_that_may_end_early_counts_whole():
    def step(x):
        number = tf.constant(5)
        while number > 0 and tf.reduce_sum(x) < 1.0:
            x = reduced(x)
            number -= 1
        return x

    number, found = counted(step, X)
    assert (number, found.unknown) == (5, ())

    def broken(x):
        for _ in tf.range(7):
            x = reduced(x)
            if tf.reduce_sum(x) > 1.0:
                break
        return x

    number, found = counted(broken, X)
    assert (number, found.unknown) == (7, ())


def test_functions_that_are_called_count_as_often_as_they_are():
    @tf.function
    def inner(x):
        for _ in tf.range(3):
            x = reduced(x)
        return x

    def step(x):
        for _ in tf.range(2):
            x = inner(x)
        return x

    number, found = counted(step, X)
    assert (number, found.unknown) == (6, ())


def test_a_loop_of_unknown_length_counts_once_and_is_named():
    def step(x, passes):
        for _ in tf.range(passes):
            x = reduced(x)
        return x

    number, found = counted(step, X, tf.constant(3))
    assert number == 1
    assert found.unknown == ("while",)


def test_a_loop_over_a_dataset_is_of_unknown_length():
    data = tf.data.Dataset.range(4)

    def step(x):
        for _ in data:
            x = reduced(x)
        return x

    number, found = counted(step, X)
    assert number == 1
    assert len(found.unknown) == 1


def test_a_loop_of_unknown_length_without_collectives_does_not_matter():
    def step(x, passes):
        for _ in tf.range(passes):
            x += 1.0
        return reduced(x)

    number, found = counted(step, X, tf.constant(3))
    assert (number, found.unknown) == (1, ())


def test_calls_to_the_host_count_as_often_as_they_are_made():
    def step(x):
        for _ in tf.range(6):
            tf.print(x)
        return x

    _number, found = counted(step, X)
    assert found.host_calls == 6


def test_collectives_of_one_branch_are_reported_and_those_of_both_are_not():
    def step(x, number):
        if number % 100 == 0:
            x = reduced(x)
        return x

    number, found = counted(step, X, tf.constant(3))
    assert (number, found.conditional) == (1, {"all_reduce": 1})

    def both(x, number):
        return tf.cond(number % 100 == 0, lambda: reduced(x), lambda: 2.0 * reduced(x))

    number, found = counted(both, X, tf.constant(3))
    assert (number, found.conditional) == (1, {})
