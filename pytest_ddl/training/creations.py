"""Record initial values of variables that training creates, for example in layers that the first batch builds."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from pytest_ddl.notes import NoteKind
from pytest_ddl.records import Array
from pytest_ddl.training import adapter, values

Change = Callable[[Array], Array]
"""Function that a noise run applies to the initial value of each weight."""

_HERE = threading.local()


def creating() -> bool:
    """Return True if this thread now creates a variable, and so computes its initial value."""
    return getattr(_HERE, "depth", 0) > 0


@contextmanager
def _creating() -> Iterator[None]:
    _HERE.depth = getattr(_HERE, "depth", 0) + 1
    try:
        yield
    finally:
        _HERE.depth -= 1


@dataclass(frozen=True)
class Creation:
    """Initial value of a variable, and when it was created."""

    step: int
    """Steps completed before it was created."""
    parts: tuple[Array, ...]
    """Components on this rank, in the order of its replicas."""
    changed: bool
    """True if it includes the change of a noise run."""


@dataclass
class _Entry:
    """Created component of a variable, kept until the recorder asks for it or its step ends."""

    variable: Callable[[], Any]
    step: int
    eager: bool
    """True if it had its value as soon as it was created."""
    value: Array | None = None
    changed: bool = False


class Creations:
    """Observer of every variable that a program creates.

    TensorFlow calls a creator for each component, in the thread and the graph in which the program creates the
    variable. In eager mode, and if the creation was lifted out of a ``tf.function``, the component has its value
    at once. Otherwise a graph computes the value later, and an operation in that graph reports it.
    """

    def __init__(
        self,
        strategy: Any,
        note: Callable[[NoteKind, str], None],
        completed: Callable[[], int],
        change: Change | None = None,
        created: Callable[[Any], None] = lambda _variable: None,
    ) -> None:
        self._strategy = strategy
        self._note = note
        self._completed = completed
        self._change = change
        self._created = created
        self._lock = threading.Lock()
        self._entries: dict[int, _Entry] = {}
        self.watching = False
        """True once something is watched. Variables that exist by then are read directly and need no copy."""
        self.traces = True
        """True if an operation may be added to a graph."""
        self._ended = False

    @contextmanager
    def observed(self) -> Iterator[None]:
        """Observe creations while the context is open."""
        import tensorflow as tf

        if hasattr(self._strategy, "created"):
            self._strategy.created = self._keep_of_mesh
        scope = tf.variable_creator_scope(self._create)
        scope.__enter__()
        try:
            yield
        finally:
            self._ended = True
            try:
                scope.__exit__(None, None, None)
            except RuntimeError as error:  # the program entered a strategy's scope and never left it
                self._note(NoteKind.SCOPES, f"the program did not leave a scope that creates variables: {error}")

    def take(self, variable: Any) -> Creation | None:
        """Return and forget the initial value of a variable, or return ``None`` if not all its components were seen."""
        components = values.components(self._strategy, variable)
        with self._lock:
            found = [self._entries.pop(id(getattr(part, "handle", None)), None) for part in components]
        entries = [entry for entry in found if entry is not None and entry.variable() is not None]
        parts = tuple(entry.value for entry in entries if entry.value is not None)
        if not parts or len(parts) != len(components):
            return None
        if values.is_split(variable):
            parts = (np.concatenate(parts),)
        return Creation(entries[0].step, parts, all(entry.changed for entry in entries))

    def begin(self) -> None:
        """Read the created variables again when a loop begins, because the program may have changed them."""
        with self._lock:
            entries = list(self._entries.values())
        for entry in entries:
            variable = entry.variable()
            if variable is not None and entry.eager:
                entry.value = self._read(variable)

    def forget(self) -> None:
        """Drop the values that were not taken by the end of a step."""
        with self._lock:
            self._entries.clear()

    def _create(self, next_creator: Callable[..., Any], **given: Any) -> Any:
        import tensorflow as tf

        if self._ended:
            return next_creator(**given)
        entry = _Entry(lambda: None, self._completed(), tf.executing_eagerly())
        if entry.eager:
            variable = self._created_eagerly(next_creator, given, entry)
        else:
            if self.watching and self.traces and _is_traceable(given.get("initial_value")) and not adapter.within_xla():
                given["initial_value"] = self._reporting(given, entry)
            with _creating():
                variable = next_creator(**given)
        self._keep(variable, entry)
        return variable

    def _keep(self, variable: Any, entry: _Entry) -> None:
        self._created(variable)
        handle = getattr(variable, "handle", None)
        if handle is not None:
            entry.variable = weakref.ref(variable)
            with self._lock:
                self._entries[id(handle)] = entry

    def _keep_of_mesh(self, variable: Any) -> None:
        """Record a variable of a mesh of devices, which the strategy creates without a creator."""
        import tensorflow as tf

        if not self._ended:
            with tf.init_scope():
                value = self._read(variable) if self.watching else None
            self._keep(variable, _Entry(lambda: None, self._completed(), True, value))

    def _created_eagerly(self, next_creator: Callable[..., Any], given: dict[str, Any], entry: _Entry) -> Any:
        import tensorflow as tf

        with _creating():
            variable = next_creator(**given)
        if not self.watching or given.get("initial_value") is None:
            return variable
        with tf.init_scope():  # keeps these operations off the gradient tape
            entry.value = self._read(variable)
            changed = self._changed(entry, variable.dtype.name, given)
            if changed is not None:
                variable.assign(changed)
        return variable

    def _read(self, variable: Any) -> Array | None:
        try:
            return values.read(self._strategy, variable)[0]
        except Exception:  # it may have no value yet; its value at the end of the step is used instead
            return None

    def _reporting(self, given: dict[str, Any], entry: _Entry) -> Callable[[], Any]:
        """Return an initializer that also reports the initial value when a graph computes it."""
        import tensorflow as tf

        initial = given["initial_value"]

        def report(array: Any) -> Any:
            if entry.changed:  # TensorFlow computes the value a second time if it folds constants
                return entry.value
            entry.value = values.copy_of(array)
            changed = self._changed(entry, array.dtype.name, given)
            return array if changed is None else changed

        def reported() -> Any:
            value = tf.convert_to_tensor(initial() if callable(initial) else initial, dtype=given.get("dtype"))
            if not (value.dtype.is_floating or value.dtype.is_integer or value.dtype.is_bool):
                return value
            # A stateful operation would depend on earlier ones, and TensorFlow could not lift it out of the graph.
            reported_value = tf.numpy_function(report, [value], value.dtype, stateful=False)
            reported_value.set_shape(value.shape)
            return reported_value

        return reported

    def _changed(self, entry: _Entry, dtype: str, given: dict[str, Any]) -> Array | None:
        """Return the initial value in a noise run; ``None`` if the noise run does not change it."""
        # Noise is for weights; optimizers and metrics create their state as not trainable.
        left = given.get("trainable") is False or dtype not in ("float32", "float64")
        if self._change is None or entry.value is None or left:
            return None
        entry.value, entry.changed = self._change(entry.value), True
        return entry.value


def _is_traceable(initial: Any) -> bool:
    """Return True if an initial value may be wrapped; TensorFlow recognizes one from a checkpoint by its type."""
    return initial is not None and not hasattr(initial, "checkpoint_position")
