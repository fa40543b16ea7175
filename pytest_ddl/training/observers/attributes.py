"""Find attributes of layers and modules that one replica overwrites while another replica is still in the object."""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import FrameType
from typing import Any

from pytest_ddl.run_facts import RunFacts
from pytest_ddl.training import frames
from pytest_ddl.training.environment import keras_modules, on_import
from pytest_ddl.training.observer import Observer
from pytest_ddl.training.replacing import Replacements


class Attributes(Observer):
    """Observer that fills the fact ``overwritten``: ``CLASS.ATTRIBUTE`` -> line that sets it.

    The replicas of a process run in threads and share all Python objects. A replica waits in each collective, and the
    next replica runs until it gets there. Suppose that this replica sets an attribute of an object, and the waiting one
    is in a method of this object. Then the waiting replica continues with the value of the other.
    """

    @contextmanager
    def installed(self) -> Iterator[None]:
        import tensorflow as tf

        self._overwritten: dict[str, str] = {}
        with Replacements() as replaced:

            def watch(owner: Any) -> None:
                for base in owner.__mro__:
                    if "__setattr__" in vars(base) and base is not object:
                        replaced.put(owner, "__setattr__", self._watching(owner.__setattr__))
                        return

            for owner in (tf.Module, *(keras.layers.Layer for keras in keras_modules())):
                watch(owner)
            with on_import("tf_keras", lambda module: watch(module.layers.Layer)):
                yield

    def _watching(self, original: Callable[..., None]) -> Callable[..., None]:
        import tensorflow as tf

        # Python itself calls this method, never AutoGraph, so there is no conversion to switch off. A model sets
        # hundreds of attributes while it is built, which is outside of replicas. So the cheapest test comes first.
        @functools.wraps(original)
        def set_attribute(item: Any, name: str, value: Any) -> None:
            original(item, name, value)
            by_replica = not tf.distribute.in_cross_replica_context() and tf.is_tensor(value)
            if by_replica and frames.is_called_by_program() and _another_thread_is_in(item):
                self._overwritten.setdefault(f"{type(item).__name__}.{name}", frames.user_frames(1))

        return set_attribute

    def end_run(self) -> Mapping[str, Any]:
        return {"facts": RunFacts(overwritten=self._overwritten)} if self._overwritten else {}


def _another_thread_is_in(item: Any) -> bool:
    """Return whether another thread runs a method of an object, as a replica that waits in a collective does."""
    own = threading.get_ident()
    return any(_is_in(frame, item) for thread, frame in sys._current_frames().items() if thread != own)


def _is_in(frame: FrameType | None, item: Any) -> bool:
    while frame is not None:
        if frame.f_code.co_argcount and frame.f_locals.get(frame.f_code.co_varnames[0]) is item:
            return True
        frame = frame.f_back
    return False
