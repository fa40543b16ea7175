"""Measurements of the comparison: a training function on one device, under a strategy, and judged."""

from __future__ import annotations

import functools
import itertools
import statistics
import tempfile
import time
from typing import Any

from pytest_ddl.cluster import ship
from pytest_ddl.cluster.protocol import RequestKind
from pytest_ddl.cluster.worker import own_rank
from pytest_ddl.equivalence.runs.comparer import Comparer
from pytest_ddl.equivalence.runs.question import Question
from pytest_ddl.harness import Harness
from pytest_ddl.items.selection import DdlMark
from pytest_ddl.training.execute import execute
from pytest_ddl.training.observers.registry import OBSERVERS
from pytest_ddl.training.settings import RunSettings

_attempts = itertools.count()


def train(run: Any, attempt: int = 0) -> None:
    """Three layers and plain SGD; ``attempt`` makes each comparison one whose reference is not known yet."""
    import keras
    import numpy as np
    import tensorflow as tf

    with run.strategy.scope():
        layers = [keras.layers.Dense(32, activation="relu"), keras.layers.Dense(32, activation="relu")]
        model = keras.Sequential([keras.Input((16,)), *layers, keras.layers.Dense(1)])
        optimizer = keras.optimizers.SGD(0.05)
    run.watch(model=model, optimizer=optimizer)
    rng = np.random.default_rng(attempt)
    x, y = rng.normal(size=(64, 16)).astype("float32"), rng.normal(size=(64, 1)).astype("float32")
    dataset = tf.data.Dataset.from_tensor_slices((x, y)).batch(run.global_batch_size)

    @tf.function  # type: ignore[untyped-decorator]
    def train_step(iterator: Any) -> Any:
        def replica_step(batch: Any) -> Any:
            x, y = batch
            with tf.GradientTape() as tape:
                losses = tf.square(model(x) - y)[:, 0]
                loss = tf.nn.compute_average_loss(losses, global_batch_size=run.global_batch_size)
            gradients = tape.gradient(loss, model.trainable_variables)
            optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
            return loss

        return run.strategy.reduce("SUM", run.strategy.run(replica_step, args=(next(iterator),)), axis=None)

    for _loss in run.steps(train_step, dataset):
        pass


def timed(run: Any, seconds: list[float]) -> None:
    """The same model in a loop whose every step is timed, the recording of the step before included."""
    for _loss in run.steps(*_subject(run.strategy, run)):
        seconds.append(time.perf_counter())


def bare(strategy: Any, steps: int) -> list[float]:
    """The same loop without the plugin."""
    step, dataset = _subject(strategy, None)
    iterator = iter(strategy.experimental_distribute_dataset(dataset))
    seconds = []
    for _ in range(steps):
        float(step(iterator))
        seconds.append(time.perf_counter())
    return seconds


def _subject(strategy: Any, run: Any) -> tuple[Any, Any]:
    import keras
    import numpy as np
    import tensorflow as tf

    with strategy.scope():
        layers = [keras.layers.Dense(64, activation="relu"), keras.layers.Dense(64, activation="relu")]
        model = keras.Sequential([keras.Input((32,)), *layers, keras.layers.Dense(1)])
        optimizer = keras.optimizers.SGD(0.01)
        optimizer.build(model.trainable_variables)
    if run is not None:
        run.watch(model=model, optimizer=optimizer)
    x = np.random.default_rng(0).normal(size=(64, 32)).astype("float32")
    dataset = tf.data.Dataset.from_tensor_slices((x, x[:, :1])).batch(64).repeat()

    @tf.function  # type: ignore[untyped-decorator]
    def train_step(iterator: Any) -> Any:
        def replica_step(batch: Any) -> Any:
            x, y = batch
            with tf.GradientTape() as tape:
                loss = tf.nn.compute_average_loss(tf.square(model(x) - y)[:, 0], global_batch_size=64)
            gradients = tape.gradient(loss, model.trainable_variables)
            optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
            return loss

        return strategy.reduce("SUM", strategy.run(replica_step, args=(next(iterator),)), axis=None)

    return train_step, dataset


def steps_in_turns(rounds: int, steps: int, folder: str) -> dict[str, list[float]]:
    """Return seconds between steps on this rank: bare, in a run that observes nothing, and in one that records all."""
    context = own_rank()
    found: dict[str, list[float]] = {"bare": [], "unobserved": [], "recorded": []}
    for _ in range(rounds):
        for kind, known in found.items():
            if kind == "bare":
                moments = bare(context.strategy, steps)
            else:
                moments = []
                settings = RunSettings(steps=steps, observe=kind == "recorded", tmp_path=folder, global_batch_size=64)
                record = execute(functools.partial(timed, seconds=moments), settings, context, OBSERVERS)
                assert record.error is None, record.error.traceback
            # The first step traces, and those after it fill caches.
            known += [after - before for before, after in itertools.pairwise(moments[5:])]
    return found


def recording_seconds(harness: Harness, rounds: int = 5, steps: int = 60) -> dict[str, float]:
    """Median seconds of a step in each of these ways, measured in turns in one rank."""
    spec = harness.registry.parse_variant("mirrored")
    with tempfile.TemporaryDirectory() as folder, harness.cluster(spec, DdlMark()) as cluster:
        job = ship.pack(steps_in_turns, (rounds, steps, folder))
        (answer,) = cluster.ask(RequestKind.CALL, job, deadline=time.monotonic() + 300)
        assert answer.ok, answer.failure
        found: dict[str, list[float]] = ship.unpack(answer.body)
    return {kind: statistics.median(seconds) for kind, seconds in found.items()}


def equivalence_seconds(harness: Harness, variant: str) -> float:
    """Seconds for one comparison on warm clusters, the single-device reference included."""
    spec = harness.registry.parse_variant(variant)
    subject = functools.partial(train, attempt=next(_attempts))
    started = time.monotonic()
    report = Comparer(harness).compare(Question(subject, spec, DdlMark(), global_batch_size=16, steps=4))
    seconds = time.monotonic() - started
    assert report.passed, str(report)
    return seconds
