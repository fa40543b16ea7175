"""The calls of a program with gradients, replaced for the time of a run: the tape's, and those of optimizers.

What they are given and give back goes on untouched, and AutoGraph converts what it converts without them.
"""

from __future__ import annotations

import functools
import inspect
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from pytest_ddl.training.replacing import Replacements

_METHODS = ("apply", "apply_gradients")


class GradientHooks:
    """Tells of every ``GradientTape.gradient`` and of every outermost ``apply`` of an optimizer."""

    def __init__(
        self, computed: Callable[[Any, Any], Any], applied: Callable[[Any, str, tuple[Any, ...], dict[str, Any]], None]
    ) -> None:
        self._computed = computed
        """Given the sources and the result; gives the result that the program gets."""
        self._applied = applied
        """Given the optimizer, the name of its method, and the arguments."""
        self._replaced = Replacements()
        self._applying = threading.local()
        self._wrapped: set[int] = set()
        """Optimizers inside another one: what they are handed is not the program's doing."""

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Replace while open."""
        import tensorflow as tf

        original = tf.GradientTape.gradient
        with self._replaced:
            # Allowlisted for AutoGraph as the original is: by the module in its name.
            watching = functools.wraps(original)(self._watching_tape(original))
            self._replaced.put(tf.GradientTape, "gradient", watching)
            self.replace_optimizers()
            yield

    def _watching_tape(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def gradient(tape: Any, target: Any, sources: Any, *args: Any, **kwargs: Any) -> Any:
            result = original(tape, target, sources, *args, **kwargs)
            return self._computed(sources, result)

        return gradient

    def replace_optimizers(self) -> None:
        """Replace the methods of the classes that are there by now: programs make some, and import tf_keras late."""
        for root in _optimizer_roots():
            for owner in (*root.__mro__[:-1], *_subclasses(root)):
                for name in _METHODS:
                    method = vars(owner).get(name)
                    if inspect.isfunction(method) and not self._replaced.holds(owner, name):
                        self._replaced.put(owner, name, self._watching_optimizer(method, name))

    def _watching_optimizer(self, original: Any, name: str) -> Callable[..., Any]:
        import tensorflow as tf

        unconverted = tf.autograph.experimental.do_not_convert
        enter, leave = unconverted(self._enter), unconverted(self._leave)

        def applying(optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            args, kwargs = enter(optimizer, name, args, kwargs)
            result = original(optimizer, *args, **kwargs)
            leave()
            return result

        # Not functools.wraps: AutoGraph would convert the source of what ``__wrapped__`` names.
        for attribute in ("__module__", "__name__", "__qualname__", "__doc__"):
            setattr(applying, attribute, getattr(original, attribute))
        applying.__signature__ = inspect.signature(original)  # type: ignore[attr-defined]
        return applying

    def _enter(self, optimizer: Any, name: str, args: Any, kwargs: Any) -> tuple[Any, Any]:
        depth = getattr(self._applying, "depth", 0)
        self._applying.depth = depth + 1
        if depth or id(optimizer) in self._wrapped:
            return args, kwargs
        inner = getattr(optimizer, "inner_optimizer", None)
        if inner is not None:
            self._wrapped.add(id(inner))
        if name == "apply_gradients":
            # Programs pass zip(...), which can be read once.
            if args:
                args = (list(args[0]), *args[1:])
            elif "grads_and_vars" in kwargs:
                kwargs = {**kwargs, "grads_and_vars": list(kwargs["grads_and_vars"])}
        self._applied(optimizer, name, args, kwargs)
        return args, kwargs

    def _leave(self) -> None:
        self._applying.depth -= 1

    def forget(self) -> None:
        """Start anew after a step: a call that raised has not been left."""
        self._applying.depth = 0


def _optimizer_roots() -> Iterator[type]:
    """The base classes of the optimizers that are loaded."""
    import tensorflow as tf

    yield tf.compat.v1.train.Optimizer
    for name in ("keras", "tf_keras"):
        module = getattr(sys.modules.get(name), "optimizers", None)
        for owner in (module, getattr(module, "legacy", None)):
            root = getattr(owner, "Optimizer", None)
            if isinstance(root, type):
                yield root


def _subclasses(root: type) -> Iterator[type]:
    children: list[type] = root.__subclasses__()
    for child in children:
        yield child
        yield from _subclasses(child)
