"""Record the collectives that a rank really executes, in order, in its record and in a file.

Ranks pair their collectives by counting (``CollectiveKeys``, TF 2.4 to 2.21): the k-th of one rank joins the
k-th of another rank, whatever functions contain them. TensorFlow takes the number when a collective is
*executed*. For a collective inside a ``tf.function`` this is when the function is called. So one method sees
all collectives. It is not public; like ``adapter.py``, this module reports nothing if a release lacks it.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from pytest_ddl.notes import NoteKind
from pytest_ddl.records import CollectiveRecord
from pytest_ddl.training import frames
from pytest_ddl.training.callback_ops import add_callback
from pytest_ddl.training.collective_log import DECISION, CollectiveLog, path_of
from pytest_ddl.training.observer import Observer
from pytest_ddl.training.replacing import Replacements, named_like

LARGEST = 100_000
"""Maximum number of collectives to record, so that the log does not fill the disk."""
Issued = Callable[[CollectiveRecord, int], None]
"""Callback before each execution, which receives the collective and the key of its group.

The record describes the collective at the time when it was built. In eager mode, it is built when it is executed.
"""
_METHODS = ("batch_all_reduce", "all_reduce", "_all_gather", "_next_instance_key")


class CollectiveObserver(Observer):
    """Observer that fills ``RankRecord.collectives`` if there are several ranks: only then can collectives differ."""

    _executed: list[CollectiveRecord]

    @contextmanager
    def installed(self) -> Iterator[None]:
        self._executed = []
        if self.context.num_ranks < 2 or not self.settings.tmp_path:
            yield
            return
        path = path_of(self.settings.tmp_path, self.settings.attempt, self.context.rank)
        with CollectiveLog(path) as log:

            def issued(built: CollectiveRecord, group: int) -> None:
                if self.recorder.points is not None:
                    self.recorder.points.event("collective")
                if len(self._executed) >= LARGEST:
                    self.recorder.note(
                        NoteKind.COLLECTIVES,
                        f"collectives after the first {LARGEST} of {self.context.task} are not logged and not compared",
                    )
                    return
                try:
                    record = self._record(built, group)
                    self._executed.append(record)
                    log.write(record)
                except Exception as error:  # an exception here would be raised in the program's step
                    self.recorder.note(
                        NoteKind.COLLECTIVES, f"a collective could not be logged: {type(error).__name__}: {error}"
                    )

            def decided(finite: bool) -> None:
                # In groups of their own: ranks that decide differently then wait for each other, as in the graph.
                record = CollectiveRecord(
                    DECISION, "finite" if finite else "not finite", None, "", "", group=-1 - finite
                )
                log.write(replace(record, step=self.recorder.completed))

            with _deciding(decided, self.settings.observe), caught(self.context.strategy, issued) as possible:
                if not possible:
                    self.recorder.note(
                        NoteKind.COLLECTIVES,
                        "the collectives of this rank could not be logged in this TensorFlow release",
                    )
                yield

    def _record(self, built: CollectiveRecord, group: int) -> CollectiveRecord:
        called = frames.user_frames()
        return replace(
            built,
            where=built.where or called,
            called="" if called == built.where else called,
            group=group,
            step=self.recorder.completed,
        )

    def end_run(self) -> Mapping[str, Any]:
        return {"collectives": tuple(self._executed)}


@contextmanager
def caught(strategy: Any, issued: Issued) -> Iterator[bool]:
    """Call ``issued`` for every collective that this process executes; yield False if that is not possible."""
    keys = getattr(strategy.extended, "_collective_keys", None)
    launcher = _launcher_class(strategy)
    if keys is None or launcher is None:
        yield False
        return
    current = _CurrentCollectives()
    draw = keys.get_instance_key
    first_devices: dict[Any, Any] = {}

    def get_instance_key(group_key: Any, device: Any) -> Any:
        # Each replica of a rank takes a number for the same collective, which is reported only once.
        if first_devices.setdefault(group_key, device) == device:
            built = current.built or CollectiveRecord("broadcast", "", None, "", frames.user_frames())
            issued(built, int(group_key))
        return draw(group_key, device)

    with Replacements() as replaced:
        for name, method in _methods(launcher, current).items():
            replaced.put(launcher, name, method)
        replaced.put(keys, "get_instance_key", get_instance_key)
        yield True


def _methods(launcher: Any, current: _CurrentCollectives) -> dict[str, Callable[..., Any]]:
    """Return the methods of a launcher that say which collective they are about to issue, by :data:`_METHODS`."""
    originals = {name: getattr(launcher, name) for name in _METHODS}

    def batch_all_reduce(self: Any, input_tensor_packs: Any, *args: Any, **kwargs: Any) -> Any:
        import tensorflow as tf

        # In eager mode, TensorFlow packs nothing and reduces each tensor separately.
        current.packs = [] if tf.executing_eagerly() else list(input_tensor_packs)
        try:
            return originals["batch_all_reduce"](self, input_tensor_packs, *args, **kwargs)
        finally:
            current.packs = []

    def all_reduce(self: Any, input_tensor: Any, *args: Any, **kwargs: Any) -> Any:
        pack = current.packs.pop(0) if current.packs else []
        with current.set(_described("all_reduce", "SUM", input_tensor, pack)):
            return originals["all_reduce"](self, input_tensor, *args, **kwargs)

    def all_gather(self: Any, input_tensor: Any, *args: Any, **kwargs: Any) -> Any:
        with current.set(_described("all_gather", "", input_tensor)):
            return originals["_all_gather"](self, input_tensor, *args, **kwargs)

    def next_instance_key(self: Any) -> Any:
        import tensorflow as tf

        original, built = originals["_next_instance_key"], current.built
        if tf.executing_eagerly() or "_next_instance_key" in self.__dict__:
            return original(self)

        def draw_for_this() -> Any:
            with current.set(built):
                return original(self)

        # While tracing, TensorFlow captures this method and calls it at each call of the function.
        self._next_instance_key = draw_for_this
        try:
            return original(self)
        finally:
            del self._next_instance_key

    return dict(zip(_METHODS, (batch_all_reduce, all_reduce, all_gather, next_instance_key), strict=True))


@contextmanager
def _deciding(decided: Callable[[bool], None], is_observed: bool) -> Iterator[None]:
    """Call ``decided`` each time a loss scale of Keras 3 decides by the gradients of a replica whether it updates."""
    owner = getattr(getattr(sys.modules.get("keras"), "optimizers", None), "LossScaleOptimizer", None)
    original = getattr(owner, "check_finite", None)
    if original is None or not is_observed:
        yield
        return

    def check_finite(self: Any, grads: Any) -> Any:
        finite = original(self, grads)
        add_callback(lambda _replica, value: decided(bool(value)), [finite])
        return finite

    with Replacements().put(owner, "check_finite", named_like(original, check_finite)):
        yield


class _CurrentCollectives(threading.local):
    """Collective that this thread is about to issue."""

    built: CollectiveRecord | None = None
    packs: list[Sequence[Any]]

    def __init__(self) -> None:
        self.packs = []

    @contextmanager
    def set(self, built: CollectiveRecord | None) -> Iterator[None]:
        before, self.built = self.built, built
        try:
            yield
        finally:
            self.built = before


def _launcher_class(strategy: Any) -> Any:
    launchers = getattr(getattr(strategy.extended, "_cross_device_ops", None), "_launchers", None)
    kind = type(launchers[0]) if launchers else None
    return kind if all(hasattr(kind, name) for name in _METHODS) else None


def _described(kind: str, op: str, tensor: Any, pack: Sequence[Any] = ()) -> CollectiveRecord:
    parts: tuple[str, ...] = ()
    if len(pack) > 1:
        parts = tuple(f"{'x'.join(map(str, shape_of(part) or ()))} {dtype_of(part)}" for part in pack)
    names = () if hasattr(tensor, "numpy") else tuple(str(getattr(part, "name", "")) for part in pack or [tensor])
    where = frames.user_frames()
    return CollectiveRecord(kind, op, shape_of(tensor), dtype_of(tensor), where, parts=parts, names=names)


def shape_of(tensor: Any) -> tuple[int | None, ...] | None:
    """Return the shape of a tensor, or ``None`` if even its number of dimensions is not known."""
    shape: Any = getattr(tensor, "shape", None)
    return None if getattr(shape, "rank", None) is None else tuple(shape.as_list())


def dtype_of(tensor: Any) -> str:
    """Return the name of the dtype of a tensor, or an empty string for something without a dtype."""
    return str(getattr(getattr(tensor, "dtype", None), "name", ""))
