"""Find the lines at which a program itself gives its variables new values.

A closure that computes the new value of a variable from the old one takes back what other closures have changed in the
meantime. Which variables are written like that is seen when the closure is traced, whether or not it happens.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from pytest_ddl.notes import NoteKind
from pytest_ddl.records import VariableKind
from pytest_ddl.run_facts import RunFacts
from pytest_ddl.strategies.parameter_server import closures_run
from pytest_ddl.training import current_call, frames, keras_objects, values
from pytest_ddl.training.coordinator import uses_coordinator
from pytest_ddl.training.environment import keras_modules, on_import
from pytest_ddl.training.gradient_calls import subclasses
from pytest_ddl.training.observer import Observer
from pytest_ddl.training.replacing import Replacements

_Point = tuple[Any, tuple[str, ...], Callable[[Any], Any]]
_METHODS = ("assign", "assign_add", "assign_sub", "scatter_sub", "scatter_add", "scatter_update", "scatter_nd_add")

_OVERWRITING = ("assign", "scatter_update")
"""Methods that replace a value. If closures read it before, one may overwrite what another has added meanwhile."""


class Assignments(Observer):
    """Observer of the assignments that a program makes, and not of those that an optimizer or a layer makes.

    The methods of variables are replaced during a run. They receive the same arguments.
    """

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self._is_concurrent = uses_coordinator(self.context.strategy) and not self.settings.one_by_one
        self._rewritten: dict[str, str] = {}
        """Name of a variable that a closure computes from its old value -> the line."""
        self._meanwhile: dict[str, tuple[int, str]] = {}
        """What the program assigns while closures run; see RunFacts."""

    @contextmanager
    def installed(self) -> Iterator[None]:
        with Replacements() as replaced:

            def replace_all(points: Iterator[_Point]) -> None:
                for owner, names, assigned in points:
                    for name in names:
                        method = vars(owner).get(name)
                        if inspect.isfunction(method):
                            replaced.put(owner, name, self._watching(method, assigned, name in _OVERWRITING))

            replace_all(_points())
            with on_import("tf_keras", lambda module: replace_all(_points_of(module))):
                yield

    def _watching(
        self, original: Callable[..., Any], assigned: Callable[[Any], Any], overwrites: bool
    ) -> Callable[..., Any]:
        import tensorflow as tf

        def method(item: Any, *args: Any, **kwargs: Any) -> Any:
            # Keras assigns the learning rate in a property that the program sets.
            if frames.is_called_by_program(past_frameworks=_is_rate(item)):
                self._note(item, assigned, overwrites and not tf.executing_eagerly(), [*args, *kwargs.values()])
            return original(item, *args, **kwargs)

        return functools.wraps(original)(tf.autograph.experimental.do_not_convert(method))

    def _note_meanwhile(self, variables: list[Any]) -> None:
        """Record variables that the program assigns while closures run."""
        if not closures_run(self.context.strategy):
            return
        watched = {id(values.backing(one.variable)): one.record.index for one in self.recorder.watched}
        for variable in variables:
            self._meanwhile.setdefault(str(variable.name), (watched.get(id(variable), -1), frames.user_frames(1)))

    def _note(self, item: Any, assigned: Callable[[Any], Any], overwrites: bool, given: list[Any]) -> None:
        import tensorflow as tf

        try:
            variables = [values.backing(variable) for variable in assigned(item)]
            self.recorder.lines.assign(variables)
            if overwrites:
                self.recorder.lines.assign(variables, overwrites=True)
            if self._is_concurrent and tf.executing_eagerly() and not current_call.in_closure():
                self._note_meanwhile(variables)
            if overwrites and self._is_concurrent and current_call.in_closure():
                for variable in variables:
                    if not variable.trainable and _depends_on(given, variable.handle):
                        self._rewritten.setdefault(str(variable.name), frames.user_frames(1))
        except Exception as error:  # an exception here would be raised in the program
            self.recorder.note(
                NoteKind.ASSIGNMENTS, f"an assignment could not be observed: {type(error).__name__}: {error}"
            )

    def end_run(self) -> Mapping[str, Any]:
        facts = RunFacts()
        if self._rewritten:
            facts["rewritten"] = dict(self._rewritten)
        if self._meanwhile:
            facts["meanwhile"] = dict(self._meanwhile)
        return {"facts": facts} if facts else {}


def _depends_on(given: list[Any], handle: Any) -> bool:
    """Return whether values in a graph are computed from the variable with this handle.

    In a branch, a condition around it counts too. Which one it is cannot be known while the branch is traced.
    """
    import tensorflow as tf

    graph = tf.compat.v1.get_default_graph()
    waiting = [item for item in tf.nest.flatten(given, expand_composites=True) if isinstance(item, tf.Tensor)]
    while current_call.is_of_control_flow(graph):
        graph = graph.outer_graph
        results = [item for operation in graph.get_operations() for item in operation.outputs]
        waiting += [item for item in results if item.dtype == tf.bool and item.shape.rank == 0]
    seen: set[int] = set()
    while waiting:
        item = waiting.pop()
        if item is handle:
            return True
        if id(item) in seen or not tf.is_symbolic_tensor(item):
            continue
        seen.add(id(item))
        outside = [outer for outer, inner in getattr(item.graph, "captures", ()) if inner is item]
        waiting += outside or item.op.inputs
    return False


def _points() -> Iterator[_Point]:
    """Yield classes with the methods that assign, and a function that returns the variables that they assign."""
    import keras
    import tensorflow as tf

    for owner in dict.fromkeys(subclasses(tf.Variable)):
        if owner.__module__.startswith("tensorflow."):
            yield owner, _METHODS, _itself
    for owner in getattr(keras, "Variable", object).__mro__:
        if owner.__module__.startswith("keras."):
            yield owner, _METHODS, _itself
    for flavour in keras_modules():
        yield from _points_of(flavour)


def _points_of(flavour: Any) -> Iterator[_Point]:
    for owner in dict.fromkeys((flavour.layers.Layer, flavour.Model)):
        yield owner, ("set_weights",), _weights


def _itself(variable: Any) -> list[Any]:
    return [variable]


def _weights(layer: Any) -> list[Any]:
    return list(layer.weights)


def _is_rate(item: Any) -> bool:
    return values.is_variable(item) and keras_objects.kind_of(item, None) is VariableKind.LEARNING_RATE
