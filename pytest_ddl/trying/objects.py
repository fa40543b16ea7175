"""Find the models, the optimizers, the metrics and the variables that a script creates."""

from __future__ import annotations

import sys
import traceback
import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from pytest_ddl.cluster.state.user_files import is_user_file
from pytest_ddl.training.replacing import Replacements
from pytest_ddl.trying.found import Found


class Objects:
    """Models and optimizers of a script, in the order of their creation."""

    def __init__(self, run: Any, found: Found) -> None:
        self._run, self._found = run, found
        self.variables = OwnVariables(run)
        self._models: list[weakref.ref[Any]] = []
        self._optimizers: list[weakref.ref[Any]] = []
        self._metrics: list[weakref.ref[Any]] = []
        self._watched: dict[int, Any] = {}
        self._left_out: list[Any] = []
        self._unscoped: weakref.WeakSet[Any] = weakref.WeakSet()

    def install(self, put: Replacements, keras: Any) -> None:
        """Observe the creation of models, optimizers and metrics of one flavor of Keras."""
        import tensorflow as tf

        new = keras.Model.__new__

        def created_model(cls: Any, *args: Any, **kwargs: Any) -> Any:
            model = new(cls, *args, **kwargs)
            self._models.append(weakref.ref(model))
            if not tf.distribute.has_strategy():
                self._unscoped.add(model)
            return model

        put.put(keras.Model, "__new__", staticmethod(created_model))
        bases = [keras.optimizers.Optimizer]
        if keras.__name__ == "tf_keras":  # the module of Keras 3 only raises exceptions
            bases.append(keras.optimizers.legacy.Optimizer)
        for base in bases:
            put.put(base, "__init__", _telling(base.__init__, self._optimizers))
        metric = keras.metrics.Metric
        put.put(metric, "__init__", _telling(metric.__init__, self._metrics, _is_metric_of_program))

    def watch(self) -> None:
        """Compare every model, optimizer and variable of the script that exists now.

        One that is part of another adds no variables.
        """
        for model in _alive(self._models):
            if _is_part(model, self._left_out):
                self._watched[id(model)] = model
        known = [*self._watched.values()]
        for model in self._new(self._models):
            self._run.watch(model=model)
            if not _is_part(model, known):
                self._found.add("models", _text(model))
            known.append(model)
        inner = {id(getattr(optimizer, "inner_optimizer", None)) for optimizer in _alive(self._optimizers)}
        for optimizer in self._new(self._optimizers):
            if id(optimizer) not in inner:
                self._found.add("optimizers", _text(optimizer))
                self._run.watch(optimizer=optimizer)
        for name in self.variables.watch():
            self._found.add("variables", name)

    def watch_metrics(self) -> None:
        """Compare the metrics that the script updates in its own loop. What ``fit`` updates, it also returns."""
        models = (*_alive(self._models), *self._left_out)
        of_models = {id(one) for model in models for one in _metrics_of(model)}
        for metric in self._new(self._metrics):
            if id(metric) not in of_models:
                self._found.add("metrics", _text(metric))
                self._run.watch(metrics=metric)
                if replicas := self._run._settings.shared_by:
                    metric.update_state = _sharing(metric, replicas)

    def is_distributed(self, model: Any) -> bool:
        """Return False for a model that the script created outside ``strategy.scope()``, perhaps on purpose."""
        return model not in self._unscoped or self._run._settings.without_strategy

    def leave_out(self, model: Any) -> None:
        """Do not compare a model and its optimizer."""
        self._left_out.append(model)
        for item in (model, getattr(model, "optimizer", None)):
            self._watched[id(item)] = item

    def watch_model(self, model: Any) -> None:
        """Compare a model that ``fit`` trains, and everything else that exists now."""
        for other in self._unscoped:
            self._watched.setdefault(id(other), other)
        self.watch()
        if id(model) not in self._watched:
            self._watched[id(model)] = model
            self._found.add("models", _text(model))
            self._run.watch(model=model)

    def updates(self) -> tuple[int, ...]:
        """Return the numbers of updates that the optimizers have counted."""
        return tuple(_updates(optimizer) for optimizer in _alive(self._optimizers))

    def _new(self, references: list[weakref.ref[Any]]) -> Iterator[Any]:
        for item in _alive(references):
            if id(item) not in self._watched:
                self._watched[id(item)] = item
                yield item


def _telling(
    init: Callable[..., None], told: list[weakref.ref[Any]], is_wanted: Callable[[], bool] = lambda: True
) -> Callable[..., None]:
    """Return a constructor that also adds the objects that it makes to a list."""

    def created(item: Any, *args: Any, **kwargs: Any) -> None:
        if is_wanted():
            told.append(weakref.ref(item))
        init(item, *args, **kwargs)

    return created


def _sharing(metric: Any, replicas: int) -> Callable[..., Any]:
    """Return an update as replicas make it that share the state of a metric; see ``RunSettings.shared_by``."""
    update = metric.update_state

    def update_state(*args: Any, **kwargs: Any) -> Any:
        for variable in metric.variables:
            variable.assign(variable * replicas)
        return update(*args, **kwargs)

    return update_state


def _metrics_of(model: Any) -> list[Any]:
    try:
        return list(getattr(model, "metrics", ()))
    except (AttributeError, ValueError):  # it has not been built
        return []


def _alive(references: list[weakref.ref[Any]]) -> list[Any]:
    return [item for reference in references if (item := reference()) is not None]


def _is_part(model: Any, others: list[Any]) -> bool:
    """Return True for a model whose layers all belong to another, as the functional model in a Sequential model."""
    layers = _layers(model)
    return bool(layers) and any(layers <= _layers(other) for other in others if other is not model)


def _layers(model: Any) -> set[int]:
    # The layers of a Sequential model do not include its input.
    return {id(layer) for layer in getattr(model, "layers", ()) if type(layer).__name__ != "InputLayer"}


def _text(item: Any) -> str:
    name = getattr(item, "name", "")
    return f"{type(item).__name__} {name!r}" if name else type(item).__name__


def _updates(optimizer: Any) -> int:
    try:
        return int(optimizer.iterations.numpy())
    except Exception:  # it is being built, or is a wrapper without a counter of its own
        return 0


_BETWEEN = ("tensorflow", "contextlib", "pytest_ddl")
"""Modules whose functions may stand between a call of the script and the creation of its variable."""
_FLAVORS = ("keras", "tf_keras")
_OF_METRICS = ("metrics", "dtensor", "utils")
"""Packages of Keras whose functions stand between a call of the script and the creation of its metric."""


class OwnVariables:
    """Variables of a script, such as counters and averages, in the order of their creation."""

    def __init__(self, run: Any) -> None:
        self._run = run
        self._created: list[weakref.ref[Any]] = []

    def install(self, put: Replacements, stack: ExitStack) -> None:
        """Observe the creation of variables, in each scope of the strategy and outside of it."""
        import tensorflow as tf

        strategy = self._run.strategy
        original = strategy.scope

        @contextmanager
        def scope() -> Iterator[Any]:
            # Inside the scope, because around it a creator is called for each component and never sees the variable.
            with original() as entered, tf.variable_creator_scope(self._create):
                yield entered

        put.put(strategy, "scope", scope)
        stack.enter_context(tf.variable_creator_scope(self._create_outside))

    def _create(self, next_creator: Callable[..., Any], **arguments: Any) -> Any:
        import tensorflow as tf

        variable = next_creator(**arguments)
        if tf.executing_eagerly() and _is_of_program():
            self._created.append(weakref.ref(variable))
        return variable

    def _create_outside(self, next_creator: Callable[..., Any], **arguments: Any) -> Any:
        import tensorflow as tf

        return next_creator(**arguments) if tf.distribute.has_strategy() else self._create(next_creator, **arguments)

    def watch(self) -> list[str]:
        """Compare the variables that were created since the last call, and return their names."""
        new = [variable for reference in self._created if (variable := reference()) is not None]
        self._created.clear()
        named = {id(value): name for name, value in vars(sys.modules["__main__"]).items()}
        names = [(named.get(id(variable), variable.name.partition(":")[0]), variable) for variable in new]
        for name, variable in names:
            self._run.watch(variables={name: variable})
        return [name for name, _variable in names]


def _is_metric_of_program() -> bool:
    """Return whether the script itself creates a metric. Keras creates those that ``compile`` gets by name."""
    return _is_of_program((*_BETWEEN, *(f"{name}.src.{part}" for name in _FLAVORS for part in _OF_METRICS)))


def _is_of_program(between: tuple[str, ...] = _BETWEEN) -> bool:
    """Return whether the script itself creates a variable. Keras creates those of models, optimizers and metrics."""
    for frame, _line in traceback.walk_stack(sys._getframe(1)):
        module = str(frame.f_globals.get("__name__", ""))
        if not f"{module}.".startswith(tuple(f"{name}." for name in between)):
            return is_user_file(frame.f_code.co_filename)
    return False
