"""Record which graphs each step ran, and how often; counters are taken from these graphs."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any
from weakref import WeakSet

from pytest_ddl.training import adapter
from pytest_ddl.training.coordinator import uses_coordinator


class Executions:
    """Record of the calls of traced functions, by step, and of traces until the run ends.

    Calls are recorded until the end of the warm-up, or until the run ends if all steps are counted.
    """

    def __init__(self, note: Callable[[str], None]) -> None:
        self._note = note
        self._lock = threading.Lock()
        self._graphs: dict[int, Any] = {}
        self._partitions: dict[int, list[Any]] = {}
        self._running: Counter[int] = Counter()
        self._steps: list[Counter[int]] = []
        self._running_eagerly = False
        self._eager_steps: list[bool] = []
        self._warm_steps: int | None = None
        """Number of steps of the warm-up, once it has ended."""
        self._seen: WeakSet[Any] = WeakSet()
        self._batches: Counter[int] = Counter()
        """Key of a graph -> number of batches that it takes."""
        self._unclear: set[int] = set()
        """Keys of graphs that take batches in a loop or a branch."""
        self._running_batches = 0
        self._batches_of_steps: list[int | None] = []
        self._watching = ExitStack()
        self.is_possible = False
        """True if executions can be watched in this TensorFlow release."""
        self.traces = 0
        """Graphs that were traced for functions that call ``strategy.run``."""
        self.functions = 0
        """All functions that were traced, including TensorFlow's own and those of the input pipeline."""

    @property
    def last_step(self) -> list[tuple[Any, int, list[Any]]]:
        """Graphs of the last step of the warm-up: each graph, how often it ran, and its parts on the devices."""
        warm = self._steps[: self._warm_steps]
        return self.content(warm[-1]) if warm else []

    def content(self, step: Mapping[int, int]) -> list[tuple[Any, int, list[Any]]]:
        """Return each graph of a step, how often it ran, and its parts on the devices."""
        return [(self._graphs[key], times, self._partitions.get(key, [])) for key, times in step.items()]

    @property
    def was_eager(self) -> bool:
        """True if the last step of the warm-up called ``strategy.run`` outside any ``tf.function``."""
        warm = self._eager_steps[: self._warm_steps]
        return bool(warm) and warm[-1]

    @property
    def steps(self) -> list[Counter[int]]:
        """Key of a graph -> how often it ran, for each step of the warm-up.

        The first step is left out unless it is the only one.
        """
        warm = self._steps[: self._warm_steps]
        return warm[1:] or warm

    @property
    def counted(self) -> list[tuple[Counter[int], bool]]:
        """Key of a graph -> how often it ran, and whether the step ran eagerly, for each step that was watched.

        The first step is left out unless it is the only one.
        """
        steps = [*zip(self._steps, self._eager_steps, strict=True)]
        return steps[1:] or steps

    def graph(self, key: int) -> Any:
        """Return the graph that has a key in :attr:`steps`."""
        return self._graphs[key]

    @property
    def batches_of_step(self) -> int | None:
        """Batches that a step takes from its iterators; 1 if no batch was observed.

        ``None`` if steps differ, or if loops or branches take batches.
        """
        warm = self._batches_of_steps[: self._warm_steps]
        found = set(warm[1:] or warm)
        number = found.pop() if len(found) == 1 else None if found else 1
        return None if number is None else max(1, number)

    @contextmanager
    def watched(self, strategy: Any) -> Iterator[None]:
        """Watch a program in this context; :meth:`end_warm_up` ends the part that would slow down steady steps."""
        import tensorflow as tf

        original = strategy.run
        # Otherwise AutoGraph would convert the method and everything that it calls.
        before = tf.autograph.experimental.do_not_convert(self._dispatched)

        def run(fn: Any, *args: Any, **kwargs: Any) -> Any:
            before(fn)
            return original(fn, *args, **kwargs)

        def traced() -> None:
            self.functions += 1

        self._watching.enter_context(adapter.taken_batches(self._taken))
        watching = adapter.executed_functions(self._executed, with_parts=not uses_coordinator(strategy))
        self.is_possible = self._watching.enter_context(watching)
        strategy.run = run
        try:
            with adapter.traced_functions(traced):
                yield
        finally:
            del strategy.run
            self.finish()

    def end_step(self) -> None:
        """Record the end of a step."""
        with self._lock:
            self._steps.append(self._running)
            in_graphs = sum(self._batches[key] * times for key, times in self._running.items())
            is_clear = self._unclear.isdisjoint(self._running)
            self._batches_of_steps.append(self._running_batches + in_graphs if is_clear else None)
            self._running, self._running_batches = Counter(), 0
            self._eager_steps.append(self._running_eagerly)
            self._running_eagerly = False

    def end_warm_up(self, watch_on: bool = False) -> None:
        """Record the end of the warm-up, and stop watching the calls of functions unless all steps are counted."""
        self._warm_steps = len(self._steps)
        if not watch_on:
            self.finish()

    def finish(self) -> None:
        """Stop watching the calls of functions."""
        self._watching.close()

    def _executed(self, graph: Any, partitions: list[Any]) -> None:
        with self._lock:
            key = id(graph)
            self._graphs[key] = graph  # keep it alive, because ids are reused
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
