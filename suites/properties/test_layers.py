"""Check layers on replicas with other data: attention, recurrent layers, shared weights and random layers."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest

from suites import subject
from suites.properties.layers import BOUND, STRATEGIES, by_replica, check, rows
from suites.running import SIZES, components, replicas_of
from suites.tables.layers import attention, recurrent

pytestmark = pytest.mark.usefixtures("float64")

FEATURES, UNITS = 4, 3
ALL = ["one_device", *STRATEGIES]


def drawn(shapes, seed=0):
    """Return weights of given shapes."""
    draw = np.random.default_rng(seed)
    return [draw.normal(size=shape) for shape in shapes]


def sizes_of(strategy, number=0):
    return SIZES[number][: replicas_of(strategy)]


@pytest.mark.ddl(strategies=ALL)
@pytest.mark.ddl_item("layer.MultiHeadAttention")
def test_attention_is_that_of_each_example(ddl_strategy):
    """The gradient of the keys' bias is 0, because it shifts all scores of a query alike.

    The root of the size of a key is exact, because Keras rounds it to float32.
    """
    import tensorflow as tf

    from suites.subject import keras

    with ddl_strategy.scope():
        made = keras.layers.MultiHeadAttention(num_heads=2, key_dim=4)
        made(np.zeros((1, 4, FEATURES)), np.zeros((1, 5, FEATURES)))
        weights = drawn([tuple(one.shape) for one in made.weights])
        made.set_weights(weights)
    keys_bias = made.weights[3]

    def call(query, value):
        with tf.GradientTape() as tape:
            found = made(query, value)
            loss = tf.reduce_sum(found**2)
        return found, tape.gradient(loss, subject.value_of(keys_bias))

    queries, values = rows(sizes_of(ddl_strategy), 4, FEATURES), rows(sizes_of(ddl_strategy), 5, FEATURES, seed=1)
    results = by_replica(ddl_strategy, call)(list(zip(queries, values, strict=True)))
    check(results, [attention(*part, weights) for part in zip(queries, values, strict=True)])
    for found, gradient in results.values():
        np.testing.assert_allclose(gradient, 0, atol=1e-11 * np.abs(found).max() ** 2)


RNN_SHAPES = [(FEATURES, UNITS), (UNITS, UNITS), (UNITS,)]


@pytest.mark.ddl(strategies=ALL)
@pytest.mark.ddl_item("layer.TimeDistributed_Bidirectional_Masking", "layer.LSTM_GRU")
# Since Keras 3.16 recurrent layers keep the mask from the layers after them, and say so:
# https://github.com/keras-team/keras/pull/23235
@pytest.mark.filterwarnings("ignore:.*does not support masking:UserWarning")
def test_masks_reach_recurrent_layers(ddl_strategy):
    """Each sequence has its own length. The layer for each time gets what the layers of both directions return."""
    from suites.subject import keras

    forward, backward, last = drawn(RNN_SHAPES), drawn(RNN_SHAPES, 1), drawn([(2 * UNITS, 2), (2,)], 2)
    with ddl_strategy.scope():
        both = keras.layers.Bidirectional(keras.layers.SimpleRNN(UNITS, return_sequences=True))
        body = [keras.layers.Masking(-9.0), both, keras.layers.TimeDistributed(keras.layers.Dense(2))]
        model = keras.Sequential([keras.Input((5, FEATURES)), *body])
        model.set_weights([*forward, *backward, *last])

    def expected(x, mask):
        start = np.zeros((len(x), UNITS))
        one, _ = recurrent(x, forward, start, mask)
        other, _ = recurrent(x[:, ::-1], backward, start, mask[:, ::-1])
        return np.concatenate([one, other[:, ::-1]], axis=-1) @ last[0] + last[1]

    parts, masks = rows(sizes_of(ddl_strategy), 5, FEATURES), []
    for part in parts:
        masks.append(np.arange(5) < 1 + np.arange(len(part))[:, None] % 5)
        part[~masks[-1]] = -9
    found = by_replica(ddl_strategy, model)([(part,) for part in parts])
    # The outputs of an example that does not count have no meaning.
    for number, (result, *_) in found.items():
        mask = masks[number]
        np.testing.assert_allclose(result[mask], expected(parts[number], mask)[mask], **BOUND)


@pytest.mark.ddl(strategies=ALL)
@pytest.mark.ddl_item("layer.stateful_RNN")
def test_a_stateful_layer_goes_on_with_the_state_of_its_replica(ddl_strategy):
    """A sequence that is cut into three steps gives what the whole sequence gives, also after a reset."""
    from suites.subject import keras

    weights = drawn(RNN_SHAPES)
    with ddl_strategy.scope():
        made = keras.layers.SimpleRNN(UNITS, stateful=True, return_sequences=True)
        made.build((2, 2, FEATURES))
        made.set_weights(weights)
    whole = rows([2] * replicas_of(ddl_strategy), 6, FEATURES)
    expected = [recurrent(part, weights, np.zeros((2, UNITS)))[0] for part in whole]
    step = by_replica(ddl_strategy, made)
    for _ in range(2):
        for first in (0, 2, 4):
            times = slice(first, first + 2)
            check(step([(part[:, times],) for part in whole]), [part[:, times] for part in expected])
        subject.reset(made)


@pytest.mark.ddl(strategies=ALL)
@pytest.mark.ddl_item("layer.tied_weights")
def test_a_weight_that_is_used_twice_has_one_gradient(ddl_strategy):
    """Two calls of one layer: x W W. Its gradient, added over the replicas, is that of the whole."""
    import tensorflow as tf

    from suites.subject import keras

    (weight,) = drawn([(FEATURES, FEATURES)])
    with ddl_strategy.scope():
        shared = keras.layers.Dense(FEATURES, use_bias=False)
        inputs = keras.Input((FEATURES,))
        model = keras.Model(inputs, shared(shared(inputs)))
        model.set_weights([weight])
        optimizer = keras.optimizers.SGD(0.5)
        optimizer.build(model.trainable_variables)
    assert len(model.trainable_variables) == 1

    def call(x, factor):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(model(x) * factor)
        variables = model.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
        return loss

    parts, factors = rows(sizes_of(ddl_strategy), FEATURES), rows(sizes_of(ddl_strategy), FEATURES, seed=1)
    by_replica(ddl_strategy, call)(list(zip(parts, factors, strict=True)))
    x, factor = np.concatenate(parts), np.concatenate(factors)
    expected = weight - 0.5 * (x.T @ factor @ weight.T + (x @ weight).T @ factor)
    for part in components(ddl_strategy, shared.kernel):
        np.testing.assert_allclose(part, expected, **BOUND)


@pytest.mark.ddl(strategies=ALL)
@pytest.mark.ddl_item("layer.custom_layer_with_state_(assign_in_call)")
@pytest.mark.parametrize("aggregation", ["sum", "mean", "only_first_replica"])
def test_a_layer_adds_up_what_it_sees(aggregation, ddl_strategy):
    """Replicas add other values to a weight of the layer, as often as they are called."""
    from suites.subject import keras, ops

    class Total(keras.layers.Layer):
        def __init__(self):
            super().__init__()
            arguments = {"shape": (FEATURES,), "initializer": "zeros", "trainable": False}
            self.total = self.add_weight(aggregation=subject.aggregation(aggregation), **arguments)

        def call(self, x):
            self.total.assign_add(ops.sum(x, axis=0))
            return x

    with ddl_strategy.scope():
        made = Total()
        made.build((None, FEATURES))
    step, totals = by_replica(ddl_strategy, made), []
    for number in range(2):
        parts = rows(sizes_of(ddl_strategy, number), FEATURES, seed=number)
        step([(part,) for part in parts])
        totals.append([part.sum(axis=0) for part in parts])
    of_replicas = np.sum(totals, axis=0)
    expected = {"sum": np.sum, "mean": np.mean, "only_first_replica": lambda all_, axis: all_[0]}
    for part in components(ddl_strategy, made.total):
        np.testing.assert_allclose(part, expected[aggregation](of_replicas, axis=0), **BOUND)


RATE = 0.25
DROPOUTS = {"Dropout": (), "SpatialDropout1D": (), "GaussianDropout": (), "GaussianNoise": (), "AlphaDropout": ()}
"""Random layers with one argument. They leave other values in each step."""


def noise(strategy, name, steps=3):
    """Return the layer, and for each step what each replica of this process gets for a part of ones."""
    from suites.subject import keras

    with strategy.scope():
        made = getattr(keras.layers, name)(RATE, seed=7)
        made.build((None, 40, 5))
    step = by_replica(strategy, lambda x: made(x, training=True))
    return made, [step([(np.ones((2, 40, 5)),)] * replicas_of(strategy)) for _ in range(steps)]


@pytest.mark.ddl(strategies=ALL)
@pytest.mark.ddl_item("layer.Dropout_family", "layer.SeedGenerator_state_per_replica")
def test_random_layers_draw_anew_in_each_step(ddl_strategy):
    """In inference, nothing is dropped."""
    ones = np.ones((2, 40, 5))
    for name in DROPOUTS:
        made, steps = noise(ddl_strategy, name)
        for one, other in combinations(steps, 2):
            assert not any(np.array_equal(one[number][0], other[number][0]) for number in one), name
        infer = by_replica(ddl_strategy, lambda x, made=made: made(x, training=False))
        check(infer([(ones,)] * replicas_of(ddl_strategy)), [ones] * replicas_of(ddl_strategy))
        if name == "Dropout":
            kept = np.concatenate([result.ravel() for step in steps for (result, *_) in step.values()])
            # What is kept is divided by the rate of what is kept. Six standard deviations of a binomial distribution.
            np.testing.assert_allclose(kept[kept != 0], 1 / (1 - RATE), rtol=1e-6)
            assert abs((kept == 0).mean() - RATE) < 6 * np.sqrt(RATE * (1 - RATE) / kept.size)


@pytest.mark.ddl(strategies=ALL)
@pytest.mark.ddl_item("layer.SeedGenerator_state_per_replica")
def test_seeds_of_all_replicas_advance_by_one_in_each_step(ddl_strategy):
    for name in DROPOUTS:
        made, steps = noise(ddl_strategy, name)
        for state in components(ddl_strategy, made.seed_generator.state):
            assert state.tolist() == [7, len(steps)], name


@pytest.mark.ddl(strategies=["mirrored[replicas=3]"])
@pytest.mark.ddl_item("layer.Dropout_family", "layer.SeedGenerator_state_per_replica")
def test_replicas_draw_other_noise(ddl_strategy):
    for name in DROPOUTS:
        _, (step, *_) = noise(ddl_strategy, name)
        for one, other in combinations(step.values(), 2):
            assert not np.array_equal(one[0], other[0]), name


AUGMENTATIONS = {
    "RandomFlip": ("horizontal",),
    "RandomTranslation": (0.25, 0.25),
    "RandomZoom": (0.25,),
    "RandomContrast": (0.5,),
    "RandomBrightness": (0.5,),
    "RandomCrop": (3, 3),
}


def augmented(strategy, name):
    """Return the layer, images that all replicas get, and what they make of these in four steps."""
    from suites.subject import keras

    images = np.arange(8 * 4 * 4 * 1.0).reshape(8, 4, 4, 1)
    with strategy.scope():
        made = getattr(keras.layers, name)(*AUGMENTATIONS[name], seed=7)
        made.build(images.shape)
    step = by_replica(strategy, lambda x: made(x, training=True))
    return made, images, [step([(images,)] * replicas_of(strategy)) for _ in range(4)]


@pytest.mark.ddl(strategies=ALL)
@pytest.mark.ddl_item("layer.Augmentation_layers")
@pytest.mark.parametrize("name", AUGMENTATIONS)
def test_images_change_in_training_only(name, ddl_strategy):
    made, images, (first, *others) = augmented(ddl_strategy, name)
    for number, (result, *_) in first.items():
        # A crop has four places only, so that two steps may have the same one.
        assert not all(np.array_equal(result, other[number][0]) for other in others)
        assert result.shape[1:] == ((3, 3, 1) if name == "RandomCrop" else images.shape[1:])
        if name == "RandomFlip":
            flipped = [np.array_equal(one, image[:, ::-1]) for one, image in zip(result, images, strict=True)]
            same = [np.array_equal(one, image) for one, image in zip(result, images, strict=True)]
            assert np.logical_xor(flipped, same).all()
            assert 0 < sum(flipped) < len(images)
    if name != "RandomCrop":  # in inference it takes the middle
        infer = by_replica(ddl_strategy, lambda x: made(x, training=False))
        check(infer([(images,)] * replicas_of(ddl_strategy)), [images] * replicas_of(ddl_strategy))


@pytest.mark.ddl(strategies=["mirrored[replicas=3]"])
@pytest.mark.ddl_item("layer.Augmentation_layers")
@pytest.mark.parametrize("name", ["RandomFlip", "RandomBrightness"])
def test_replicas_change_images_otherwise(name, ddl_strategy):
    _, _, (step, *_) = augmented(ddl_strategy, name)
    for one, other in combinations(step.values(), 2):
        assert not np.array_equal(one[0], other[0])
