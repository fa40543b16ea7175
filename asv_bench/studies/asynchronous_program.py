"""Train a small network synchronously, asynchronously, or as Downpour does; this code runs in the ranks.

All parameters are one vector, so that a fetch is one read and a push is one addition.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pytest_ddl.cluster.worker import own_rank
from pytest_ddl.training import environment
from pytest_ddl.training.listener import StepListener
from pytest_ddl.training.run import Run
from pytest_ddl.training.settings import RunSettings

Array = NDArray[Any]
SYNCHRONOUS, ASYNCHRONOUS, DOWNPOUR = "synchronous", "asynchronous", "downpour"
CLASSES, HIDDEN = 10, 32
WARM_UP = 4
"""Steps for each worker before the timed ones, which trace the step and load it on the worker."""


@dataclass(frozen=True)
class Images:
    """Features ``[images, features]``, float32, and labels from 0."""

    x_train: Array
    y_train: Array
    x_test: Array
    y_test: Array


@dataclass(frozen=True)
class Setting:
    """One training."""

    mode: str
    workers: int
    slow: bool
    """True if one of the workers waits before each of its gradients."""
    rate: float
    batch: int = 32
    """Examples in a gradient of one worker."""
    examples: int = 28_000
    """Examples of all workers together; whole rounds, so it is rounded down."""
    delay: float = 0.01
    """Seconds that the slow worker waits before each gradient, without using a core."""
    push: int = 1
    """Gradients that a worker sums before it sends them."""
    fetch: int = 1
    """Gradients after which a worker reads the parameters again."""

    @property
    def round(self) -> int:
        """Gradients after which a worker both pushes and fetches."""
        return math.lcm(self.push, self.fetch)

    @property
    def rounds(self) -> int:
        """Steps of the run: each worker's rounds, or steps of all workers together."""
        together = self.workers if self.mode == SYNCHRONOUS else self.round
        return self.examples // (self.batch * together)


@dataclass(frozen=True)
class Course:
    """Updates of the parameters in the order in which they were applied."""

    losses: tuple[float, ...]
    """Mean loss of the examples of each update, at the parameters that its worker had."""
    seconds: tuple[float, ...]
    """Seconds from the start to each update."""
    examples_per_update: int
    accuracy: float
    """Accuracy on the test images with the last parameters."""
    staleness: tuple[int, ...] = ()
    """Updates of other workers between the fetch for the first gradient of each update and its push; empty for
    synchronous ones."""
    workers: tuple[int, ...] = ()
    """Worker of each update; empty for synchronous ones."""

    @property
    def throughput(self) -> float:
        """Examples per second of all workers."""
        return len(self.losses) * self.examples_per_update / self.seconds[-1]


class _Silent(StepListener):
    """Listener that lets the program see what its steps return."""

    def __init__(self) -> None:
        self._steps = 0

    @property
    def completed(self) -> int:
        return self._steps

    @property
    def reached_limit(self) -> bool:
        return False

    def end_step(
        self, loss: Any = None, shown: Mapping[str, Any] | None = None, traces: int | None = None, left: int = 0
    ) -> float | None:
        self._steps += 1
        return None


def train(images: Images, setting: Setting, settings: RunSettings) -> Course:
    """Train on this rank, or on the workers of this coordinator."""
    context = own_rank()
    with environment.prepared(settings, context.rank):
        run = Run(settings, context, _Silent())
        return synchronously(run, images, setting) if setting.mode == SYNCHRONOUS else delayed(run, images, setting)


def to_target(run: Any, learning_rate: float, images: Images, setting: Setting) -> None:
    """Train on one device, for :func:`pytest_ddl.bench.steps_to_target`."""
    assert run.global_batch_size is not None
    synchronously(run, images, replace(setting, rate=learning_rate), warm_up=False)


def synchronously(run: Any, images: Images, setting: Setting, *, warm_up: bool = True) -> Course:
    """Train with the mean gradient of all workers in each step."""
    import tensorflow as tf

    model = Network(images.x_train.shape[1])
    with run.strategy.scope():
        parameters = tf.Variable(model.initial(run.seed), aggregation=tf.VariableAggregation.MEAN)
    waits = setting.slow and run.rank == run.num_ranks - 1

    def own(batch: Any) -> Any:
        paused = [pause(setting.delay)] if waits else []
        with tf.control_dependencies(paused):
            loss, gradient = model.gradient(parameters.read_value(), *batch)
        # Each replica has as many examples as the others, so the mean of their gradients is that of the batch.
        parameters.assign_sub(setting.rate * gradient)
        return loss

    @tf.function  # type: ignore[untyped-decorator]
    def step(iterator: Any) -> Any:
        losses = run.strategy.run(own, args=(next(iterator),))
        return run.strategy.reduce("MEAN", losses, axis=None)

    def dataset() -> Any:
        made = tf.data.Dataset.from_tensor_slices((images.x_train, images.y_train))
        return made.shuffle(len(images.y_train), seed=run.seed).repeat().batch(run.global_batch_size)

    if warm_up:
        for _ in run.steps(step, dataset(), steps=WARM_UP):
            pass
        parameters.assign(model.initial(run.seed))
    losses, seconds, started = [], [], time.perf_counter()
    for loss in run.steps(step, dataset(), steps=setting.rounds):
        losses.append(float(loss))
        seconds.append(time.perf_counter() - started)
    accuracy = model.accuracy(parameters.numpy(), images.x_test, images.y_test)
    return Course(tuple(losses), tuple(seconds), int(run.global_batch_size), accuracy)


def delayed(run: Any, images: Images, setting: Setting) -> Course:
    """Train with gradients that each worker pushes by itself; a coordinator schedules all rounds at once.

    With ``push=1, fetch=1``, a round is an ordinary step of ParameterServerStrategy. Otherwise a worker does what a
    worker of Downpour does (Dean et al. 2012, appendix, algorithm 1.1). It keeps a local copy of the parameters and
    moves it by its own gradients. It pushes their sum every ``push`` gradients, and reads the parameters again every
    ``fetch`` gradients. A counter beside the parameters counts the updates between a fetch and a push.
    """
    import tensorflow as tf

    model = Network(images.x_train.shape[1])
    with run.strategy.scope():
        parameters = tf.Variable(model.initial(run.seed))
        updates = tf.Variable(0, dtype=tf.int64)
        iterators = tf.Variable(0, dtype=tf.int64)

    def fetched() -> tuple[Any, Any]:
        version = updates.read_value()
        # The counter first: an update between both reads then counts as one that the worker does not have.
        with tf.control_dependencies([version]):
            return version, parameters.read_value()

    @tf.function  # type: ignore[untyped-decorator]
    def step(iterator: Any) -> Any:
        began = tf.timestamp()
        with tf.control_dependencies([began]):
            # ``known``: updates that the worker's copy contains, its own ones included.
            known, local = fetched()
        pushes: list[Any] = []
        losses: list[Any] = []
        accrued, oldest = tf.zeros_like(local), known
        for index in range(setting.round):
            if index and index % setting.fetch == 0:
                known, local = fetched()
            if not losses:
                oldest = known
            inputs, labels, worker = next(iterator)
            slow = tf.logical_and(setting.slow, tf.equal(worker, setting.workers - 1))
            with tf.control_dependencies([tf.cond(slow, lambda: pause(setting.delay), lambda: tf.zeros([], tf.int64))]):
                loss, gradient = model.gradient(local, inputs, labels)
            accrued, local = accrued + gradient, local - setting.rate * gradient
            losses.append(loss)
            if (index + 1) % setting.push == 0:
                with tf.control_dependencies([parameters.assign_sub(setting.rate * accrued, read_value=False)]):
                    after = updates.assign_add(1)
                    after = after.read_value() if isinstance(after, tf.Variable) else after
                with tf.control_dependencies([after]):
                    ended = tf.timestamp()
                pushes.append((tf.reduce_mean(tf.stack(losses)), oldest, after, ended))
                accrued, losses, known = tf.zeros_like(local), [], known + 1
        return began, worker, [tf.stack(column) for column in zip(*pushes, strict=True)]

    def dataset(_context: Any) -> Any:
        # TensorFlow calls this function once on each worker, so the counter gives each worker its number.
        worker = iterators.assign_add(1, read_value=True) - 1
        made = tf.data.Dataset.from_tensor_slices((images.x_train, images.y_train))
        made = made.shard(setting.workers, worker).shuffle(len(images.y_train), seed=run.seed).repeat()
        return made.batch(setting.batch).map(lambda inputs, labels: (inputs, labels, worker))

    for _ in run.steps(step, dataset, steps=WARM_UP * setting.workers, concurrent=True):
        pass
    for variable, value in ((parameters, model.initial(run.seed)), (updates, 0), (iterators, 0)):
        variable.assign(value)
    found = [
        tf.nest.map_structure(np.asarray, result)
        for result in run.steps(step, dataset, steps=setting.rounds, concurrent=True)
    ]
    accuracy = model.accuracy(parameters.numpy(), images.x_test, images.y_test)
    return _course(found, setting, accuracy)


def _course(found: list[Any], setting: Setting, accuracy: float) -> Course:
    """Order the pushes of all rounds by the counter."""
    start = min(float(began) for began, _worker, _pushes in found)
    pushes = sorted(
        (int(after), float(loss), int(oldest), float(ended) - start, int(worker))
        for _began, worker, columns in found
        for loss, oldest, after, ended in zip(*columns, strict=True)
    )
    return Course(
        losses=tuple(loss for _after, loss, _oldest, _ended, _worker in pushes),
        # A push may read the clock after the next one has done so.
        seconds=tuple(float(one) for one in np.maximum.accumulate([ended for _a, _l, _o, ended, _w in pushes])),
        examples_per_update=setting.batch * setting.push,
        accuracy=accuracy,
        staleness=tuple(after - 1 - oldest for after, _loss, oldest, _ended, _worker in pushes),
        workers=tuple(worker for _after, _loss, _oldest, _ended, worker in pushes),
    )


def pause(seconds: float) -> Any:
    """Return a tensor that is ready after some seconds, in which no core is used. It is made in a graph."""
    import tensorflow as tf

    kinds: dict[str, Any] = {"output_types": [tf.int64], "output_shapes": [tf.TensorShape([])]}
    zero, one = tf.constant(0, tf.int64), tf.constant(1, tf.int64)
    numbers = tf.raw_ops.RangeDataset(start=zero, stop=one, step=one, **kinds)
    # The last operation asks for an element and for the end of the data, and waits before each of them.
    half = tf.constant(round(seconds * 1e6 / 2), tf.int64)
    slow = tf.raw_ops.SleepDataset(input_dataset=numbers, sleep_microseconds=half, **kinds)
    return tf.raw_ops.DatasetToSingleElement(dataset=slow, **kinds)[0]


class Network:
    """Network with one hidden layer, whose parameters are one vector."""

    def __init__(self, features: int) -> None:
        self._shapes = ((features, HIDDEN), (HIDDEN,), (HIDDEN, CLASSES), (CLASSES,))
        self._sizes = [math.prod(shape) for shape in self._shapes]

    def initial(self, seed: int) -> Array:
        """Return random weights with the spread of He et al. 2015, and zeros for the biases."""
        generator = np.random.default_rng(seed)
        parts = [
            generator.normal(0.0, math.sqrt(2 / shape[0]), size) if len(shape) == 2 else np.zeros(size)
            for shape, size in zip(self._shapes, self._sizes, strict=True)
        ]
        return np.concatenate(parts).astype(np.float32)

    def gradient(self, parameters: Any, inputs: Any, labels: Any) -> tuple[Any, Any]:
        """Return the mean loss of the examples, and its gradient."""
        import tensorflow as tf

        with tf.GradientTape() as tape:
            tape.watch(parameters)
            split = tf.split(parameters, self._sizes)
            logits = self._logits(split, inputs, tf.nn.relu, tf.reshape)
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
            loss = tf.reduce_mean(losses)
        return loss, tape.gradient(loss, parameters)

    def accuracy(self, parameters: Array, inputs: Array, labels: Array) -> float:
        """Return the share of right answers, computed in NumPy."""
        split = np.split(parameters, np.cumsum(self._sizes)[:-1])
        logits = self._logits(split, inputs, lambda x: np.maximum(x, 0), np.reshape)
        return float((logits.argmax(axis=1) == labels).mean())

    def _logits(self, split: Any, inputs: Any, relu: Callable[[Any], Any], shaped: Callable[..., Any]) -> Any:
        first, bias, second, other_bias = (shaped(one, to) for one, to in zip(split, self._shapes, strict=True))
        return relu(inputs @ first + bias) @ second + other_bias
