"""Report the calls of TensorFlow and Keras that save and load, by replacing them while a run is observed."""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from pytest_ddl.training import adapter
from pytest_ddl.training.environment import keras_modules, on_import
from pytest_ddl.training.replacing import Replacements


@dataclass(frozen=True)
class Call:
    """Call that saved or loaded and has returned, or call that tried to save and has failed."""

    api: str
    path: str
    writes: bool
    subject: Any
    """Checkpoint or model."""
    options: Mapping[str, Any] = field(default_factory=dict)
    result: Any = None
    failed: bool = False


Listener = Callable[[Call], Any]
_NUMBERED = ("Checkpoint.save", "CheckpointManager.save")
"""Calls that return the path that they wrote, which is a prefix and a number."""


def _points() -> Iterator[tuple[Any, str, str, bool]]:
    """Yield ``(owner, attribute, name, writes)`` of each call, whose first arguments are subject and path."""
    import tensorflow as tf

    for kind in (tf.train.Checkpoint, tf.compat.v1.train.Checkpoint):
        name = "tf.train.Checkpoint" if kind is tf.train.Checkpoint else "tf.compat.v1.train.Checkpoint"
        yield kind, "write", f"{name}.write", True
        yield kind, "save", f"{name}.save", True
        yield kind, "restore", f"{name}.restore", False
    yield tf.train.CheckpointManager, "save", "tf.train.CheckpointManager.save", True
    yield tf.train.Checkpoint, "read", "tf.train.Checkpoint.read", False
    yield tf.saved_model, "save", "tf.saved_model.save", True
    for flavour in keras_modules():
        yield from _points_of(flavour)


def _points_of(flavour: Any) -> Iterator[tuple[Any, str, str, bool]]:
    name = flavour.__name__
    yield flavour.Model, "save", f"{name}.Model.save", True
    yield flavour.Model, "save_weights", f"{name}.Model.save_weights", True
    yield flavour.Model, "export", f"{name}.Model.export", True
    yield flavour.Model, "load_weights", f"{name}.Model.load_weights", False


@contextmanager
def observed(
    listener: Listener,
    began: Callable[[bool], None] = lambda _writes: None,
    ended: Callable[[bool, str | None], None] = lambda _writes, _path: None,
) -> Iterator[None]:
    """Report every call that saves or loads to ``listener`` while the context is open.

    :param began: callback before each call, which receives whether it writes. Its exceptions go to the program.
    :param ended: callback after each call, which receives whether it writes, and its path; ``None`` if it has raised.
    """
    with Replacements() as replaced:

        def replace_all(points: Iterator[tuple[Any, str, str, bool]]) -> None:
            for owner, attribute, name, writes in points:
                original = vars(owner).get(attribute)
                if original is not None:
                    replaced.put(owner, attribute, _reporting(original, name, writes, listener, began, ended))

        replace_all(_points())
        with on_import("tf_keras", lambda module: replace_all(_points_of(module))):
            yield


def _reporting(
    original: Callable[..., Any],
    name: str,
    writes: bool,
    listener: Listener,
    began: Callable[[bool], None],
    ended: Callable[[bool, str | None], None],
) -> Callable[..., Any]:
    signature = inspect.signature(original)
    numbered = name.endswith(_NUMBERED)

    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            given = signature.bind(*args, **kwargs).arguments  # in the order of the signature
        except TypeError:
            return original(*args, **kwargs)  # which raises the TypeError of the program
        subject, path = [*given.values(), ""][:2]
        try:
            began(writes)
            used: str | None = None
            try:
                result = original(*args, **kwargs)
                used = str((result if numbered else path) or "")
            finally:
                ended(writes, used)
        except Exception:
            if writes:
                with suppress(Exception):
                    tried = _numbered_path(subject, given) if numbered else os.fspath(path)
                    listener(Call(name, tried, writes, subject, kwargs, failed=True))
            raise
        with suppress(Exception):  # a failure of the listener must not become an error of the program
            if not numbered or result:  # a manager returns no path if it is too early to save
                saved = getattr(subject, "checkpoint", subject) if "Manager" in name else subject
                listener(Call(name, str(result if numbered else path), writes, saved, kwargs, result))
        return result

    return call


def _numbered_path(subject: Any, given: Mapping[str, Any]) -> str:
    """Return the path that a failed numbered call tried to write: both calls increase the number before they write."""
    if "file_prefix" in given:
        return f"{os.fspath(given['file_prefix'])}-{int(subject.save_counter)}"
    number = given.get("checkpoint_number")
    prefix = adapter.checkpoint_prefix(subject)
    return f"{prefix}-{int(subject.checkpoint.save_counter if number is None else number)}"
