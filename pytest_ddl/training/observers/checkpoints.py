"""Compare what a program restores from its own files with what it saved."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from pytest_ddl.records import Array, RestoreRecord
from pytest_ddl.training import adapter, keras_objects, values
from pytest_ddl.training.lines import RESTORE
from pytest_ddl.training.observer import Observer
from pytest_ddl.training.observers import saving

_Parts = dict[str, list[tuple[str, Array]]]
"""Name of a part (``model``, ``optimizer`` …) -> name and value of its variables, in order."""


@dataclass
class _Restore:
    call: saving.Call
    step: int
    compared: int = 0
    lost: list[str] = field(default_factory=list)
    absent: list[str] = field(default_factory=list)


class CheckpointObserver(Observer):
    """Observer that compares what ``tf.train.Checkpoint`` and ``load_weights`` restore with what was saved."""

    @contextmanager
    def installed(self) -> Iterator[None]:
        self._saved: dict[str, _Parts] = {}
        self._restored: list[_Restore] = []
        with saving.observed(self._hear):
            yield

    def end_run(self) -> Mapping[str, Any]:
        # The program may call expect_partial() at any time after the restore.
        wanted = [item for item in self._restored if not adapter.expects_partial(item.call.result)]
        return {"restores": tuple(self._record(item) for item in wanted)}

    def _record(self, item: _Restore) -> RestoreRecord:
        return RestoreRecord(
            item.call.path, item.call.api, item.step, item.compared, tuple(item.lost), tuple(item.absent)
        )

    def _hear(self, call: saving.Call) -> None:
        if call.failed:
            return
        if not call.writes:
            self.recorder.lines.add(RESTORE)
            for item in _parts_of(call).values():
                self.recorder.lines.assign([values.backing(variable) for variable in _variables_of(item, call.api)])
        path = os.path.realpath(call.path)
        parts = self._parts(call)
        if call.writes:
            self._saved[path] = parts
        elif path in self._saved and not (call.options.get("skip_mismatch") or call.options.get("by_name")):
            self._restored.append(_compared(call, self.recorder.completed, self._saved[path], parts))

    def _parts(self, call: saving.Call) -> _Parts:
        parts = {name: self._values(item, call.api) for name, item in _parts_of(call).items()}
        return {name: part for name, part in parts.items() if part}

    def _values(self, item: Any, api: str) -> list[tuple[str, Array]]:
        arrays = []
        for variable in _variables_of(item, api):
            arrays.append((keras_objects.name_of(variable), self._as_saved(values.backing(variable))))
        return arrays

    def _as_saved(self, variable: Any) -> Array:
        """Return the value that a checkpoint keeps of a variable; an empty one if this rank cannot know it.

        A variable that is reduced when it is read is saved reduced. A sum is given back to the replicas in equal parts.
        """
        import tensorflow as tf

        parts = values.read(self.context.strategy, variable)
        is_reduced = getattr(variable, "synchronization", None) is tf.VariableSynchronization.ON_READ
        if not parts or (is_reduced and self.context.num_ranks > 1):
            return np.zeros(0)
        if is_reduced and variable.aggregation is tf.VariableAggregation.SUM:
            return np.asarray(np.sum(parts, axis=0), parts[0].dtype)
        if is_reduced and variable.aggregation is tf.VariableAggregation.MEAN:
            return np.asarray(np.mean(parts, axis=0), parts[0].dtype)
        return parts[0]


def _parts_of(call: saving.Call) -> dict[str, Any]:
    """Return the attributes of a checkpoint, or a model and its optimizer if that is saved too."""
    if "Checkpoint" in call.api:
        return {name: item for name, item in vars(call.subject).items() if not name.startswith("_")}
    named = {"model": call.subject}
    if call.api.startswith("keras.") and call.path.endswith((".weights.h5", ".keras")):
        named["optimizer"] = getattr(call.subject, "optimizer", None)
    return named


def _variables_of(item: Any, api: str) -> list[Any]:
    """Return the variables that a call saves or restores. Keras leaves out the states of seed generators."""
    import tensorflow as tf

    if isinstance(item, tf.Variable):
        return [item]
    if hasattr(item, "apply_gradients"):
        return keras_objects.variables_of(item)
    try:
        return list(getattr(item, "weights" if api.startswith("keras.") else "variables", None) or ())
    except (ValueError, TypeError):
        return []  # tf_keras raises if a model has not been built


def _is_given_back(saved: Array, now: Array) -> bool:
    """Return whether a value is the saved one, or a sum of equal parts of it, which may round."""
    if saved.dtype.kind not in "fc":
        return np.array_equal(saved, now)
    return np.allclose(now, saved, rtol=4 * np.finfo(saved.dtype).eps, atol=0.0, equal_nan=True)


def _compared(call: saving.Call, step: int, saved: _Parts, now: _Parts) -> _Restore:
    result = _Restore(call, step)
    deferred = "Checkpoint" in call.api
    for part, current in now.items():
        before = saved.get(part)
        if before is None:
            result.absent.append(part)
            continue
        for (_name, old), (name, new) in zip(before, current, strict=False):
            if old.shape == new.shape and old.dtype == new.dtype:
                result.compared += 1
                if not _is_given_back(old, new):
                    result.lost.append(name)
        if not deferred and len(before) > len(current):
            # Only a tf.train.Checkpoint also restores variables that are created later.
            result.lost += [name for name, _value in before[len(current) :]]
    return result
