"""Draw initial values and random numbers with all parameters: as with no strategy, and equal on all replicas."""

from __future__ import annotations

import numpy as np
import pytest

from suites.parameters.replicas import on_replicas
from suites.parameters.spaces import Space, Wrong
from suites.running import components
from suites.tables.initial_laws import law

pytestmark = pytest.mark.usefixtures("float64")

SEEDS = {"seed": (3, 11)}
SHAPE = (4, 4)
DENSE, CONVOLUTION = (96, 160), (3, 2, 48, 64)
"""Shapes with enough values to tell distributions apart."""
FANS = {"input_axes": (None, (0,)), "output_axes": (None, (1,))}


def _fans_go(case):
    both = [case[name] for name in FANS if name in case]
    return len(both) < 2 or (both[0] is None) == (both[1] is None)


INITIALIZERS = (
    Space("initializers.Constant", {"value": (0.5, -2.0)}),
    Space("initializers.Identity", {"gain": (1.0, 0.5)}),
    Space("initializers.IdentityInitializer", {"gain": (1.0, 0.5)}),
    Space("initializers.Orthogonal", {"gain": (1.0, 0.5), **SEEDS}),
    Space("initializers.OrthogonalInitializer", {"gain": (1.0, 0.5), **SEEDS}),
    Space("initializers.RandomNormal", {"mean": (0.0, 2.0), "stddev": (0.05, 1.0), **SEEDS}),
    Space("initializers.TruncatedNormal", {"mean": (0.0, 2.0), "stddev": (0.05, 1.0), **SEEDS}),
    Space("initializers.RandomUniform", {"minval": (-0.05, 0.0), "maxval": (0.05, 1.0), **SEEDS}),
    Space(
        "initializers.VarianceScaling",
        {
            "scale": (1.0, 2.0),
            "mode": ("fan_in", "fan_out", "fan_avg"),
            "distribution": ("truncated_normal", "untruncated_normal", "uniform"),
            **SEEDS,
            **FANS,
        },
        allowed=_fans_go,
    ),
    *(
        Space(f"initializers.{kind}{law}", {**SEEDS, **FANS}, allowed=_fans_go)
        for kind in ("Glorot", "He", "Lecun")
        for law in ("Normal", "Uniform")
    ),
)
_DRAWN = {"shape": ((3,), (2, 2)), "dtype": ("float32", "float64"), **SEEDS}
X = np.arange(12.0).reshape(4, 3)
DRAWS = (
    Space("random.normal", {"mean": (0.0, 2.0), "stddev": (1.0, 0.5), **_DRAWN}),
    Space("random.truncated_normal", {"mean": (0.0, 2.0), "stddev": (1.0, 0.5), **_DRAWN}),
    Space("random.uniform", {"minval": (0.0, -1.0), "maxval": (1.0, 3.0), **_DRAWN}),
    Space("random.randint", {"minval": (0, -5), "maxval": (7, 100), **_DRAWN, "dtype": ("int32", "int64")}),
    Space("random.gamma", {"alpha": (0.5, 2.0), **_DRAWN}),
    Space("random.beta", {"alpha": (0.5, 2.0), "beta": (1.0, 3.0), **_DRAWN}),
    Space("random.binomial", {"counts": (3, 10), "probabilities": (0.25, 0.75), **_DRAWN}),
    Space(
        "random.categorical",
        {
            "logits": (np.log([[0.5, 0.5]]), np.log([[0.9, 0.1]])),
            "num_samples": (3, 8),
            "dtype": ("int32", "int64"),
            **SEEDS,
        },
    ),
    Space("random.shuffle", {"axis": (0, 1), **SEEDS}, fixed={"x": X}),
    Space("random.dropout", {"rate": (0.25, 0.75), "noise_shape": (None, (4, 1)), **SEEDS}, fixed={"inputs": X}),
)
PENALTIES = (
    (Space("regularizers.L1", {"l1": (0.25, 0.5)}), lambda w, l1: l1 * np.abs(w).sum()),
    (Space("regularizers.L2", {"l2": (0.25, 0.5)}), lambda w, l2: l2 * (w**2).sum()),
    (
        Space("regularizers.L1L2", {"l1": (0.0, 0.5), "l2": (0.0, 0.25)}),
        lambda w, l1, l2: l1 * np.abs(w).sum() + l2 * (w**2).sum(),
    ),
    (
        Space("regularizers.OrthogonalRegularizer", {"factor": (0.5, 0.25), "mode": ("rows", "columns")}),
        lambda w, factor, mode: factor * _crossed(w if mode == "rows" else w.T),
    ),
)


def _crossed(rows):
    """Return half the sum, over pairs of different rows, of the absolute cosine, as Keras documents it."""
    unit = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    off = np.abs(unit @ unit.T) * (1 - np.eye(len(rows)))
    return off.sum() / 2 / (len(rows) * (len(rows) - 1) / 2)


def _norms(w, axis):
    return np.sqrt((w**2).sum(axis=axis, keepdims=True))


BOUNDED = (
    (
        Space("constraints.MaxNorm", {"max_value": (2, 0.5), "axis": (0, 1)}),
        lambda w, max_value, axis: w * np.clip(_norms(w, axis), 0, max_value) / (1e-7 + _norms(w, axis)),
    ),
    (
        Space("constraints.UnitNorm", {"axis": (0, 1)}),
        lambda w, axis: w / (1e-7 + _norms(w, axis)),
    ),
    (
        Space(
            "constraints.MinMaxNorm",
            {"min_value": (0.0, 0.25), "max_value": (1.0, 0.5), "rate": (1.0, 0.5), "axis": (0, 1)},
        ),
        lambda w, min_value, max_value, rate, axis: (
            w
            * (rate * np.clip(_norms(w, axis), min_value, max_value) + (1 - rate) * _norms(w, axis))
            / (1e-7 + _norms(w, axis))
        ),
    ),
)
BOTH = ("one_device", "mirrored")
SPACES = {
    **dict.fromkeys((*INITIALIZERS, *DRAWS), BOTH),
    **dict.fromkeys((space for space, _ in (*PENALTIES, *BOUNDED)), BOTH),
}
"""Spaces of the properties of this file -> their strategies."""
KERNEL = np.random.default_rng(2).normal(0, 1.5, SHAPE)


@pytest.mark.ddl(strategies=list(BOTH))
@pytest.mark.ddl_item("layer.Dense", shows="parity")
@pytest.mark.parametrize("space", INITIALIZERS, ids=lambda space: space.name)
def test_variables_begin_as_without_a_strategy(space, ddl_strategy):
    """Every replica has the values that the same initializer draws when there is no strategy."""
    from suites.subject import keras

    wrong = Wrong()
    for case in space.cases():
        with wrong.of(case):
            plain = np.asarray(space.make(case)(SHAPE))
            with ddl_strategy.scope():
                layer = keras.layers.Dense(SHAPE[1], kernel_initializer=space.make(case))
                layer.build((None, SHAPE[0]))
            for part in components(ddl_strategy, layer.kernel):
                np.testing.assert_array_equal(part, plain)
            assert len(np.unique(plain)) > 1 or "Constant" in space.name
    wrong.check()


@pytest.mark.ddl(strategies=["one_device"])
@pytest.mark.ddl_item("layer.Dense", shows="behavior")
@pytest.mark.parametrize("space", INITIALIZERS, ids=lambda space: space.name)
def test_initial_values_have_the_distribution_of_their_definition(space, ddl_strategy):
    """The seeds are fixed; the bounds are five standard errors, so that a wrong factor shows and no draw does."""
    wrong = Wrong()
    for case in space.cases(shape=(DENSE, CONVOLUTION), also=lambda case: has_axes(space, case)):
        with wrong.of(case):
            shape = case["shape"]
            values = np.asarray(space.make(case)(shape), np.float64)
            expected = law(space.name, case, shape)
            if expected is None:
                np.testing.assert_allclose(*exactly(space.name, case, values), atol=1e-9)
                continue
            error = expected.deviation / np.sqrt(values.size)
            assert values.mean() == pytest.approx(expected.mean, abs=5 * error)
            assert values.std() == pytest.approx(expected.deviation, abs=5 * error)
            rounding = 1e-6 * expected.deviation
            assert expected.low - rounding <= values.min()
            assert values.max() <= expected.high + rounding
    wrong.check()


def has_axes(space, case):
    """Return whether a shape has the axes of a case: a matrix has all of them, and a convolution those by default."""
    plain = case.get("shape", DENSE) == DENSE
    return plain or not (space.name.startswith("Identity") or any(case.get(name) for name in FANS))


def exactly(name, case, values):
    """Return what an initializer without a distribution determines, and what it should be."""
    if name == "Constant":
        return values, np.full(values.shape, case["value"])
    if name.startswith("Identity"):
        return values, case["gain"] * np.eye(*values.shape)
    # The columns of an orthogonal matrix, or its rows if they are fewer, have the length of the gain.
    flat = values.reshape(-1, values.shape[-1])
    square = flat @ flat.T if flat.shape[0] < flat.shape[1] else flat.T @ flat
    return square, case["gain"] ** 2 * np.eye(len(square))


@pytest.mark.ddl(strategies=list(BOTH))
@pytest.mark.ddl_item("random.stateless", shows="parity")
@pytest.mark.parametrize("space", DRAWS, ids=lambda space: space.name)
def test_a_seed_draws_the_same_with_and_without_a_strategy(space, ddl_strategy):
    """A whole number as the seed gives the same numbers on every replica, out of replicas, and with no strategy."""
    wrong, cases = Wrong(), space.cases()
    calls = [lambda _replica, case=case: space.make(case) for case in cases]
    for case, results in zip(cases, on_replicas(ddl_strategy, calls), strict=True):
        with wrong.of(case):
            plain = np.asarray(space.make(case))
            with ddl_strategy.scope():
                np.testing.assert_array_equal(np.asarray(space.make(case)), plain)
            assert "dtype" not in case or plain.dtype == case["dtype"]
            for result in results.values():
                np.testing.assert_array_equal(result, plain)
    wrong.check()


@pytest.mark.ddl(strategies=list(BOTH))
@pytest.mark.ddl_item("layer.Dense")
@pytest.mark.parametrize(("space", "model"), PENALTIES, ids=lambda one: getattr(one, "name", ""))
def test_a_penalty_is_its_definition(space, model, ddl_strategy):
    from suites.subject import keras

    wrong, single = Wrong(), "Orthogonal" in space.name  # which refuses float64: a test of its own has an entry
    for case in space.cases():
        with wrong.of(case):
            with ddl_strategy.scope():
                dtype = "float32" if single else "float64"
                layer = keras.layers.Dense(SHAPE[1], use_bias=False, kernel_regularizer=space.make(case), dtype=dtype)
                layer.build((None, SHAPE[0]))
                layer.set_weights([KERNEL])
            expected = model(KERNEL, **case)
            np.testing.assert_allclose(np.asarray(layer.losses[0]), expected, rtol=1e-5 if single else 1e-9)
    wrong.check()


@pytest.mark.ddl(strategies=list(BOTH))
@pytest.mark.ddl_item("layer.Dense")
@pytest.mark.parametrize(("space", "model"), BOUNDED, ids=lambda one: getattr(one, "name", ""))
def test_a_constraint_holds_after_a_step(space, model, ddl_strategy):
    """A step with a gradient of zero leaves what the constraint makes of the weights."""
    from suites.subject import keras

    wrong = Wrong()
    for case in space.cases():
        with wrong.of(case):
            with ddl_strategy.scope():
                layer = keras.layers.Dense(SHAPE[1], use_bias=False, kernel_constraint=space.make(case))
                layer.build((None, SHAPE[0]))
                layer.set_weights([KERNEL])
                optimizer = keras.optimizers.SGD(0.5)
                optimizer.build(layer.trainable_variables)
            step_without_a_gradient(ddl_strategy, optimizer, layer.kernel)
            for part in components(ddl_strategy, layer.kernel):
                np.testing.assert_allclose(part, model(KERNEL, **case), rtol=1e-9)
    wrong.check()


def step_without_a_gradient(strategy, optimizer, variable):
    """Apply a gradient of zero on every replica."""
    import tensorflow as tf

    def step(_replica):
        optimizer.apply_gradients([(tf.zeros(SHAPE, tf.float64), variable)])

    on_replicas(strategy, [step])[0].items()


def everything(strategy):
    """Return functions that draw random numbers and take no seed: those of Keras, of its layers, and of others."""
    import random

    import tensorflow as tf

    from suites.subject import keras

    def order():
        """Return the order in which a training takes its examples."""
        seen = []

        class Seen(keras.Model):
            def train_step(self, data):
                seen.extend(np.ravel(data[0]).tolist())
                return {"loss": 0.0}

        model = Seen()
        model.compile(run_eagerly=True)
        model.fit(np.arange(16.0), np.zeros(16), batch_size=4, verbose=0)
        return seen

    def drawn(space, case):
        return lambda: space.make({name: value for name, value in case.items() if name != "seed"})

    layers = keras.layers
    noise = [layers.Dropout, layers.GaussianNoise, layers.GaussianDropout, layers.SpatialDropout1D]
    ones = np.ones((4, 8, 8))
    return {
        **{space.api: drawn(space, space.cases()[0]) for space in DRAWS if space.exists()},
        **{one.__name__: lambda one=one: one(0.5)(ones, training=True) for one in noise},
        "an initializer": lambda: keras.initializers.GlorotUniform()(SHAPE),
        "initial weights": lambda: weights_of_a_layer(strategy, layers.Dense(4)),
        "tf.random": lambda: tf.random.normal(SHAPE),
        "numpy": lambda: np.random.normal(size=SHAPE),
        "random": random.random,
        "order of examples": order,
    }


def weights_of_a_layer(strategy, layer):
    with strategy.scope():
        layer.build((None, 4))
    return components(strategy, layer.kernel)


@pytest.mark.ddl(strategies=["one_device", "mirrored"])
@pytest.mark.ddl_item("random.global_seed", shows="behavior")
def test_a_seed_of_the_program_repeats_all_numbers(ddl_strategy):
    """The same seed gives the same numbers again, in the same process, and another seed gives others."""
    from suites.subject import keras

    wrong = Wrong()
    for name, draw in everything(ddl_strategy).items():
        with wrong.of(name):
            found = []
            for seed in (7, 7, 8):
                keras.utils.set_random_seed(seed)
                found.append([np.asarray(draw()) for _ in range(2)])
            np.testing.assert_array_equal(found[0], found[1])
            assert not np.array_equal(found[0], found[2]), "the seed has no effect"
    wrong.check()
