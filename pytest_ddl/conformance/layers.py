"""Check that a layer under a strategy does what it does on one device: values, state, random numbers and training."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from pytest_ddl.conformance.comparing import SINGLE, MismatchError, NotJudgedError, compare, flat, shown
from pytest_ddl.conformance.data import Array, cast
from pytest_ddl.conformance.kinds import package_of, prepared
from pytest_ddl.conformance.registry import Subject, register
from pytest_ddl.conformance.running import components, distributed, each, replicas_of, sizes_of, split

_STEPS = 3
_TARGETS = 2
GLOBAL_BATCH = 12
"""Examples of a global batch of the training that is compared: 2, 3 and 4 replicas divide it."""


def training_argument(layer: Any, training: bool) -> dict[str, bool]:
    """Return the argument ``training`` if the layer's call has it."""
    named = inspect.signature(layer.call).parameters
    taken = "training" in named or any(one.kind is one.VAR_KEYWORD for one in named.values())
    return {"training": training} if taken else {}


def _refuse_noise(subject: Subject) -> None:
    """Refuse a layer that draws random numbers in every call.

    :raises NotJudgedError: if the layer draws, and its call has no argument ``training``.
    """
    if subject.tags.random and not training_argument(subject.make(), False):
        raise NotJudgedError("the layer draws random numbers in every call, because it has no argument training")


def make(strategy: Any, subject: Subject) -> Any:
    """Make a layer in the scope of a strategy, with its weights."""
    import tensorflow as tf

    with strategy.scope():
        layer = subject.make()
        layer(*map(tf.constant, subject.arrays(2)), **training_argument(layer, False))
    return layer


def _pair(strategy: Any, subject: Subject) -> tuple[Any, Any]:
    """Return a layer under a strategy and one out of it, with the same weights."""
    import tensorflow as tf

    layer, alone = make(strategy, subject), make(tf.distribute.get_strategy(), subject)
    layer.set_weights(alone.get_weights())
    return layer, alone


def _outputs(strategy: Any, layer: Any, parts: Sequence[Any], how: str, *, training: bool = False) -> list[list[Array]]:
    """Return what the layer gives on each replica of this process."""
    import tensorflow as tf

    given = training_argument(layer, training)

    def step(*columns: Any) -> Any:
        return strategy.run(lambda *part: layer(*map(tf.identity, part), **given), args=columns)

    call = tf.function(step, autograph=False) if how == "function" else step
    results = call(*(distributed(strategy, column) for column in zip(*parts, strict=True)))
    leaves = [strategy.experimental_local_results(leaf) for leaf in tf.nest.flatten(results)]
    return [[np.asarray(one) for one in column] for column in zip(*leaves, strict=True)]


def _local(strategy: Any, values: Sequence[Any]) -> list[Any]:
    """Return those of the replicas' values that belong to replicas of this process."""
    import tensorflow as tf

    own = strategy.run(lambda: tf.identity(tf.distribute.get_replica_context().replica_id_in_sync_group))
    return [values[int(one)] for one in strategy.experimental_local_results(own)]


@register(
    "layer",
    "Replicas with parts of other sizes give the outputs of the whole batch, eagerly and in a function.",
    advice="An output that uses other examples of the batch, such as their mean, has only those of its replica. If it "
    "is meant so, declare Tags(needs_whole_batch=True).",
    unless=("needs_whole_batch",),
)
def layer_of_parts(strategy: Any, subject: Subject) -> None:
    _refuse_noise(subject)
    layer, alone = _pair(strategy, subject)
    sizes = sizes_of(0, replicas_of(strategy))
    arrays = subject.arrays(sum(sizes))
    for training in (False,) if subject.tags.random else (False, True):
        import tensorflow as tf

        whole = flat(tf.nest.flatten(alone(*map(tf.constant, arrays), **training_argument(alone, training))))
        wanted = _local(strategy, split(whole, sizes))
        for how in ("eager", "function"):
            for found, own in zip(
                _outputs(strategy, layer, split(arrays, sizes), how, training=training), wanted, strict=True
            ):
                compare(f"the output of a replica's examples ({how}, training={training})", found, list(own), SINGLE)


@register(
    "layer",
    "The call in a function gives what the eager call gives.",
    advice="Python code of call() runs once when a function is traced: keep state in variables.",
    unless=("random",),
)
def layer_in_a_function(strategy: Any, subject: Subject) -> None:
    import tensorflow as tf

    start = make(tf.distribute.get_strategy(), subject).get_weights()
    found = {}
    for how in ("eager", "function"):
        layer = make(strategy, subject)
        layer.set_weights(start)
        # The same function is called in each step: what was a number at its first call would stay.
        step = _steps(strategy, layer, how)
        outputs = []
        for number in range(_STEPS):
            rows = [2] * replicas_of(strategy)
            outputs.append(step(split(_scaled(subject, sum(rows), number), rows)))
        found[how] = (outputs, [np.asarray(weight) for weight in layer.get_weights()])
    compare("the output in a function", found["function"][0], found["eager"][0], SINGLE, where="eagerly")
    compare("the state after calls in a function", found["function"][1], found["eager"][1], SINGLE, where="eagerly")


def _steps(strategy: Any, layer: Any, how: str) -> Callable[..., Any]:
    given = training_argument(layer, True)
    return each(strategy, lambda *part: layer(*part, **given), how)


def _scaled(subject: Subject, rows: int, step: int) -> tuple[Array, ...]:
    """Return inputs that differ by step."""
    return tuple(one * one.dtype.type(1 + step / 4) if one.dtype.kind == "f" else one for one in subject.arrays(rows))


@register(
    "layer",
    "A layer that is made from the configuration, with the same weights, gives the same outputs.",
    advice="Return every argument of the constructor from get_config().",
)
def layer_from_its_configuration(strategy: Any, subject: Subject) -> None:
    import tensorflow as tf

    _refuse_noise(subject)
    layer = make(strategy, subject)
    arrays = subject.arrays(2)
    with strategy.scope():
        try:
            other = type(layer).from_config(layer.get_config())
        except Exception as error:
            raise MismatchError(f"from_config(get_config()) raises {type(error).__name__}: {error}") from error
        other(*map(tf.constant, arrays), **training_argument(other, False))
    shapes = [[one.shape for one in weights] for weights in (other.get_weights(), layer.get_weights())]
    if shapes[0] != shapes[1]:
        raise MismatchError(f"the weights of the new layer have the shapes {shapes[0]}, and not {shapes[1]}")
    other.set_weights(layer.get_weights())
    parts = [arrays] * replicas_of(strategy)
    found, wanted = (_outputs(strategy, one, parts, "function") for one in (other, layer))
    compare("the output of the new layer", found, wanted, SINGLE, where="from the layer that was saved")


def train(run: Any, subject: Subject) -> None:
    """Train the layer and a linear layer behind it with SGD on examples that differ.

    The precision is that of the run, which the comparison has chosen.
    """
    import tensorflow as tf

    keras = package_of(subject.flavor)
    precision = keras.backend.floatx()
    arrays = cast(subject.data(4 * GLOBAL_BATCH) if subject.data else (), precision)
    targets = np.random.default_rng(3).normal(size=(4 * GLOBAL_BATCH, _TARGETS)).astype(precision)
    with run.strategy.scope():
        layer = subject.make()
        outputs = layer(*(tf.constant(one[:2]) for one in arrays), **training_argument(layer, False))
        head = keras.layers.Dense(_TARGETS)
        head.build((None, _features(outputs, precision).shape[-1]))
        weights = [*layer.trainable_variables, *head.trainable_variables]
        optimizer = keras.optimizers.SGD(0.05)
        optimizer.build(weights)
    run.watch(variables=[*layer.weights, *head.weights], optimizer=optimizer)
    data = tf.data.Dataset.from_tensor_slices((*arrays, targets)).batch(run.global_batch_size).repeat()

    def replica_step(batch: Any) -> Any:
        *inputs, wanted = batch
        with tf.GradientTape() as tape:
            found = head(_features(layer(*inputs, **training_argument(layer, True)), precision))
            losses = tf.reduce_mean((found - tf.cast(wanted, found.dtype)) ** 2, axis=-1)
            loss = tf.nn.compute_average_loss(losses, global_batch_size=run.global_batch_size)
            if layer.losses:
                loss += tf.nn.scale_regularization_loss(tf.add_n([tf.cast(one, loss.dtype) for one in layer.losses]))
        gradients = tape.gradient(loss, weights)
        optimizer.apply_gradients([pair for pair in zip(gradients, weights, strict=True) if pair[0] is not None])
        return loss

    def train_step(iterator: Any) -> Any:
        losses = run.strategy.run(replica_step, args=(next(iterator),))
        return run.strategy.reduce("SUM", losses, axis=None)

    for _ in run.steps(tf.function(train_step, autograph=False), data):
        pass


def _features(outputs: Any, precision: str) -> Any:
    """Return the outputs of a layer as one row of numbers for each example."""
    import tensorflow as tf

    flattened = [tf.cast(one, precision) for one in tf.nest.flatten(outputs)]
    return tf.concat([tf.reshape(one, (-1, int(np.prod(one.shape[1:])))) for one in flattened], axis=-1)


@register(
    "layer",
    "Training with the layer is training on one device: weights and state after each step, on every replica.",
    advice="Section 'cause' of the report says what differs. If the layer is meant to use the other examples of the "
    "batch, declare Tags(needs_whole_batch=True).",
    unless=("random", "needs_whole_batch"),
    coordinator=True,
    is_training=True,
)
def layer_in_training(run: Any, subject: Subject) -> None:
    train(run, subject)


@register(
    "layer",
    "After steps with other examples on each replica, the state of the layer is the same on all replicas and workers.",
    advice="Give a variable that replicas assign an aggregation: add_weight(..., aggregation='mean').",
    needs=("state",),
    together=lambda results: _same_state(results),
)
def layer_state_on_all_replicas(strategy: Any, subject: Subject) -> list[tuple[str, list[Array]]]:
    layer = make(strategy, subject)
    step = _steps(strategy, layer, "function")
    rows = [2] * replicas_of(strategy)
    for number in range(_STEPS):
        step(split(_scaled(subject, sum(rows), number), rows))
    states = []
    for position, variable in enumerate(layer.non_trainable_weights):
        name = str(getattr(variable, "path", variable.name)) or f"state {position}"
        states.append((name, _copies(strategy, variable)))
    return states


def _copies(strategy: Any, variable: Any) -> list[Array]:
    """Return what this process has of a variable: its copies, or the one value that a read makes of them."""
    import tensorflow as tf

    own = getattr(variable, "value", variable)
    own = variable if callable(own) else own
    added = (tf.VariableAggregation.SUM, tf.VariableAggregation.MEAN)
    on_read = getattr(own, "synchronization", None) == tf.VariableSynchronization.ON_READ
    if on_read and getattr(own, "aggregation", None) in added:
        return [np.asarray(own)]
    return components(strategy, variable)


def _same_state(results: Sequence[Sequence[tuple[str, list[Array]]]]) -> None:
    """Compare the copies of all ranks.

    :raises MismatchError: if two differ.
    """
    for variables in zip(*results, strict=True):
        name = variables[0][0]
        copies = [copy for _name, own in variables for copy in own]
        for position, copy in enumerate(copies[1:], 1):
            if not np.allclose(copy, copies[0], SINGLE, 0, equal_nan=True):
                raise MismatchError(
                    f"{name} is {shown(copies[0])} on the first replica, and {shown(copy)} on another (copy {position})"
                )


def _draws(strategy: Any, subject: Subject, seed: int) -> list[list[Array]]:
    """Return the outputs of two steps in which every replica has the same examples, after the seed was set."""
    with prepared(subject.flavor, subject.precision, seed):
        layer = make(strategy, subject)
        parts = [subject.arrays(8)] * replicas_of(strategy)
        step = _steps(strategy, layer, "function")
        return [[np.asarray(one) for one in flat(list(result))] for _ in range(2) for result in step(parts)]


@register(
    "layer",
    "Replicas and steps draw different random numbers.",
    advice="Fold the number of the replica into the seed, or draw from a tf.random.Generator made in the scope.",
    needs=("random",),
    together=lambda results: _different([draw for draws in results for draw in draws]),
)
def layer_draws_of_replicas(strategy: Any, subject: Subject) -> list[list[Array]]:
    return _draws(strategy, subject, 7)


def _different(draws: Sequence[Sequence[Array]]) -> None:
    """Check that no two replicas or steps have the same outputs.

    :raises MismatchError: if two have.
    """
    for position, draw in enumerate(draws):
        for other, later in enumerate(draws[position + 1 :], position + 1):
            if all(np.array_equal(one, two) for one, two in zip(draw, later, strict=True)):
                raise MismatchError(
                    f"of {len(draws)} outputs of the replicas and two steps for the same examples, "
                    f"number {position + 1} and number {other + 1} are equal: {shown(draw[0])}"
                )


@register(
    "layer",
    "A seed decides the random numbers: the same seed repeats them, and another one does not.",
    advice="Draw with a seed from keras.random.SeedGenerator, or with operations that use TensorFlow's global seed.",
    needs=("random",),
)
def layer_draws_after_a_seed(strategy: Any, subject: Subject) -> None:
    first, again, other = (_draws(strategy, subject, seed) for seed in (7, 7, 8))
    # Other numbers differ by far more than rounding. On a GPU, not each kernel gives the same bits twice.
    compare("the output after the same seed", again, first, SINGLE, where="the first time")
    if all(np.array_equal(one, two) for one, two in zip(flat(first), flat(other), strict=True)):
        raise MismatchError(f"the output is the same after another seed: {shown(flat(first)[0])}")
