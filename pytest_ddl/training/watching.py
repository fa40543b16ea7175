"""Find the variables that a program watches. Search again after each step, because a step may create variables."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from pytest_ddl.notes import NoteKind
from pytest_ddl.records import Array, LayerRecord, OptimizerRecord, Snapshot, VariableKind, VariableRecord
from pytest_ddl.training import adapter, keras_objects, values

Reader = Callable[[], tuple[Array, ...]]


@dataclass(frozen=True)
class Watched:
    """A watched variable: its record, a function that reads it, and the variable itself if there is one."""

    record: VariableRecord
    read: Reader
    variable: Any = None
    optimizer: Any = None
    """Optimizer whose learning rate this is, if the rate is not a variable."""


class Watcher:
    """Collection of all watched variables, in the order in which they were found."""

    def __init__(self, strategy: Any, note: Callable[[NoteKind, str], None]) -> None:
        self._strategy = strategy
        self._note = note
        self._models: list[Any] = []
        self._optimizers: list[Any] = []
        self._loose: list[tuple[str, Any]] = []
        self._metrics: list[Any] = []
        self._found: dict[int, Watched] = {}
        self._order: list[Watched] = []
        self._kept: list[Any] = []  # keeps the watched objects alive; otherwise Python would reuse their ids
        self._settings: dict[int, OptimizerRecord] = {}
        self._copies: dict[int, tuple[Array, ...]] = {}
        self._slots_taken: dict[int, set[tuple[int, str]]] = {}
        self.reported: set[int] = set()
        """Indices of metrics that models were compiled with: methods such as ``evaluate`` return their results."""
        self.thawed: set[int] = set()
        """Indices of weights that were frozen when they were found, and trainable after a later step."""

    @property
    def watched(self) -> tuple[Watched, ...]:
        return tuple(self._order)

    @property
    def models(self) -> tuple[Any, ...]:
        return tuple(self._models)

    def add(self, model: Any = None, optimizer: Any = None, variables: Any = None, metrics: Any = None) -> None:
        """Watch more objects; each argument is one object, or a list or dict of objects."""
        self._models += [item for _name, item in _each(model, "model")]
        self._optimizers += [item for _name, item in _each(optimizer, "optimizer")]
        self._loose += list(_each(variables, "variable"))
        self._metrics += [item for _name, item in _each(metrics, "metric")]

    def stop_learning(self) -> None:
        """Set the learning rates of the watched optimizers to 0. A learning rate schedule is not changed."""
        for optimizer in self._all_optimizers():
            try:
                with self._strategy.scope():
                    optimizer.learning_rate = 0.0
            except (AttributeError, TypeError, ValueError) as error:
                self._note(
                    NoteKind.VARIABLES,
                    f"the learning rate of {type(optimizer).__name__} could not be set to 0: {error}",
                )

    def multiply_metrics(self, number: int) -> None:
        """Multiply the state of all metrics that were found, as if as many replicas shared it; not by 0."""
        if number:
            values.multiply([item.variable for item in self._order if item.record.kind is VariableKind.METRIC], number)

    def scan(self, ended: bool = False) -> list[Watched]:
        """Find and return the variables that exist now and were not found before.

        :param ended: leave out metrics that models were compiled with, because evaluations after training make them.
        """
        known = len(self._order)
        for model in self._models:
            self._scan_model(model)
        for name, item in self._loose:
            self._scan_loose(name, item)
        for optimizer in self._all_optimizers():
            self._scan_optimizer(optimizer)
        for metric in self._metrics:
            for variable in getattr(metric, "variables", ()):
                self._take(variable, VariableKind.METRIC)
        own = len(self._order)
        for model in () if ended else self._models:
            for variable in keras_objects.metric_variables(model):
                self._take(variable, VariableKind.METRIC)
        self.reported |= {item.record.index for item in self._order[own:]}
        return self._order[known:]

    def snapshot(self, which: list[Watched] | None = None) -> Snapshot:
        """Return copies of every component of the variables, with their current values. Equal copies are one array."""
        self._look_for_thawed()
        taken: dict[int, tuple[Array, ...]] = {}
        for item in self._order if which is None else which:
            at = item.record.index
            self._copies[at] = values.shared(self._read(item), self._copies.get(at, ()))
            taken[at] = self._copies[at]
        return taken

    def _look_for_thawed(self) -> None:
        frozen = any(item.record.kind is VariableKind.FROZEN for item in self._order)
        for model in self._models if frozen else ():
            try:
                found = [self._found.get(id(item)) for item in model.trainable_variables]
            except ValueError:
                continue  # tf_keras raises if a model has not been built
            self.thawed |= {w.record.index for w in found if w is not None and w.record.kind is VariableKind.FROZEN}

    def layer_records(self) -> tuple[LayerRecord, ...]:
        layers: list[LayerRecord] = []
        for model in self._models:
            with suppress(AttributeError, ValueError):
                layers += list(keras_objects.layer_records(model))
        return tuple(layers)

    def optimizer_records(self) -> tuple[OptimizerRecord, ...]:
        """Return the settings of the optimizers, as they were when each was first found, and what has changed since."""
        recorded = [(self._settings[id(item)], item) for item in self._all_optimizers() if id(item) in self._settings]
        return tuple(replace(first, changed=keras_objects.changes(first, item)) for first, item in recorded)

    def metric_results(self) -> Mapping[str, float]:
        """Return the current results of the watched metrics, by name."""
        shown: dict[str, float] = {}
        for metric in self._metrics:
            try:
                result = metric.result()
            except Exception as error:  # a metric may raise before its first update
                self._note(NoteKind.VARIABLES, f"metric {metric.name!r} has no result: {type(error).__name__}: {error}")
                continue
            pairs = result.items() if isinstance(result, dict) else [("", result)]
            for key, value in pairs:
                number = values.scalar(value)
                if number is not None:
                    shown[f"{metric.name}/{key}" if key else str(metric.name)] = number
        return shown

    def _read(self, item: Watched) -> tuple[Array, ...]:
        try:
            return item.read()
        except Exception as error:  # a failure to read must not hide a failure of the program
            self._note(NoteKind.VARIABLES, f"{item.record.name} could not be read: {type(error).__name__}: {error}")
            return ()

    def _all_optimizers(self) -> list[Any]:
        """Return the watched optimizers or, if there are none, those that the watched models were compiled with."""
        if self._optimizers:
            return self._optimizers
        optimizers = (getattr(model, "optimizer", None) for model in self._models)
        return [item for item in optimizers if item is not None and hasattr(item, "apply_gradients")]

    def _scan_model(self, model: Any) -> None:
        try:
            new = [item for item in model.variables if id(item) not in self._found]
            kinds = keras_objects.weight_kinds(model) if new else {}
        except ValueError:
            return  # tf_keras raises if a model has not been built
        for variable in new:
            self._take(variable, kinds.get(id(variable), VariableKind.STATE))

    def _scan_loose(self, name: str, item: Any) -> None:
        if hasattr(item, "submodules") and hasattr(item, "variables"):
            for variable in item.variables:
                self._take(variable, _plain_kind(variable))
            return
        given = name if not getattr(item, "name", None) or name != "variable" else None
        self._take(item, _plain_kind(item), given)

    def _scan_optimizer(self, optimizer: Any) -> None:
        if id(optimizer) not in self._settings:
            self._settings[id(optimizer)] = keras_objects.optimizer_record(optimizer)
        inner = getattr(optimizer, "inner_optimizer", None)
        owned = [] if inner is None else keras_objects.variables_of(inner)
        variables = [*keras_objects.variables_of(optimizer), *owned, *adapter.loss_scale_of(optimizer)]
        new = [item for item in variables if id(item) not in self._found]
        taken = self._slots_taken.setdefault(id(optimizer), set())
        weights = self._weights() if new else []
        for variable in new:
            slot_of = keras_objects.owner_of(variable, weights, taken)
            self._take(variable, keras_objects.kind_of(variable, slot_of), slot_of=slot_of)
        if new and id(optimizer) not in self._found and not keras_objects.has_rate_variable(optimizer):
            self._take_rate(optimizer)

    def _weights(self) -> list[tuple[int, str, tuple[int, ...]]]:
        """Return index, name and shape of the weights found so far, which may be owners of a slot."""
        return [
            (item.record.index, item.record.name, item.record.shape)
            for item in self._order
            if item.record.kind in (VariableKind.TRAINABLE, VariableKind.FROZEN)
        ]

    def _take_rate(self, optimizer: Any) -> None:
        """Watch a learning rate that is not a variable of the optimizer, as if it were one."""

        def read() -> tuple[Array, ...]:
            rate = keras_objects.learning_rate(optimizer)
            number = values.scalar(values.backing(rate))
            return (np.array(np.nan if number is None else number, dtype=np.float64),)

        if getattr(optimizer, "learning_rate", None) is None:
            return
        record = VariableRecord(
            len(self._order), "learning_rate", VariableKind.LEARNING_RATE, shape=(), dtype="float64"
        )
        self._keep(optimizer, Watched(record, read, optimizer=optimizer))

    def _take(self, variable: Any, kind: VariableKind, name: str | None = None, slot_of: int | None = None) -> None:
        if id(variable) in self._found or not values.is_variable(variable):
            return
        try:
            actual = values.backing(variable)
        except ValueError:
            return  # a Keras variable that is not initialized yet
        if actual is None or id(actual) in self._found:
            return
        record = VariableRecord(
            index=len(self._order),
            name=name or keras_objects.name_of(variable),
            kind=kind,
            shape=tuple(int(size) for size in actual.shape),
            dtype=_dtype_name(actual),
            slot_of=slot_of,
            aggregation=_enum_name(getattr(actual, "aggregation", None), "none"),
            synchronization=_enum_name(getattr(actual, "synchronization", None), "auto"),
            distributed=values.is_distributed(actual),
            of_keras=actual is not variable,
        )
        strategy = self._strategy
        self._keep(variable, Watched(record, lambda: values.read(strategy, actual), actual))
        self._found.setdefault(id(actual), self._order[-1])

    def _keep(self, item: Any, watched: Watched) -> None:
        self._found[id(item)] = watched
        self._order.append(watched)
        self._kept.append((item, watched.variable))


def _each(given: Any, name: str) -> Iterator[tuple[str, Any]]:
    """Yield each object in nested lists and dicts, or a single object, with its name."""
    if given is None:
        return
    if isinstance(given, Mapping):
        for key, value in given.items():
            yield from _each(value, str(key))
    elif isinstance(given, list | tuple | set | frozenset):
        for value in given:
            yield from _each(value, name)
    else:
        yield name, given


def _plain_kind(variable: Any) -> VariableKind:
    return VariableKind.TRAINABLE if getattr(variable, "trainable", False) else VariableKind.STATE


def _dtype_name(variable: Any) -> str:
    dtype = variable.dtype
    return str(getattr(dtype, "name", dtype)).removesuffix("_ref")


def _enum_name(value: Any, default: str) -> str:
    return default if value is None else str(getattr(value, "name", value)).rsplit(".", 1)[-1].lower()
