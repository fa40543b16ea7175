"""Report the collectives that a rank really executes, from the method by which TensorFlow numbers them.

Ranks pair their collectives by counting (``CollectiveKeys``, TF 2.4 to 2.21): the k-th of one rank joins the
k-th of another rank, whatever functions contain them. TensorFlow takes the number when a collective is
*executed*. For a collective inside a ``tf.function`` this is when the function is called. So one method sees
all collectives. It is not public; like ``adapter.py``, this module reports nothing if a release lacks it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from pytest_ddl.training import adapter
from pytest_ddl.training.replacing import Replacements


@dataclass(frozen=True)
class CollectiveCall:
    """Description of a collective at the time when it is built; in eager mode, that is when it is executed."""

    kind: str
    shape: tuple[int | None, ...] | None
    dtype: str
    where: str
    parts: tuple[str, ...] = ()
    names: tuple[str, ...] = ()


Issued = Callable[[CollectiveCall, int], None]
"""Callback before each execution, which receives the collective and the key of its group."""


@contextmanager
def caught(strategy: Any, issued: Issued) -> Iterator[bool]:
    """Call ``issued`` for every collective that this process executes; yield False if that is not possible."""
    keys = getattr(strategy.extended, "_collective_keys", None)
    launcher = _launcher_class(strategy)
    if keys is None or launcher is None:
        yield False
        return
    current = _Current()
    originals = {name: getattr(launcher, name) for name in _METHODS}
    draw = keys.get_instance_key
    first_devices: dict[Any, Any] = {}

    def get_instance_key(group_key: Any, device: Any) -> Any:
        # Each replica of a rank takes a number for the same collective, which is reported only once.
        if first_devices.setdefault(group_key, device) == device:
            call = current.call
            issued(call or CollectiveCall("broadcast", None, "", adapter.user_frames()), int(group_key))
        return draw(group_key, device)

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
        with current.set(_describe("all_reduce", input_tensor, pack)):
            return originals["all_reduce"](self, input_tensor, *args, **kwargs)

    def all_gather(self: Any, input_tensor: Any, *args: Any, **kwargs: Any) -> Any:
        with current.set(_describe("all_gather", input_tensor)):
            return originals["_all_gather"](self, input_tensor, *args, **kwargs)

    def next_instance_key(self: Any) -> Any:
        import tensorflow as tf

        original, call = originals["_next_instance_key"], current.call
        if tf.executing_eagerly() or "_next_instance_key" in self.__dict__:
            return original(self)

        def draw_for_this() -> Any:
            with current.set(call):
                return original(self)

        # While tracing, TensorFlow captures this method and calls it at each call of the function.
        self._next_instance_key = draw_for_this
        try:
            return original(self)
        finally:
            del self._next_instance_key

    replacements = (batch_all_reduce, all_reduce, all_gather, next_instance_key)
    with Replacements() as replaced:
        for name, method in zip(_METHODS, replacements, strict=True):
            replaced.put(launcher, name, method)
        replaced.put(keys, "get_instance_key", get_instance_key)
        yield True


_METHODS = ("batch_all_reduce", "all_reduce", "_all_gather", "_next_instance_key")


class _Current(threading.local):
    """Collective that this thread is about to issue."""

    call: CollectiveCall | None = None
    packs: list[Sequence[Any]]

    def __init__(self) -> None:
        self.packs = []

    @contextmanager
    def set(self, call: CollectiveCall | None) -> Iterator[None]:
        before, self.call = self.call, call
        try:
            yield
        finally:
            self.call = before


def _launcher_class(strategy: Any) -> Any:
    launchers = getattr(getattr(strategy.extended, "_cross_device_ops", None), "_launchers", None)
    kind = type(launchers[0]) if launchers else None
    return kind if all(hasattr(kind, name) for name in _METHODS) else None


def _describe(kind: str, tensor: Any, pack: Sequence[Any] = ()) -> CollectiveCall:
    parts = tuple(f"{'x'.join(map(str, _dims(part) or ()))} {_dtype(part)}" for part in pack) if len(pack) > 1 else ()
    names = () if hasattr(tensor, "numpy") else tuple(str(getattr(part, "name", "")) for part in pack or [tensor])
    return CollectiveCall(kind, _dims(tensor), _dtype(tensor), adapter.user_frames(), parts, names)


def _dims(tensor: Any) -> tuple[int | None, ...] | None:
    shape = getattr(tensor, "shape", None)
    return None if shape is None or shape.rank is None else tuple(shape.as_list())


def _dtype(tensor: Any) -> str:
    return getattr(getattr(tensor, "dtype", None), "name", "")
