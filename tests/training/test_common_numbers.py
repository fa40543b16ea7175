"""Common random numbers belong to examples, depend on the step, and follow the distribution that was asked for."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.ops import (
    gen_candidate_sampling_ops,
    gen_image_ops,
    gen_random_ops,
    gen_stateless_random_ops,
)

from pytest_ddl.training.common_numbers import Stream
from pytest_ddl.training.places import Rows, Shared, Unplaced
from pytest_ddl.training.replaced_draws import replaced

MANY = 2000
BLOCKS = np.array([(0, 0, 0), (1, 0, 1), (2, 0, 2), (3, 1, 0), (4, 1, 1), (5, 1, 2), (6, 1, 3), (7, 1, 4)])
"""Place, block and index in the block of 8 examples, of which two replicas have 3 and 5."""
FIRST, SECOND = BLOCKS[:3], BLOCKS[3:]
ONE_BLOCK = np.array([(place, 0, place) for place in range(MANY)])


PLAIN = Rows(0)


def _stream(rows=BLOCKS, placement=PLAIN, step=1, position=0, executed=0, in_order=False, apart=0, entry=None):
    head = tf.constant([step, executed, 2, apart], tf.int64)
    return Stream(position, placement, head, tf.constant(rows, tf.int64), 0, entry, in_order)


def _uniform(shape, *given, **options):
    return _stream(*given, **options).uniform(shape).numpy()


@pytest.mark.parametrize("in_order", [False, True])
def test_replicas_draw_the_rows_of_one_device(in_order):
    whole = _uniform((8, 3), in_order=in_order)
    parts = [_uniform((len(rows), 3), rows, in_order=in_order) for rows in (FIRST, SECOND)]
    assert np.array_equal(np.concatenate(parts), whole)
    assert bool(whole[:3].max() < 0.5 <= whole[3:].min()) is in_order


def test_the_examples_may_be_in_any_dimension_and_have_several_entries():
    second = _uniform((2, 5, 4), SECOND, Rows(1))
    assert np.array_equal(second, _uniform((2, 8, 4), BLOCKS, Rows(1))[:, 3:])
    several = _uniform((10, 4), SECOND, Rows(0, each=2))
    assert np.array_equal(several, _uniform((16, 4), BLOCKS, Rows(0, each=2))[6:])
    assert len(np.unique(several)) == several.size


def test_a_replica_with_one_example_draws_its_number_on_one_device():
    assert _uniform((1,), SECOND[:1]) == _uniform((8,))[3]


def test_a_loop_over_the_examples_draws_their_rows():
    for index in range(len(SECOND)):
        entry = tf.constant(index, tf.int64)
        assert np.array_equal(_uniform((4, 2), SECOND, entry=entry), _uniform((8, 4, 2))[3 + index])
        assert _uniform((), SECOND, entry=entry) == _uniform((8,))[3 + index]
    orders = {tuple(_stream(entry=tf.constant(index, tf.int64)).order(4).numpy()) for index in range(8)}
    assert len(orders) > 4
    beyond = [_uniform((4,), SECOND, entry=tf.constant(index, tf.int64)).tolist() for index in (5, 6)]
    assert beyond[0] == beyond[1]


@pytest.mark.parametrize("of_their_own", [False, True])
def test_micro_batches_have_the_numbers_of_their_examples(of_their_own):
    def drawn(rows):
        halves = []
        for part in range(2):
            own = {"part": part, "operation": 0} if of_their_own else {}
            placement = Rows(0, parts=2, **own)
            where = {"position": part} if of_their_own else {"executed": part}
            halves.append(_uniform((len(rows) // 2, 3), rows, placement, **where))
        return np.concatenate(halves)

    assert np.array_equal(drawn(BLOCKS)[4:], drawn(BLOCKS[4:]))


@pytest.mark.parametrize("other", [{"step": 2}, {"position": 1}, {"executed": 1}], ids=lambda other: next(iter(other)))
def test_numbers_differ_by_step_operation_and_execution(other):
    first, second = _uniform((MANY, 4), ONE_BLOCK), _uniform((MANY, 4), ONE_BLOCK, **other)
    assert abs(np.corrcoef(first.ravel(), second.ravel())[0, 1]) < 0.05


def test_numbers_are_uniform_and_independent():
    numbers = _uniform((MANY, 20), ONE_BLOCK)
    counts = np.histogram(numbers, 20, (0, 1))[0]
    expected = numbers.size / 20
    assert np.sum((counts - expected) ** 2 / expected) < 60  # chi-squared with 19 degrees of freedom
    for first, second in ((numbers[1:], numbers[:-1]), (numbers[:, 1:], numbers[:, :-1])):
        assert abs(np.corrcoef(first.ravel(), second.ravel())[0, 1]) < 0.03


def test_rows_that_do_not_fit_the_examples_get_equal_numbers():
    numbers = _uniform((7, 3))
    assert np.array_equal(numbers, np.repeat(numbers[:1], 7, axis=0))
    assert np.array_equal(numbers[:4], _uniform((4, 3), SECOND))
    assert len(np.unique(_uniform((7, 3), placement=Unplaced()))) == 1
    assert len(np.unique(_uniform((7, 3), placement=Shared()))) == 21


def test_numbers_of_no_example_differ_on_a_replica_apart():
    for shape in ((), (7, 3)):
        first, other = (_uniform(shape, placement=Shared(), apart=apart) for apart in (0, 1))
        assert not np.any(first == other)
        # Functions that are symmetric around the middle differ too.
        assert not np.any(np.isclose(first, 1 - other, atol=1e-3))
    levels = [_uniform((), placement=Unplaced(), apart=apart) for apart in (0, 1)]
    assert levels[0] < 0.05 < 0.9 < levels[1]
    assert np.array_equal(_uniform((8, 3)), _uniform((8, 3), apart=1))
    orders = [_stream(placement=Shared(), apart=apart).order(20).numpy().tolist() for apart in (0, 1)]
    assert orders[0] != orders[1]


def test_an_order_keeps_the_examples_of_a_replica_together():
    whole = _stream().order(8).numpy()
    assert np.array_equal(whole[:3], _stream(FIRST).order(3))
    assert np.array_equal(whole[3:] - 3, _stream(SECOND).order(5))
    assert sorted(whole) == list(range(8))
    orders = {tuple(_stream(step=step).order(8).numpy()) for step in range(1, 9)}
    assert len(orders) > 4
    assert sorted(_stream(placement=Shared()).order(6).numpy()) == list(range(6))
    assert list(_stream(placement=Unplaced()).order(3).numpy()) == [0, 1, 2]


def test_a_single_number_takes_both_ways_within_a_few_steps():
    levels = [float(_uniform((), placement=Shared(), step=step)) for step in range(1, 5)]
    assert levels[0] < 0.05
    assert levels[1] > 0.95
    assert {int(3 * level) for level in levels[:3]} == {0, 1, 2}
    in_a_loop = {float(_uniform((), placement=Shared(), step=2, executed=number)) < 0.5 for number in range(4)}
    assert in_a_loop == {True, False}
    pairs = [[_uniform((), placement=Shared(), step=s, position=p) for p in (0, 1)] for s in range(3, 8)]
    assert {first < second for first, second in pairs} == {True, False}


def test_xla_computes_the_same_numbers():
    @tf.function(jit_compile=True)
    def drawn(head, rows):
        stream = Stream(0, Rows(0), head, rows)
        return stream.uniform((5, 3)), stream.order(5)

    numbers, order = drawn(tf.constant([1, 0, 2, 0], tf.int64), tf.constant(SECOND, tf.int64))
    assert np.array_equal(numbers, _uniform((5, 3), SECOND))
    assert np.array_equal(order, _stream(SECOND).order(5))


def _replaced(original, *given, **options):
    drawn = original(*given, **options)
    stream = _stream(ONE_BLOCK)
    return drawn, replaced(original.__name__, drawn, original, given, options, stream)


@pytest.mark.parametrize(
    ("original", "given"),
    [
        (gen_random_ops.random_uniform, ([MANY, 2], tf.float32)),
        (gen_random_ops.random_uniform, ([MANY, 2], tf.float16)),
        (gen_random_ops.random_uniform, ([MANY, 2], tf.bfloat16)),
        (gen_random_ops.random_uniform, ([MANY, 2], tf.float64)),
        (gen_random_ops.random_standard_normal, ([MANY, 2], tf.float32)),
        (gen_random_ops.truncated_normal, ([MANY, 2], tf.float32)),
        (gen_random_ops.parameterized_truncated_normal, ([MANY, 2], 0.5, 2.0, -1.0, 3.0)),
        (gen_random_ops.random_uniform_int, ([MANY, 2], 2, 7)),
        (gen_random_ops.random_gamma, ([MANY], [0.4, 2.0, 9.0])),
        (gen_random_ops.random_poisson_v2, ([MANY], [0.3, 5.0])),
        (gen_stateless_random_ops.stateless_random_binomial, ([MANY, 2], [1, 2], [10.0, 1.0], [0.3, 0.3])),
        (gen_random_ops.multinomial, (tf.constant([[-np.inf, 0.0, 1.0, 2.0]] * MANY), 2)),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_numbers_follow_the_distribution_that_was_asked_for(original, given):
    tf.random.set_seed(1)
    drawn, numbers = _replaced(original, *given)
    assert numbers.dtype == drawn.dtype
    assert numbers.shape == drawn.shape
    plain, ours = (np.asarray(part, np.float64) for part in (drawn, numbers))
    spread = plain.std(axis=0)
    assert ours.mean(axis=0) == pytest.approx(plain.mean(axis=0), abs=0.15 * spread.max())
    assert ours.std(axis=0) == pytest.approx(spread, rel=0.15)
    if "uniform" in original.__name__:
        low, high = (2, 7) if "int" in original.__name__ else (0, 1)
        assert low <= ours.min() <= ours.max() < high


@pytest.mark.parametrize("unique", [True, False])
@pytest.mark.parametrize(
    "original",
    [
        gen_candidate_sampling_ops.log_uniform_candidate_sampler,
        gen_candidate_sampling_ops.uniform_candidate_sampler,
        gen_candidate_sampling_ops.learned_unigram_candidate_sampler,
        gen_candidate_sampling_ops.fixed_unigram_candidate_sampler,
    ],
    ids=lambda function: function.__name__,
)
def test_candidates_are_classes_with_their_expected_counts(original, unique):
    options = {"unigrams": [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]} if "fixed" in original.__name__ else {}
    drawn, ours = _replaced(original, [[1, 2], [3, 4]], 2, 4, unique, 6, **options)
    assert type(ours) is type(drawn)
    assert [(part.dtype, part.shape) for part in ours] == [(part.dtype, part.shape) for part in drawn]
    classes = ours.sampled_candidates.numpy()
    assert set(classes) <= set(range(6))
    assert not unique or len(set(classes)) == 4
    if not unique:
        assert ours.true_expected_count.numpy() == pytest.approx(drawn.true_expected_count.numpy(), rel=1e-5)


def test_parts_of_images_are_valid():
    _drawn, box = _replaced(gen_image_ops.sample_distorted_bounding_box_v2, [20, 30, 3], [[[0.0, 0, 1, 1]]], 0.1)
    assert [part.numpy().ravel().tolist() for part in box] == [[0, 0, 0], [20, 30, -1], [0, 0, 1, 1]]


def test_an_unknown_operation_is_left_alone():
    def new_distribution(shape):
        return tf.zeros(shape)

    assert _replaced(new_distribution, [3])[1] is None
