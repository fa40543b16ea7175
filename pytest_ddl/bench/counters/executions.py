"""Which graphs the steps of the warm-up ran, and how often: what the counters are counted in."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from weakref import WeakSet

from pytest_ddl.training import adapter


class Executions:
    """Watches the calls of traced functions up to the end of the warm-up, and traces until the run ends."""

    def __init__(self, note: Callable[[str], None]) -> None:
        self._note = note
        self._lock = threading.Lock()
        self._graphs: dict[int, Any] = {}
        self._partitions: dict[int, list[Any]] = {}
        self._running: Counter[int] = Counter()
        self._steps: list[Counter[int]] = []
        self._running_eagerly = self._was_eager = False
        self._seen: WeakSet[Any] = WeakSet()
        self._batches: Counter[int] = Counter()
        """Of each graph, by its key: the batches that it takes."""
        self._unclear: set[int] = set()
        """Keys of graphs that take batches in a loop or a branch."""
        self._running_batches = 0
        self._batches_of_steps: list[int | None] = []
        self._watching = ExitStack()
        self.is_possible = False
        """Whether this TensorFlow release lets executions be watched."""
        self.traces = 0
        """Graphs that were traced for a function that calls ``strategy.run``."""
        self.functions = 0
        """Functions that were traced at all, TensorFlow's own and those of the input pipeline included."""

    @property
    def last_step(self) -> list[tuple[Any, int, list[Any]]]:
        """Of the last step of the warm-up: each graph, how often it ran, and its parts on the devices."""
        last = self._steps[-1] if self._steps else Counter()
        return [(self._graphs[key], times, self._partitions.get(key, [])) for key, times in last.items()]

    @property
    def steps(self) -> list[Counter[int]]:
        """Of each step of the warm-up but the first: the keys of its graphs, and how often they ran."""
        return self._steps[1:] or self._steps

    def graph(self, key: int) -> Any:
        """The graph of a key in :attr:`steps`."""
        return self._graphs[key]

    @property
    def was_eager(self) -> bool:
        """Whether ``strategy.run`` was called outside any ``tf.function`` in the last step of the warm-up."""
        return self._was_eager

    @property
    def batches_of_step(self) -> int | None:
        """Batches that a step takes from its iterators; ``None`` where steps differ, or loops and branches take them.

        1 where none was seen to be taken.
        """
        found = set(self._batches_of_steps[1:] or self._batches_of_steps)
        number = found.pop() if len(found) == 1 else None if found else 1
        return None if number is None else max(1, number)

    @contextmanager
    def watched(self, strategy: Any) -> Iterator[None]:
        """Watch a program from here on; :meth:`finish` ends what a steady step would pay for."""
        import tensorflow as tf

        original = strategy.run
        # AutoGraph would convert it, and all that it calls.
        before = tf.autograph.experimental.do_not_convert(self._dispatched)

        def run(fn: Any, *args: Any, **kwargs: Any) -> Any:
            before(fn)
            return original(fn, *args, **kwargs)

        def traced() -> None:
            self.functions += 1

        self._watching.enter_context(adapter.taken_batches(self._taken))
        self.is_possible = self._watching.enter_context(adapter.executed_functions(self._executed))
        strategy.run = run
        try:
            with adapter.traced_functions(traced):
                yield
        finally:
            del strategy.run
            self.finish()

    def end_step(self) -> None:
        """A step of the warm-up has ended."""
        with self._lock:
            self._steps.append(self._running)
            in_graphs = sum(self._batches[key] * times for key, times in self._running.items())
            is_clear = self._unclear.isdisjoint(self._running)
            self._batches_of_steps.append(self._running_batches + in_graphs if is_clear else None)
            self._running, self._running_batches = Counter(), 0
            self._was_eager, self._running_eagerly = self._running_eagerly, False

    def finish(self) -> None:
        """Let functions run unwatched."""
        self._watching.close()

    def _executed(self, graph: Any, partitions: list[Any]) -> None:
        with self._lock:
            key = id(graph)
            self._graphs[key] = graph  # kept alive: ids are used again
            self._partitions.setdefault(key, []).extend(partitions)
            self._running[key] += 1

    def _taken(self, graph: Any, once: bool) -> None:
        with self._lock:
            if graph is None:
                self._running_batches += 1
                return
            key = id(graph)
            self._graphs[key] = graph
            self._batches[key] += 1
            if not once:
                self._unclear.add(key)

    def _dispatched(self, function: Any) -> None:
        if adapter.is_of_strategy(function):
            return
        graph = adapter.outermost_graph()
        if graph is None:
            self._running_eagerly = True
        elif graph not in self._seen:
            self._seen.add(graph)
            self.traces += 1
