"""Record a training that is timed epoch by epoch; this code runs in the ranks."""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import numpy as np

from asv_bench.studies.mnist.program import scaled
from asv_bench.studies.mnist.results import RankTraining
from pytest_ddl.bench.launching.energy import EnergyMeter
from pytest_ddl.bench.launching.pinning import first_replica, pinned
from pytest_ddl.bench.launching.records import EnergyReading
from pytest_ddl.bench.launching.remote import peak_bytes
from pytest_ddl.bench.launching.stopwatch import synchronize
from pytest_ddl.cluster.worker import own_rank
from pytest_ddl.strategies.base import RankContext
from pytest_ddl.training import environment, values
from pytest_ddl.training.listener import StepListener
from pytest_ddl.training.run import Run
from pytest_ddl.training.settings import RunSettings
from pytest_ddl.training.watching import Watcher

EVALUATION_BATCH = 500


@dataclass(frozen=True)
class Orders:
    """Instructions that are sent to a rank."""

    file: str
    """File with the images; the recorder uses the test images."""
    steps_per_epoch: int
    cores_per_replica: int = 0


@dataclass(frozen=True)
class RankAnswer:
    """Answer of a rank."""

    training: RankTraining
    versions: dict[str, str]


class EpochRecorder(StepListener):
    """Listener that counts steps. After each epoch it reads the clock, evaluates, and starts the clock again.

    All ranks start the clock together, after a collective that no rank leaves before all have entered it. Otherwise a
    rank that evaluates faster would count its wait for the others as training.
    """

    def __init__(self, context: RankContext, orders: Orders, on_begin: Callable[[], None]) -> None:
        self._context = context
        self._watcher = Watcher(context.strategy, self.note)
        self._on_begin = on_begin
        self._per_epoch = orders.steps_per_epoch
        with np.load(orders.file) as found:
            self._images, self._labels = scaled(found["x_test"]), found["y_test"]
        self._logits: Callable[[Any], Any] | None = None
        self._meet = _meeting(context)
        self._step_losses: list[Any] = []
        self._made = time.perf_counter()
        self._clock = 0.0
        self._traces: list[int] = []
        self._untrained = ""
        self.build_seconds = 0.0
        self.evaluation_seconds = 0.0
        self.steps = 0
        self.epoch_seconds: list[float] = []
        self.losses: list[float] = []
        self.test_losses: list[float] = []
        self.test_accuracies: list[float] = []

    # -- calls of the run ------------------------------------------------------------------------

    @property
    def completed(self) -> int:
        return self.steps

    @property
    def reached_limit(self) -> bool:
        return False

    def watch(self, model: Any = None, optimizer: Any = None, variables: Any = None, metrics: Any = None) -> None:
        self._watcher.add(model, optimizer, variables, metrics)

    def begin(self) -> None:
        self._untrained = self.digests()[0]
        self.build_seconds = time.perf_counter() - self._made
        self._on_begin()
        self._start_clock()

    def end_step(
        self, loss: Any = None, shown: Mapping[str, Any] | None = None, traces: int | None = None, left: int = 0
    ) -> float | None:
        self.steps += 1
        # Not read here, because that would wait for the device after every step.
        self._step_losses.append(loss)
        if self.steps % self._per_epoch == 0:
            synchronize(loss)
            stopped = time.perf_counter()
            self.epoch_seconds.append(stopped - self._clock)
            self._traces.append(traces or 0)
            self._end_epoch()
            self.evaluation_seconds += time.perf_counter() - stopped
            self._start_clock()
        return None

    # --------------------------------------------------------------------------------------------

    @property
    def retraces(self) -> int:
        return self._traces[-1] - self._traces[0] if self._traces else 0

    @property
    def moved(self) -> bool:
        return self.digests()[0] != self._untrained

    def digests(self) -> tuple[str, ...]:
        """Return the SHA-256 of all trainable weights, one for each replica on this rank."""
        self._watcher.scan()
        weights = [item for item in self._watcher.watched if item.record.kind.value == "trainable"]
        parts = [values.read(self._context.strategy, item.variable) for item in weights]
        return tuple(
            hashlib.sha256(b"".join(part.tobytes() for part in replica)).hexdigest()
            for replica in zip(*parts, strict=True)
        )

    def _start_clock(self) -> None:
        self._meet()
        self._clock = time.perf_counter()

    def _end_epoch(self) -> None:
        found = [values.scalar(loss) for loss in self._step_losses]
        self._step_losses.clear()
        self.losses.append(float(np.mean([math.nan if loss is None else loss for loss in found])))
        loss, accuracy = self._evaluate()
        self.test_losses.append(loss)
        self.test_accuracies.append(accuracy)

    def _evaluate(self) -> tuple[float, float]:
        """Return mean cross-entropy and accuracy on the test set, from this rank's own copy of the weights."""
        import tensorflow as tf

        model = self._watcher.models[0]
        if self._logits is None:
            self._logits = tf.function(lambda images: model(images, training=False), reduce_retracing=True)
        batches = range(0, len(self._labels), EVALUATION_BATCH)
        logits = np.concatenate([self._logits(self._images[at : at + EVALUATION_BATCH]).numpy() for at in batches])
        shifted = logits.astype(np.float64) - logits.max(axis=1, keepdims=True)
        chosen = shifted[np.arange(len(logits)), self._labels]
        entropy = np.log(np.exp(shifted).sum(axis=1)) - chosen
        return float(entropy.mean()), float((logits.argmax(axis=1) == self._labels).mean())


def run_epochs(train: Callable[[Any], Any], settings: RunSettings, orders: Orders) -> RankAnswer:
    """Run a training function on this rank to its end, and time its epochs."""
    context = own_rank()
    local = max(1, context.num_replicas // context.num_ranks)
    # The counters give the energy of the whole machine, so only one rank reads them.
    meter = EnergyMeter() if context.rank == 0 else None
    reading = EnergyReading(None, reason="read by rank 0")
    with ExitStack() as stack:
        stack.enter_context(pinned(first_replica(context.rank, local), local, orders.cores_per_replica))
        stack.enter_context(environment.prepared(settings, context.rank))
        recorder = EpochRecorder(context, orders, meter.start if meter is not None else lambda: None)
        train(Run(settings, context, recorder))
        if meter is not None:
            reading = meter.stop()
        training = RankTraining(
            rank=context.rank,
            task=context.task,
            epoch_seconds=tuple(recorder.epoch_seconds),
            losses=tuple(recorder.losses),
            test_losses=tuple(recorder.test_losses),
            test_accuracies=tuple(recorder.test_accuracies),
            steps=recorder.steps,
            build_seconds=recorder.build_seconds,
            evaluation_seconds=recorder.evaluation_seconds,
            weights=recorder.digests(),
            moved=recorder.moved,
            retraces=recorder.retraces,
            peak_memory_bytes=peak_bytes(),
            energy=reading,
        )
    return RankAnswer(training, environment.versions())


def _meeting(context: RankContext) -> Callable[[], None]:
    """Return a collective that no rank leaves before all have entered it. For one rank it does nothing."""
    import tensorflow as tf

    if context.num_ranks == 1:
        return lambda: None

    @tf.function  # type: ignore[untyped-decorator]
    def meet() -> Any:
        def one() -> Any:
            return tf.distribute.get_replica_context().all_reduce("SUM", tf.constant(1.0))

        return context.strategy.reduce("MEAN", context.strategy.run(one), axis=None)

    def met() -> None:
        found = float(meet())
        if found != context.num_replicas:
            raise RuntimeError(f"{found:g} replicas met at the start of an epoch, not {context.num_replicas}")

    return met
