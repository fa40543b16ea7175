"""Listener to a measured run: while steady steps run, it only reads the clock."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from pytest_ddl.bench.launching.executions import Executions
from pytest_ddl.bench.launching.machine import own_devices
from pytest_ddl.bench.launching.pacing import Paced
from pytest_ddl.notes import NoteKind
from pytest_ddl.strategies.base import RankContext
from pytest_ddl.strategies.parameter_server import join_scheduled
from pytest_ddl.training import values
from pytest_ddl.training.listener import StepListener
from pytest_ddl.training.settings import RunSettings
from pytest_ddl.training.watching import Watched, Watcher


class EmptyPipelineError(ValueError):
    """Error if the measured steps had no data."""


class Stopwatch(StepListener):
    """Listener that runs warm-up steps, then blocks of steps as the controller orders them.

    Devices are synchronized before the clock is read, because a step that was launched may still be running.
    """

    def __init__(
        self,
        settings: RunSettings,
        context: RankContext,
        address: str,
        warm_up: int,
        on_steady: Callable[[], Any],
        on_stopped: Callable[[], Any] = lambda: None,
        on_block: Callable[[bool], Any] = lambda _counts: None,
        canary: Callable[[int], float] | None = None,
        count_all: bool = False,
    ) -> None:
        self._settings, self._context = settings, context
        self._notes: dict[str, None] = {}
        self._watcher = Watcher(context.strategy, self.note)
        self._address, self._warm_up = address, warm_up
        self._on_steady, self._on_stopped, self._on_block = on_steady, on_stopped, on_block
        self._canary = canary
        self._count_all = count_all
        self._rank = context.rank
        self._paced: Paced | None = None
        self._left = 0
        self._stopped = False
        self._count = 0
        self._started = time.perf_counter()
        self._begun = self._first = self._warm = self._block = 0.0
        self._reported_traces = 0
        self._ordered = 0
        self.blocks: list[float] = []
        self._steps_of_blocks: list[int] = []
        self._loops = self._warm_loop = 0
        self._loops_of_blocks: list[set[int]] = []
        self._in_block: set[int] = set()
        self.traces_before = 0
        """Value of ``traces`` before the first block that counts."""
        self._traced_before = self._traced_by_then = 0
        self.loss: float | None = None
        self.examples: int | None = None
        """Rows that a step takes on this rank, over its replicas. A last, partial batch is ignored if a larger one was
        seen."""
        self._partial = ""
        self.executions = Executions(self.remark)

    @property
    def completed(self) -> int:
        return self._count

    @property
    def reached_limit(self) -> bool:
        return self._stopped

    @property
    def build_seconds(self) -> float:
        return self._begun - self._started

    @property
    def first_step_seconds(self) -> float:
        return self._first - self._begun

    @property
    def warm_up_seconds(self) -> float:
        return max(0.0, self._warm - self._first)

    @property
    def is_steady(self) -> bool:
        """True if the warm-up was completed."""
        return self._paced is not None

    @property
    def steps_per_call(self) -> int:
        """Steps that Keras runs between two callbacks."""
        return self._largest("steps_per_execution")

    @property
    def unrolled_steps(self) -> int:
        """Steps that the graph of Keras's training function holds one after the other."""
        return min(self._largest("unrolled_steps_per_execution"), self.steps_per_call)

    def _largest(self, setting: str) -> int:
        numbers = (getattr(model, setting, 1) for model in self._watcher.models)
        return max((number for number in numbers if isinstance(number, int)), default=1)

    @property
    def traces(self) -> int:
        """Functions traced so far: the number that steps report or the number of traced graphs, whichever is larger."""
        return max(self._reported_traces, self.executions.traces)

    @property
    def retraces(self) -> int:
        """Functions of any kind that were traced within the blocks that count."""
        return self._traced_by_then - self._traced_before

    @property
    def _traced(self) -> int:
        return max(self.traces, self.executions.functions)

    @property
    def steady_steps(self) -> int:
        """Steps of the blocks that count."""
        return sum(self._steps_of_blocks)

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes for the reader of the result, including :attr:`remarks`."""
        return (*self._notes, *self.remarks)

    @property
    def remarks(self) -> tuple[str, ...]:
        """Notes that concern the measured times."""
        note = loops_note(self._loops, set().union(*self._loops_of_blocks), self._warm_loop)
        return tuple(filter(None, (note, self._partial)))

    def variables(self) -> tuple[Watched, ...]:
        """Return the variables that the program watches."""
        self._watcher.scan()
        return self._watcher.watched

    def remark(self, text: str) -> None:
        """Keep a note on what was not measured or counted."""
        self._notes.setdefault(text)

    def note(self, _kind: NoteKind, text: str) -> None:
        self.remark(text)

    # -- calls of the run ------------------------------------------------------------------------

    def watch(self, model: Any = None, optimizer: Any = None, variables: Any = None, metrics: Any = None) -> None:
        # The variables are read when the run is over.
        self._watcher.add(model, optimizer, variables, metrics)

    def begin(self) -> None:
        if not self._begun:
            self._begun = time.perf_counter()

    def begin_loop(self) -> None:
        super().begin_loop()
        self._loops += 1

    def begin_asynchronous(self, epochs_as_steps: bool = False) -> None:
        raise ValueError(
            "run.steps(..., concurrent=True) cannot be measured: all steps have run before the first is recorded. "
            "Remove concurrent=, or schedule the steps yourself and call run.record() after each schedule()"
        )

    def end_of_steps(self, iterator: Iterator[Any], batches: int | None = None) -> None:
        """Check that there was data to train on, and count its rows.

        Every rank looks at two batches, because this rank may have no example of a last, partial batch.

        :param batches: number of batches that a step takes (default: as many as steps of the warm-up took).
        :raises EmptyPipelineError: if the batches hold no examples.
        """
        if self._paced is None:
            return
        import tensorflow as tf

        tensors: list[Any] = []
        rows: dict[int, list[int]] = {}
        has_ended = False
        for _ in range(2):
            try:
                batch = next(iterator)
            except (StopIteration, tf.errors.OutOfRangeError):
                has_ended = True
                break
            for place, item in enumerate(tf.nest.flatten(batch)):
                parts = [part for part in self._local(item) if _has_rows(part)]
                tensors += parts
                if parts:
                    rows.setdefault(place, []).append(sum(int(tf.shape(part)[0]) for part in parts))
        number = batches or self.executions.batches_of_step
        if rows and number is not None:
            seen = self._examples_in([[found * number for found in each] for each in rows.values()])
            self.examples = max(self.examples or 0, *seen)
            self._partial = self._partial or partial_note(min(seen), max(seen))
        if tensors and not has_ended and all(int(tf.size(tensor)) == 0 for tensor in tensors):
            raise EmptyPipelineError(
                "the steps that were measured had no examples: every batch of this rank is empty. Check filter, "
                "take and shard of the dataset, and the global batch size"
            )

    def _examples_in(self, rows: list[list[int]]) -> list[int]:
        """Return the rows that match this rank's share of the declared batch, else those of the first tensor.

        The first tensor may be the wrong one: its first axis may be time, or the nodes of all graphs.
        """
        declared = self._settings.global_batch_size
        return next((found for found in rows if max(found) * self._context.num_ranks == declared), rows[0])

    def _local(self, value: Any) -> tuple[Any, ...]:
        values: tuple[Any, ...] = tuple(self._context.strategy.experimental_local_results(value))
        return values

    def end_step(
        self, loss: Any = None, shown: Mapping[str, Any] | None = None, traces: int | None = None, left: int = 0
    ) -> float | None:
        self._count += self.steps_per_call
        self._reported_traces = max(self._reported_traces, traces or 0)
        if self._paced is None:
            self._end_warm_up_step(loss)
            return None
        if self._count_all:
            self.executions.end_step()
        self._left -= self.steps_per_call
        self._in_block.add(self._loops)
        if self._left <= 0 and not self._stopped:
            self._wait_for(loss)
            seconds = time.perf_counter() - self._block
            self.loss = values.scalar(loss)
            # If the loop takes several steps per call, a block may be longer than ordered.
            taken = self._ordered - self._left
            self.blocks.append(seconds * self._ordered / taken)
            self._steps_of_blocks.append(taken)
            self._loops_of_blocks.append(self._in_block)
            # Traces of an evaluation after the last block are not retraces.
            self._traced_by_then = self._traced
            self._paced.done(self.blocks[-1], self._traced_by_then)
            self._take_order()
        return None

    def _end_warm_up_step(self, loss: Any) -> None:
        if not self._first:
            self._wait_for(loss)
            # A program that schedules its own steps does not report when building ended.
            self._begun = self._begun or self._started
            self._first = time.perf_counter()
        self.executions.end_step()
        if self._count < self._warm_up:
            return
        self._wait_for(loss)
        self._warm = time.perf_counter()
        self._warm_loop = self._loops
        self.executions.end_warm_up(watch_on=self._count_all)
        self.traces_before = self.traces
        self._traced_before = self._traced_by_then = self._traced
        self._on_steady()
        self._paced = Paced(self._address, self._rank, self._traced)
        self._take_order()

    def _take_order(self) -> None:
        assert self._paced is not None
        order = self._paced.order()
        while order.canary and self._canary is not None:
            self._paced.done(self._canary(order.canary), self._traced)
            order = self._paced.order()
        if self._ordered:
            self._on_block(not order.drop)
        if order.drop:
            self.blocks.pop()
            self._steps_of_blocks.pop()
            self._loops_of_blocks.pop()
            self.traces_before, self._traced_before = self.traces, self._traced_by_then
        self._in_block = set()
        self._ordered = self._left = order.steps
        self._stopped = self._left == 0
        if self._stopped:
            self._on_stopped()
        self._block = time.perf_counter()

    def _wait_for(self, loss: Any) -> None:
        # Workers may not have begun the steps that a program scheduled. This returns at once if its loop has waited.
        join_scheduled(self._context.strategy)
        synchronize(loss)

    def close(self) -> None:
        if self._paced is not None:
            self._paced.close()


def loops_note(loops: int, measured: set[int], warm: int) -> str:
    """Describe which loops were measured if a program has several; return an empty text if nothing needs to be said.

    :param loops: number of loops that the program began with ``run.steps`` or ``run.batches``.
    :param measured: numbers of the loops to which the measured steps belong; 0 is everything before the first loop.
    :param warm: number of the loop in which the warm-up ended.
    """
    of = f"{loops} loop{'s' if loops != 1 else ''} over data (run.steps, run.batches)"
    if not measured or (loops <= 1 and measured == {loops}):
        return ""
    if len(measured) > 1:
        note = (
            f"blocks include steps of the loops {min(measured)} to {max(measured)} of the program's {of}, and the code "
            "between these loops"
        )
    elif measured == {0}:
        note = f"of the program's {of} none was measured: other steps before them took the whole measurement"
    else:
        note = f"of the program's {of} only loop {max(measured)} was measured; the others were not"
    counted = f"; counters are those of loop {warm}" if measured != {warm} else ""
    return f"{note}{counted}. Measure each loop in its own training function"


def partial_note(fewest: int, most: int) -> str:
    """Describe batches of different sizes after the measurement, one of which may be the last of the data set."""
    if fewest == most:
        return ""
    return (
        f"batches of {fewest} and of {most} examples were seen, and all are counted as {most}: throughput is too high "
        "if the data set is small, because its last, partial batch is then frequent (use more data, or "
        "batch(…, drop_remainder=True))"
    )


def _has_rows(value: Any) -> bool:
    import tensorflow as tf

    return isinstance(value, tf.Tensor) and bool(value.shape.rank)


def synchronize(loss: Any = None) -> None:
    """Wait until every device of this process has finished its work.

    On CPUs, a call of a ``tf.function`` returns when it is done, unless the program chose asynchronous execution. Then
    leaving a ``tf.experimental.async_scope`` waits for all calls. On GPUs, work may still be queued.
    ``tf.test.experimental.sync_devices`` waits for the devices of all tasks, which one worker of several cannot do
    (TF 2.21), so its operation is called for each device of this process.
    """
    import tensorflow as tf

    if not tf.config.experimental.get_synchronous_execution():
        with tf.experimental.async_scope():
            pass
    for name in own_devices("GPU"):
        with tf.device(name):
            tf.raw_ops.SyncDevice()
    values.scalar(loss)
