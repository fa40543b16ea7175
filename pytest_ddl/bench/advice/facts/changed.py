"""Run a training function with a knob on a rank, and note what its steps spend their time on."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pytest_ddl.bench.advice.facts.knobs import KNOBS, Knob
from pytest_ddl.json_records import JsonRecord
from pytest_ddl.records import VariableKind
from pytest_ddl.training import adapter
from pytest_ddl.training.replacing import Replacements, named_like


@dataclass
class Notes(JsonRecord):
    """Notes of one rank on its steady steps. Seconds are those of this process; one item for each step."""

    rank: int = 0
    steps: list[float] = field(default_factory=list)
    """Seconds in the step function."""
    bodies: list[float] = field(default_factory=list)
    """Seconds in the body of the loop, or in the program's callbacks of ``fit``."""
    traced: list[float] = field(default_factory=list)
    """Seconds of a step in which functions were traced, without compiling their graphs."""
    host: list[float] = field(default_factory=list)
    """Seconds of a step in Python functions that its graph calls (``tf.py_function``, ``tf.numpy_function``)."""
    major_faults: int = 0
    """Pages that had to be read from a disk in all steady steps (``ru_majflt`` of getrusage(2))."""
    tables: list[tuple[str, int, int, int]] = field(default_factory=list)
    """Trainable matrices: name, rows that changed in the second step, rows, bytes of a row."""
    loops: str = ""
    """Kind of the last loop: ``steps``, ``batches`` or ``fit``."""

    def save(self, folder: Path) -> None:
        whole = folder / f"rank-{self.rank}.json"
        part = whole.with_suffix(".part")
        part.write_text(json.dumps(self.as_json()), encoding="utf-8")
        part.replace(whole)


def read_notes(folder: Path) -> tuple[Notes, ...]:
    """Read the notes of all ranks, by rank. Ranks of another host may not have written into this folder."""
    notes = [Notes.from_json(json.loads(path.read_text(encoding="utf-8"))) for path in folder.glob("rank-*.json")]
    return tuple(sorted(notes, key=lambda one: one.rank))


@dataclass(frozen=True)
class Changed:
    """Training function that runs another one with a knob.

    It is called on the ranks, with the run of a measurement.
    """

    train: Callable[[Any], Any]
    knob: str = "base"
    folder: str = ""
    """Folder for the notes; empty for none."""

    @property
    def func(self) -> Callable[[Any], Any]:
        """Changed function. Code that looks into a ``functools.partial`` finds its function by the same name."""
        return self.train

    def __call__(self, run: Any) -> None:
        knob = KNOBS[self.knob]
        watch = _Watch(run)
        with Replacements() as put, ExitStack() as stack:
            knob.patch(put)
            watch.install(put)
            if self.folder:
                stack.callback(lambda: watch.notes.save(Path(self.folder)))
            self.train(ChangedRun(run, knob, watch))
            watch.end()


class ChangedRun:
    """Run that applies a knob, and has everything else from the run of the measurement."""

    def __init__(self, run: Any, knob: Knob, watch: _Watch) -> None:
        self._run, self._knob, self._watch = run, knob, watch

    def __getattr__(self, name: str) -> Any:
        return getattr(self._run, name)

    def steps(
        self, train_step: Any, dataset: Any, steps: int | None = None, *, concurrent: bool = False
    ) -> Iterator[Any]:
        """Do what ``run.steps`` does, with the knob."""
        self._watch.notes.loops = "steps"
        step = self._watch.timed(self._knob.step(train_step))
        for number, loss in enumerate(self._run.steps(step, self._knob.data(dataset), steps, concurrent=concurrent)):
            if number % self._knob.every == 0:
                with self._watch.body():
                    yield loss

    def batches(self, dataset: Any) -> Iterator[Any]:
        """Do what ``run.batches`` does, with the knob. The body is what follows ``run.record``."""
        self._watch.notes.loops = "batches"
        for batch in self._run.batches(self._knob.data(dataset)):
            self._watch.begin()
            yield batch
            self._watch.end_body()

    def record(self, loss: Any = None, **named_values: Any) -> None:
        """Do what ``run.record`` does."""
        self._watch.end_step()
        self._run.record(loss, **named_values)
        self._watch.begin_body()

    def fit(self, model: Any, dataset_or_x: Any, y: Any = None, **kwargs: Any) -> Any:
        """Do what ``run.fit`` does, with the knob."""
        self._watch.notes.loops = "fit"
        self._knob.model(model)
        given = kwargs.get("callbacks")
        own = [] if given is None else list(given) if isinstance(given, list | tuple) else [given]
        kwargs["callbacks"] = self._watch.callbacks(model, own, self._knob.every)
        return self._run.fit(model, self._knob.data(dataset_or_x), y, **kwargs)


class _Watch:
    """Watch of the steps of one run; it fills :class:`Notes`."""

    def __init__(self, run: Any) -> None:
        self.notes = Notes(rank=run.rank)
        self._listener = run._listener
        self._count = 0
        self._begun: float | None = None
        self._body: float | None = None
        self._tracing = self._in_host = 0.0
        self._before: dict[str, Any] = {}
        self._faults: int | None = None

    @property
    def _is_steady(self) -> bool:
        return bool(getattr(self._listener, "is_steady", True)) and not self._listener.reached_limit

    def install(self, put: Replacements) -> None:
        """Measure tracing, and the Python functions that graphs of steps call."""
        import tensorflow as tf

        owner = adapter.module_of("framework.func_graph", "func_graph_from_py_func")
        if owner is not None:
            traced = owner.func_graph_from_py_func

            def func_graph_from_py_func(*args: Any, **kwargs: Any) -> Any:
                outermost, begun = adapter.outermost_graph() is None, time.perf_counter()
                try:
                    return traced(*args, **kwargs)
                finally:
                    self._tracing += (time.perf_counter() - begun) if outermost else 0.0

            put.put(owner, "func_graph_from_py_func", func_graph_from_py_func)
        for name in ("py_function", "numpy_function"):
            put.put(tf, name, self._of_host(getattr(tf, name)))

    def _of_host(self, original: Callable[..., Any]) -> Callable[..., Any]:
        import tensorflow as tf

        def called(func: Any = None, *args: Any, **kwargs: Any) -> Any:
            # Those of an input pipeline run while steps run, and belong to the input.
            if tf.compat.v1.get_default_graph().name.startswith("Dataset_"):
                return original(func, *args, **kwargs)

            def timed(*values: Any) -> Any:
                begun = time.perf_counter()
                try:
                    return func(*values)
                finally:
                    self._in_host += time.perf_counter() - begun

            return original(timed, *args, **kwargs)

        return named_like(original, called)

    def timed(self, step: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """Return the step function, with its times noted."""

        def taken(iterator: Any) -> Any:
            self.begin()
            result = step(iterator)
            self.end_step()
            return result

        count = getattr(step, "experimental_get_tracing_count", None)
        if count is not None:
            taken.experimental_get_tracing_count = count  # type: ignore[attr-defined]
        return taken

    def begin(self) -> None:
        self._count += 1
        if self._count == 2:
            self._before = self._matrices()
        if self._is_steady and self._faults is None:
            self._faults = _major_faults()
        self._tracing = self._in_host = 0.0
        self._begun = time.perf_counter() if self._is_steady else None

    def end_step(self) -> None:
        if self._begun is not None:
            self.notes.steps.append(time.perf_counter() - self._begun)
            self.notes.traced.append(self._tracing)
            self.notes.host.append(self._in_host)
            self.notes.bodies.append(0.0)
            self._begun = None
        if self._count == 2 and self._before:
            self._compare(self._before, self._matrices())
            self._before = {}

    def begin_body(self) -> None:
        self._body = time.perf_counter() if self._is_steady and self.notes.bodies else None

    def end_body(self) -> None:
        if self._body is not None:
            self.notes.bodies[-1] += time.perf_counter() - self._body
            self._body = None

    def body(self) -> ExitStack:
        """Note the time of the body of a loop in a context."""
        self.begin_body()
        stack = ExitStack()
        stack.callback(self.end_body)
        return stack

    def end(self) -> None:
        if self._faults is not None:
            self.notes.major_faults = _major_faults() - self._faults

    def _matrices(self) -> dict[str, Any]:
        variables: tuple[Any, ...] = getattr(self._listener, "variables", tuple)()
        return {
            item.record.name: item.read()[0]
            for item in variables
            if item.record.kind is VariableKind.TRAINABLE and len(item.record.shape or ()) == 2
        }

    def _compare(self, before: dict[str, Any], after: dict[str, Any]) -> None:
        for name, old in before.items():
            new = after.get(name)
            if new is not None and new.shape == old.shape:
                changed = int((new != old).any(axis=1).sum())
                self.notes.tables.append((name, changed, len(old), old[:1].nbytes))

    def callbacks(self, model: Any, own: list[Any], every: int) -> list[Any]:
        """Return the program's callbacks with their times noted, after one that notes the times of the steps."""
        for callback in own:
            for name in ("on_train_batch_begin", "on_train_batch_end"):
                setattr(callback, name, self._timed_callback(getattr(callback, name), every))
        from pytest_ddl.training import fitting

        methods = {
            "on_train_batch_begin": lambda _self, _batch, logs=None: self.begin(),
            "on_train_batch_end": lambda _self, _batch, logs=None: self.end_step(),
        }
        base = fitting.flavor_of(model).callbacks.Callback
        return [type("NotesCallback", (base,), methods)(), *own]

    def _timed_callback(self, original: Callable[..., Any], every: int) -> Callable[..., Any]:
        def timed(batch: int, logs: Any = None) -> None:
            if batch % every == 0:
                with self.body():
                    original(batch, logs)

        return timed


def _major_faults() -> int:
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_majflt
