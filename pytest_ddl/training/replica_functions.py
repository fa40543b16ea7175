"""Call the observers around the replica functions of a program, without changing what these compute.

``strategy.run`` is replaced on the *instance* during a run.

AutoGraph must convert the wrapper of a replica function. TensorFlow converts the user's function
through its caller, so an unconverted wrapper would switch off the conversion of the user's code.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from pytest_ddl.training import adapter
from pytest_ddl.training.consumption import Consumption, observe_call
from pytest_ddl.training.observers.base import Observer


@contextmanager
def observed(strategy: Any, consumption: Consumption, observers: Sequence[Observer] = ()) -> Iterator[None]:
    """Observe every ``strategy.run`` while the context is open."""
    original = strategy.run

    def before() -> None:
        for observer in observers:
            observer.before_dispatch()

    def after() -> None:
        for observer in observers:
            observer.after_dispatch()

    # AutoGraph would convert every function that the hooks call, and this takes longer than the hooks.
    before, after = _unconverted(before), _unconverted(after)
    is_own = _unconverted(adapter.is_of_strategy)

    def run(fn: Any, args: Any = (), kwargs: Any = None, options: Any = None) -> Any:
        if is_own(fn):
            return original(fn, args=args, kwargs=kwargs, options=options)
        before()
        try:
            result = original(wrap(fn, consumption, observers), args=args, kwargs=kwargs, options=options)
        finally:
            after()
        return result

    with ExitStack() as stack:
        for observer in observers:
            stack.enter_context(observer.installed())
        strategy.run = run
        try:
            yield
        finally:
            del strategy.run


def wrap(
    function: Callable[..., Any], consumption: Consumption, observers: Sequence[Observer] = ()
) -> Callable[..., Any]:
    """Return a replica function that also reports what it consumed, and returns the result of ``function``."""

    def begin() -> list[Any]:
        return [observer.before_replica() for observer in observers]

    def end(given: Any, tokens: list[Any], result: Any) -> None:
        for observer, token in zip(observers, tokens, strict=True):
            observer.after_replica(token, result)
        observe_call(consumption, given, result)

    begin, end = _unconverted(begin), _unconverted(end)

    def observed_function(*args: Any, **kwargs: Any) -> Any:
        tokens = begin()
        result = function(*args, **kwargs)
        end((args, kwargs), tokens, result)
        return result

    return observed_function


def _unconverted(function: Callable[..., Any]) -> Callable[..., Any]:
    import tensorflow as tf

    decorated: Callable[..., Any] = tf.autograph.experimental.do_not_convert(function)
    return decorated
