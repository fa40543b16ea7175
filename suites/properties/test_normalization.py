"""Check normalization layers on replicas with other data: what they return, and their moving statistics."""

from __future__ import annotations

import numpy as np
import pytest

from suites import absent, subject
from suites.items import lacking
from suites.known_failures import versions_of
from suites.linear import COPY_WARNING
from suites.properties.layers import BOUND, STRATEGIES, by_replica, check, rows
from suites.running import SIZES, components, replicas_of
from suites.tables.layers import BatchStatistics, in_groups, normalized, spectral

pytestmark = [pytest.mark.usefixtures("float64"), pytest.mark.filterwarnings(COPY_WARNING)]

FEATURES = 4
ALL = ["one_device", *STRATEGIES]


def layer(strategy, **arguments):
    """Return a BatchNormalization of Keras 3 or tf_keras."""
    from suites.subject import keras

    with strategy.scope():
        made = keras.layers.BatchNormalization(momentum=0.75, **arguments)
        made.build((None, FEATURES))
    return made


def check_statistics(strategy, made, mean, variance):
    for variable, expected in ((made.moving_mean, mean), (made.moving_variance, variance)):
        for part in components(strategy, variable):
            np.testing.assert_allclose(part, expected, **BOUND, err_msg=variable.name)


def uneven(strategy, number):
    """Return parts of at least two examples."""
    return rows([size + 1 for size in SIZES[number][: replicas_of(strategy)]], FEATURES, seed=number)


@pytest.mark.ddl(strategies=ALL)
@pytest.mark.ddl_item("layer.BatchNormalization_local_statistics")
def test_replicas_normalize_by_their_own_part(ddl_strategy):
    made, model = layer(ddl_strategy), BatchStatistics(FEATURES)
    step = by_replica(ddl_strategy, lambda x: made(x, training=True))
    for number in range(2):
        parts = uneven(ddl_strategy, number)
        check(step([(part,) for part in parts]), model.train(parts))


def local_statistics_are_averaged(strategy):
    """The caller reads, and so saves, the mean of the statistics that each replica computes from its parts."""
    made, model = layer(strategy), BatchStatistics(FEATURES)
    step = by_replica(strategy, lambda x: made(x, training=True))
    for number in range(len(SIZES)):
        parts = uneven(strategy, number)
        step([(part,) for part in parts])
        model.train(parts)
        np.testing.assert_allclose(made.get_weights()[2:], [model.mean, model.variance], **BOUND)


@pytest.mark.ddl(strategies=ALL)
@pytest.mark.ddl_item("layer.BatchNormalization_local_statistics")
def test_local_statistics_are_averaged(ddl_strategy):
    local_statistics_are_averaged(ddl_strategy)


@pytest.mark.ddl(strategies=STRATEGIES, keras="tf_keras")
@pytest.mark.ddl_item("layer.BatchNormalization_local_statistics")
def test_local_statistics_are_averaged_in_tf_keras(ddl_strategy):
    local_statistics_are_averaged(ddl_strategy)


@pytest.mark.ddl(strategies=ALL)
@pytest.mark.ddl_item("layer.BatchNormalization_synchronized", "layer.BatchNormalization_synchronized_uneven_o")
@pytest.mark.parametrize("sizes", [(4, 4, 4), (5, 1, 3)], ids=["even", "uneven"])
def test_synchronized_statistics_are_those_of_the_whole(sizes, ddl_strategy):
    made, model = layer(ddl_strategy, synchronized=True), BatchStatistics(FEATURES)
    step = by_replica(ddl_strategy, lambda x: made(x, training=True))
    sizes = sizes[: replicas_of(ddl_strategy)]
    for number in range(2):
        parts = rows(sizes, FEATURES, seed=number)
        (whole,) = model.train([np.concatenate(parts)])
        check(step([(part,) for part in parts]), np.split(whole, np.cumsum(sizes)[:-1]))
        check_statistics(ddl_strategy, made, model.mean, model.variance)


MASKED_BOUND = {"rtol": 1e-6, "atol": 1e-6}
"""Keras adds 1e-7 to the number of elements that count, of which each part has two or more. Results are below 10."""


@pytest.mark.ddl(strategies=ALL)
@pytest.mark.ddl_item("layer.BatchNormalization_local_statistics", "layer.BatchNormalization_synchronized_uneven_o")
@pytest.mark.parametrize("synchronized", [False, True], ids=["local", "synchronized"])
def test_masked_elements_do_not_count(synchronized, ddl_strategy):
    """Some times of each sequence do not count, and other ones on each replica."""
    from suites.subject import keras

    with ddl_strategy.scope():
        made = keras.layers.BatchNormalization(synchronized=synchronized)
        made.build((None, 3, FEATURES))
    sizes = (5, 2, 3)[: replicas_of(ddl_strategy)]
    parts = rows(sizes, 3, FEATURES)
    masks = [np.arange(3 * size).reshape(size, 3) % (2 + n) == 0 for n, size in enumerate(sizes)]
    step = by_replica(ddl_strategy, lambda x, mask: made(x, training=True, mask=mask))
    valid = [part[mask] for part, mask in zip(parts, masks, strict=True)]
    of = [np.concatenate(valid)] * len(parts) if synchronized else valid
    expected = [(x - v.mean(axis=0)) / np.sqrt(v.var(axis=0) + 1e-3) for x, v in zip(parts, of, strict=True)]
    check(step(list(zip(parts, masks, strict=True))), expected, MASKED_BOUND)


@pytest.mark.ddl(strategies=STRATEGIES)
@pytest.mark.ddl_item("layer.BatchNormalization_empty_replica")
@pytest.mark.parametrize("synchronized", [False, True], ids=["local", "synchronized"])
def test_a_replica_without_examples_adds_none(synchronized, ddl_strategy):
    """The last replica has no example. Its statistics stay finite; synchronized ones are those of the others."""
    made, model = layer(ddl_strategy, synchronized=synchronized), BatchStatistics(FEATURES)
    parts = rows([*(4, 3)[: replicas_of(ddl_strategy) - 1], 0], FEATURES)
    by_replica(ddl_strategy, lambda x: made(x, training=True))([(part,) for part in parts])
    if synchronized:
        model.train([np.concatenate(parts)])
        check_statistics(ddl_strategy, made, model.mean, model.variance)
    for variable in (made.moving_mean, made.moving_variance):
        assert np.isfinite(components(ddl_strategy, variable)).all(), components(ddl_strategy, variable)


PER_EXAMPLE = {
    "LayerNormalization": ({"epsilon": 1e-3}, lambda x: normalized(x, -1, 1e-3)),
    "GroupNormalization": ({"groups": 2, "epsilon": 1e-3}, lambda x: in_groups(x, 2, 1e-3)),
    "RMSNormalization": ({"epsilon": 1e-6}, lambda x: normalized(x, -1, 1e-6, center=False)),
    "UnitNormalization": ({}, lambda x: x / np.linalg.norm(x, axis=-1, keepdims=True)),
}
"""Layer -> its arguments, and its result on the whole."""
if lacking({"keras": ">=3.9"}, versions_of(subject.name())):
    del PER_EXAMPLE["RMSNormalization"]


@pytest.mark.ddl(strategies=ALL)
@pytest.mark.ddl_item("layer.LayerNorm_GroupNorm_RMSNorm")
def test_examples_are_normalized_by_themselves(ddl_strategy):
    """If a layer has a scale, the sum of the replicas' gradients of it is the gradient for the whole batch."""
    import tensorflow as tf

    from suites.subject import keras

    sizes = SIZES[0][: replicas_of(ddl_strategy)]
    parts = rows(sizes, 3, FEATURES)
    factors = rows(sizes, 3, FEATURES, seed=1)
    chosen = {name: of for name, of in PER_EXAMPLE.items() if absent.has(f"layers.{name}")}
    for name, (arguments, model) in chosen.items():
        with ddl_strategy.scope():
            made = getattr(keras.layers, name)(**arguments)
            made.build((None, 3, FEATURES))

        def call(x, factor, made=made):
            with tf.GradientTape() as tape:
                found = made(x)
                total = tf.reduce_sum(found * factor)
            scale = made.trainable_variables[:1]
            context = tf.distribute.get_replica_context()
            return found, *(context.all_reduce("SUM", one) for one in tape.gradient(total, scale))

        results = by_replica(ddl_strategy, call)(list(zip(parts, factors, strict=True)))
        whole = [model(part) for part in parts]
        check(results, whole)
        gradient = sum((one * factor).sum(axis=(0, 1)) for one, factor in zip(whole, factors, strict=True))
        for _, *gradients in results.values():
            assert len(gradients) == (name != "UnitNormalization")
            np.testing.assert_allclose(gradients, [gradient] * len(gradients), **BOUND, err_msg=name)


@pytest.mark.ddl(strategies=ALL)
@pytest.mark.ddl_item("layer.SpectralNormalization")
def test_spectral_normalization_divides_once(ddl_strategy):
    """The kernel does not depend on the data, so that all replicas find the same, and their mean is this."""
    from suites.subject import keras

    with ddl_strategy.scope():
        made = keras.layers.SpectralNormalization(keras.layers.Dense(3, use_bias=False))
        made.build((None, FEATURES))
        made.layer.set_weights([np.arange(12.0).reshape(FEATURES, 3) ** 2 / 9 - 3])
    kernel, vector = made.layer.get_weights()[0], np.asarray(components(ddl_strategy, made.vector_u)[0])
    step = by_replica(ddl_strategy, lambda x: made(x, training=True))
    for number in range(3):
        parts = rows(SIZES[number][: replicas_of(ddl_strategy)], FEATURES, seed=number)
        kernel, vector = spectral(kernel, vector)
        check(step([(part,) for part in parts]), [part @ kernel for part in parts])
        for variable, expected in ((made.layer.kernel, kernel), (made.vector_u, vector)):
            for part in components(ddl_strategy, variable):
                np.testing.assert_allclose(part, expected, **BOUND)
