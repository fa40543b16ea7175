"""Replace the gradient methods of tapes and optimizers during a run, to report their calls.

The methods still receive the same arguments, and AutoGraph converts the same functions as without the replacement.
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
    """Hooks that report every ``GradientTape.gradient`` and every outermost ``apply`` of an optimizer."""

    def __init__(
        self, computed: Callable[[Any, Any], Any], applied: Callable[[Any, str, tuple[Any, ...], dict[str, Any]], None]
    ) -> None:
        self._computed = computed
        """Called with the sources and the result; returns the result that the program gets."""
        self._applied = applied
        """Called with the optimizer, the name of its method, and the arguments."""
        self._replaced = Replacements()
        self._applying = threading.local()
        self._wrapped: set[int] = set()
        """Ids of optimizers inside another one. The outer optimizer calls them, not the program."""

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Install the hooks while the context is open."""
        import tensorflow as tf

        original = tf.GradientTape.gradient
        with self._replaced:
            # functools.wraps copies the module name, by which AutoGraph decides not to convert the original.
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
        """Replace the methods of all optimizer classes that exist now; a program may define or import more later."""
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

        # Not functools.wraps: AutoGraph would convert the source of the function in ``__wrapped__``.
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
            # Programs pass zip(...), which can be read only once.
            if args:
                args = (list(args[0]), *args[1:])
            elif "grads_and_vars" in kwargs:
                kwargs = {**kwargs, "grads_and_vars": list(kwargs["grads_and_vars"])}
        self._applied(optimizer, name, args, kwargs)
        return args, kwargs

    def _leave(self) -> None:
        self._applying.depth -= 1

    def forget(self) -> None:
        """Reset the call depth after a step: a call that raised did not decrease it."""
        self._applying.depth = 0


def _optimizer_roots() -> Iterator[type]:
    """Yield the base class of the optimizers of each framework that is imported."""
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
