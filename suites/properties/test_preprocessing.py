"""Check layers that look up or adapt, in fit and on replicas with other data, and fit's inputs of other kinds."""

from __future__ import annotations

import numpy as np
import pytest

from suites.linear import COPY_WARNING, check_weights, linear
from suites.models.linear import FEATURES, OUTPUTS, START, Data, data, train
from suites.properties.layers import BOUND, STRATEGIES
from suites.running import HOW, SIZES, each, replicas_of

pytestmark = [pytest.mark.usefixtures("float64"), pytest.mark.filterwarnings(COPY_WARNING)]
# Keras warns at the end of each generator.
ENDS = pytest.mark.filterwarnings("ignore:Your input ran out of data:UserWarning")

ALL = ["one_device", *STRATEGIES]
WORDS = np.array(["ant", "bee", "cat", "dog"])


def parts_of(strategy, values):
    """Return uneven parts of an array, with the ids of the examples."""
    sizes = SIZES[0][: replicas_of(strategy)]
    ids = np.arange(sum(sizes)) * 3 % len(values)
    ends = np.cumsum(sizes)
    return [(np.int64(n), values[ids[end - size : end]]) for n, (size, end) in enumerate(zip(sizes, ends, strict=True))]


def by_part(strategy, layer, parts, how):
    """Yield each part of this process, and what the layer makes of it. A function of strings must not copy them."""
    import tensorflow as tf

    step = each(strategy, lambda number, x: (tf.identity(number), layer(x)), how)
    for number, result in step(parts):
        yield parts[int(number)][1], np.asarray(result)


@pytest.mark.ddl(strategies=ALL)
@pytest.mark.ddl_item("layer.Normalization_StringLookup_TextVectoriza")
@pytest.mark.parametrize("how", HOW)
def test_what_was_adapted_in_the_scope_is_used_by_all_replicas(how, ddl_strategy):
    """Vocabularies are in the order of their counts, and 1 stands for what is unknown."""
    from suites.subject import keras

    numbers = np.random.default_rng(3).normal(2, 3, size=(20, 2))
    counted = np.repeat(WORDS, [4, 3, 2, 1])
    sentences = np.array([" ".join(WORDS[: n + 1]) for n in range(4)])
    with ddl_strategy.scope():
        normalization = keras.layers.Normalization()
        normalization.adapt(numbers)
        strings = keras.layers.StringLookup(num_oov_indices=1, mask_token="")
        strings.adapt(counted)
        integers = keras.layers.IntegerLookup(num_oov_indices=1, mask_token=0)
        integers.adapt(np.repeat([50, 40, 30, 20], [4, 3, 2, 1]))
        texts = keras.layers.TextVectorization(output_sequence_length=4)
        texts.adapt(sentences)
        bins = keras.layers.Discretization(bin_boundaries=[0.0, 2.0])
    known = np.concatenate([WORDS, ["eel"]])
    codes = dict(zip(known, [2, 3, 4, 5, 1], strict=True))
    cases = (
        (normalization, numbers, lambda x: (x - numbers.mean(axis=0)) / numbers.std(axis=0)),
        (strings, known, lambda x: [codes[one] for one in x]),
        (integers, np.array([50, 40, 30, 20, 7]), lambda x: [{50: 2, 40: 3, 30: 4, 20: 5, 7: 1}[one] for one in x]),
        (texts, sentences, lambda x: [([codes[w] for w in one.split()] + [0] * 4)[:4] for one in x]),
        (bins, numbers, lambda x: np.digitize(x, [0.0, 2.0])),
    )
    for layer, values, model in cases:
        for x, found in by_part(ddl_strategy, layer, parts_of(ddl_strategy, values), how):
            # Keras keeps the mean and the variance in float32, whatever the precision.
            bound = {"rtol": 1e-6, "atol": 1e-6} if layer is normalization else BOUND
            np.testing.assert_allclose(found, model(x), **bound, err_msg=layer.name)


@pytest.mark.ddl(strategies=["parameter_server"])
@pytest.mark.ddl_item("layer.StringLookup_under_PS")
def test_workers_of_a_coordinator_look_up_words(ddl_strategy):
    """The vocabulary is made in the scope. Each worker finds the codes of its own part."""
    from suites.subject import keras

    with ddl_strategy.scope():
        lookup = keras.layers.StringLookup(vocabulary=list(WORDS))
    parts = parts_of(ddl_strategy, np.concatenate([WORDS, ["eel"]]))
    step = each(ddl_strategy, lambda number, x: lookup(x), "function")
    codes = dict(zip([*WORDS, "eel"], [1, 2, 3, 4, 0], strict=True))
    found = step(parts)
    assert [np.asarray(one).tolist() for one in found] == [[codes[word] for word in x] for _, x in parts]


def lookups(kind):
    """Return a model that looks up its inputs and is linear in the result."""

    def make(keras):
        known = list(WORDS[:FEATURES]) if kind == "string" else [10, 20, 30]
        name, dtype = ("StringLookup", "string") if kind == "string" else ("IntegerLookup", "int64")
        inputs = keras.Input((), dtype=dtype)
        layer = getattr(keras.layers, name)(vocabulary=known, num_oov_indices=0, output_mode="one_hot")
        outputs = keras.layers.Dense(OUTPUTS, use_bias=False, name="linear")(layer(inputs))
        model = keras.Model(inputs, outputs)
        model.get_layer("linear").set_weights([START])
        return model

    return make


@pytest.mark.ddl(strategies=["one_device", "mirrored"])
@pytest.mark.ddl_item("fit.fit.strings")
@pytest.mark.parametrize("kind", ["string", "integer"])
def test_words_are_trained(kind, ddl_strategy):
    """Words are rows of the weights, and a model takes them in every form."""
    import tensorflow as tf

    ids = np.arange(12) * 2 % 3
    x = WORDS[ids] if kind == "string" else np.array([10, 20, 30])[ids]
    given = Data(np.eye(FEATURES)[ids], data(12).y, np.ones(12))
    model = linear(ddl_strategy, lookups(kind), rate=0.5)
    model.fit(tf.data.Dataset.from_tensor_slices((x, given.y)).batch(6), shuffle=False, verbose=0)
    weights = train(list(given.batches(6)), [0.5]).weights
    check_weights(ddl_strategy, model, weights)
    others = (x.astype(object), tf.constant(x)) if kind == "string" else (x,)
    for form in (tf.data.Dataset.from_tensor_slices(x).batch(6), *others):
        np.testing.assert_allclose(model.predict(form, verbose=0), given.x @ weights, **BOUND)


@ENDS
@pytest.mark.ddl(strategies=["one_device", "mirrored"])
@pytest.mark.ddl_item("fit.fit.numpy", "fit.fit.pydataset")
@pytest.mark.parametrize("kind", ["distributed", "tensor", "from_function", "generator", "pydataset"])
def test_every_batch_is_trained_once(kind, ddl_strategy):
    import tensorflow as tf

    from suites.subject import keras

    given = data(24).unweighted
    batches = list(given.batches(6))
    dataset = tf.data.Dataset.from_tensor_slices((given.x, given.y)).batch(6)

    class Batches(keras.utils.Sequence):
        def __len__(self):
            return len(batches)

        def __getitem__(self, index):
            # A copy, because of what test_arrays_of_the_user_keep_their_values shows.
            return batches[index].x.copy(), batches[index].y.copy()

    def of_pipeline(context):
        size = context.get_per_replica_batch_size(6)
        return tf.data.Dataset.from_tensor_slices((given.x, given.y)).batch(size)

    model = linear(ddl_strategy, rate=0.125)
    arguments = {"steps_per_epoch": len(batches)} if kind in ("distributed", "from_function") else {}
    if kind == "tensor":
        history = model.fit(tf.constant(given.x), tf.constant(given.y), batch_size=6, shuffle=False, verbose=0)
    else:
        source = {
            "distributed": lambda: ddl_strategy.experimental_distribute_dataset(dataset),
            "from_function": lambda: ddl_strategy.distribute_datasets_from_function(of_pipeline),
            "generator": lambda: ((batch.x.copy(), batch.y.copy()) for batch in batches),
            "pydataset": Batches,
        }[kind]()
        history = model.fit(source, shuffle=False, verbose=0, **arguments)
    trained = train(batches, [0.125])
    np.testing.assert_allclose(history.history["loss"], trained.loss, rtol=1e-12)
    check_weights(ddl_strategy, model, trained.weights)


@ENDS
@pytest.mark.ddl(strategies=["one_device", "mirrored"])
@pytest.mark.ddl_item("fit.fit.numpy", "fit.fit.steps_per_epoch")
def test_a_generator_goes_on_in_the_next_epoch(ddl_strategy):
    """An epoch takes two of the four batches. The second one has the other two: none is lost, and none comes twice."""
    given = data(24).unweighted
    batches, taken = list(given.batches(6)), []

    def generate():
        for number, batch in enumerate(batches):
            taken.append(number)
            yield batch.x.copy(), batch.y.copy()

    model = linear(ddl_strategy, rate=0.125)
    history = model.fit(generate(), epochs=2, steps_per_epoch=2, shuffle=False, verbose=0).history
    first = train(batches[:2], [0.125])
    second = train(batches[2:], [0.125], start=first.weights)
    assert taken == list(range(4))
    np.testing.assert_allclose(history["loss"], first.loss + second.loss, rtol=1e-12)
    check_weights(ddl_strategy, model, second.weights)


def aligned(array):
    """Return a copy at an address that 64 divides, as arrays of large size often have. TensorFlow takes it as it is."""
    memory = np.zeros(array.nbytes + 64, "uint8")
    found = memory[-memory.ctypes.data % 64 :][: array.nbytes].view(array.dtype).reshape(array.shape)
    found[...] = array
    return found


STEPS = 16


@ENDS
@pytest.mark.ddl(strategies=["one_device", "mirrored"])
@pytest.mark.ddl_item("fit.fit.numpy", "fit.fit.pydataset")
@pytest.mark.parametrize("kind", ["arrays", "dataset", "generator", "pydataset"])
def test_arrays_of_the_user_keep_their_values(kind, ddl_strategy):
    """Training reads inputs and labels, and writes nothing into them."""
    import tensorflow as tf

    from suites.subject import keras

    given = data(8).unweighted
    x, y = aligned(given.x), aligned(given.y)

    class Batches(keras.utils.Sequence):
        def __len__(self):
            return 1

        def __getitem__(self, index):
            return x, y

    model = linear(ddl_strategy, rate=0.125)
    # A step may write into an array only if no other thread holds it, so one step is not enough to see it each time.
    if kind == "arrays":
        model.fit(x, y, batch_size=8, epochs=STEPS, shuffle=False, verbose=0)
    else:
        source = {
            "dataset": lambda: tf.data.Dataset.from_tensor_slices((x, y)).batch(8),
            "generator": lambda: ((x, y) for _ in range(STEPS + 8)),
            "pydataset": Batches,
        }[kind]()
        model.fit(source, epochs=STEPS, steps_per_epoch=1, shuffle=False, verbose=0)
    np.testing.assert_array_equal(x, given.x)
    np.testing.assert_array_equal(y, given.y)
