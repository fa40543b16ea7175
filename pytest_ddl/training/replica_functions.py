"""Call the observers around the replica functions of a program, without changing what these compute.

``strategy.run`` is replaced on the *instance* during a run.

AutoGraph converts the user's function and none of the functions here: a conversion takes longer than the
whole step of a small model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from pytest_ddl.training import adapter
from pytest_ddl.training.consumption import Consumption, observe_call
from pytest_ddl.training.observers.base import Observer
from pytest_ddl.training.replacing import named_like


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

    before, after = _unconverted(before), _unconverted(after)

    def run(fn: Any, args: Any = (), kwargs: Any = None, options: Any = None) -> Any:
        if adapter.is_of_strategy(fn):
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
        strategy.run = named_like(original, run)
        try:
            yield
        finally:
            del strategy.run


def wrap(
    function: Callable[..., Any], consumption: Consumption, observers: Sequence[Observer] = ()
) -> Callable[..., Any]:
    """Return a replica function that also reports what it consumed, and returns the result of ``function``."""

    # Convert in the thread and the context of the caller. Strategies call the function in threads of their own.
    function = adapter.as_autograph_calls(function)

    def observed_function(*args: Any, **kwargs: Any) -> Any:
        tokens = [observer.before_replica() for observer in observers]
        result = function(*args, **kwargs)
        for observer, token in zip(observers, tokens, strict=True):
            observer.after_replica(token, result)
        observe_call(consumption, (args, kwargs), result)
        return result

    return _unconverted(observed_function)


def _unconverted(function: Callable[..., Any]) -> Callable[..., Any]:
    import tensorflow as tf

    decorated: Callable[..., Any] = tf.autograph.experimental.do_not_convert(function)
    return decorated
