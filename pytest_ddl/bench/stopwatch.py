"""The recorder of a measured run: it reads the clock, and nothing else, while steady steps run."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from pytest_ddl.bench.pacing import Paced
from pytest_ddl.records import BatchRecord, GraphRecord
from pytest_ddl.strategies.base import RankContext
from pytest_ddl.training import values
from pytest_ddl.training.observers.graphs import GraphObserver
from pytest_ddl.training.recorder import Recorder
from pytest_ddl.training.settings import RunSettings
from pytest_ddl.training.watching import Watched


class Stopwatch(Recorder):
    """Runs warm-up steps, then blocks of steps as the controller orders them.

    Devices are synchronised before the clock is read: a step that has been launched is not a step
    that has been done.
    """

    def __init__(
        self,
        settings: RunSettings,
        context: RankContext,
        address: str,
        warm_up: int,
        on_steady: Callable[[], Any],
        on_stopped: Callable[[], Any] = lambda: None,
    ) -> None:
        super().__init__(settings, context)
        self._address, self._warm_up = address, warm_up
        self._on_steady, self._on_stopped = on_steady, on_stopped
        self._rank = context.rank
        self._paced: Paced | None = None
        self._left = 0
        self._stopped = False
        self._count = 0
        self._started = time.perf_counter()
        self._begun = self._first = self._warm = self._block = 0.0
        self._told_traces = 0
        self.blocks: list[float] = []
        self.traces_before: int | None = None
        self.loss: float | None = None
        self.graphs = GraphObserver(settings, context, self)

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
        """Whether the warm-up was completed."""
        return self._paced is not None

    @property
    def steps_per_call(self) -> int:
        """Steps that Keras runs between two callbacks."""
        found = (getattr(model, "steps_per_execution", 1) for model in self._watcher.models)
        return max((int(number) for number in found if isinstance(number, int)), default=1)

    @property
    def traces(self) -> int:
        """Functions traced up to now, as they tell or as their graphs show."""
        return max(self._told_traces, len(self.graph_records))

    @property
    def graph_records(self) -> tuple[GraphRecord, ...]:
        found: tuple[GraphRecord, ...] = self.graphs.end_run()["graphs"]
        return found

    @property
    def notes(self) -> tuple[str, ...]:
        return tuple(self._notes)

    def variables(self) -> tuple[Watched, ...]:
        """What the program watches."""
        self._watcher.scan()
        return self._watcher.watched

    # -- the interface of a recorder -------------------------------------------------------------

    def look_for_new(self) -> None:
        """Variables are looked at when all is over."""

    def begin(self) -> None:
        if not self._begun:
            self._begun = time.perf_counter()

    def result(self, name: str, value: Any) -> None:
        """What ``fit`` and ``evaluate`` return is not kept."""

    def end_without_step(self) -> None:
        """Nothing was recorded that could belong to no step."""

    def end_step(
        self,
        loss: Any = None,
        shown: Mapping[str, Any] | None = None,
        traces: int | None = None,
        snapshot: bool = True,
        batches: tuple[BatchRecord, ...] | None = None,
    ) -> float | None:
        self._count += self.steps_per_call
        self._told_traces = max(self._told_traces, traces or 0)
        if self._paced is None:
            self._end_warm_up_step(loss)
            return None
        self._left -= self.steps_per_call
        if self._left <= 0 and not self._stopped:
            synchronise(loss)
            seconds = time.perf_counter() - self._block
            self.loss = values.scalar(loss)
            self.graphs.end_step()
            # A block of a loop that takes several steps at once may be longer than was ordered.
            self._paced.done(seconds * self._ordered / (self._ordered - self._left), self.traces)
            self.blocks.append(seconds)
            self._take_order()
        return None

    def _end_warm_up_step(self, loss: Any) -> None:
        if not self._first:
            synchronise(loss)
            self._first = time.perf_counter()
        if self._count < self._warm_up:
            return
        synchronise(loss)
        self._warm = time.perf_counter()
        self.graphs.end_step()
        self.traces_before = self.traces
        self._on_steady()
        self._paced = Paced(self._address, self._rank)
        self._take_order()

    def _take_order(self) -> None:
        assert self._paced is not None
        self._ordered = self._left = self._paced.order().steps
        self._stopped = self._left == 0
        if self._stopped:
            self._on_stopped()
        self._block = time.perf_counter()

    def close(self) -> None:
        if self._paced is not None:
            self._paced.close()

    @contextmanager
    def counting(self, strategy: Any) -> Iterator[None]:
        """See which graphs call ``strategy.run``; costs a step nothing, as it happens while they are traced."""
        import tensorflow as tf

        original = strategy.run
        before = tf.autograph.experimental.do_not_convert(self.graphs.before_dispatch)

        def run(*args: Any, **kwargs: Any) -> Any:
            before()
            return original(*args, **kwargs)

        with self.graphs.installed():
            strategy.run = run
            try:
                yield
            finally:
                del strategy.run


def synchronise(loss: Any = None) -> None:
    """Wait until every device of this process has done what it was given.

    On CPUs a call of a ``tf.function`` returns when it is done; GPUs are given work that is still to be done.
    ``tf.test.experimental.sync_devices`` waits for the device in whose scope it is called; without one, a
    worker of several (TF 2.21) would ask a peer.
    """
    import tensorflow as tf

    for device in tf.config.list_logical_devices("GPU"):
        with tf.device(device.name):
            tf.test.experimental.sync_devices()
    values.scalar(loss)
