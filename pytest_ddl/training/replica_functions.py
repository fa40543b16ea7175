"""Call the observers around the replica functions of a program, without changing what these compute.

``strategy.run`` is replaced on the *instance* during a run.

AutoGraph converts the user's function and none of the functions here: a conversion takes longer than the
whole step of a small model.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from pytest_ddl.training import adapter, current_call
from pytest_ddl.training.consumption import Consumption, observe_call
from pytest_ddl.training.observer import Observer
from pytest_ddl.training.replacing import named_like
from pytest_ddl.training.replica_arguments import ReplicaArguments


@contextmanager
def observed(
    strategy: Any,
    consumption: Consumption,
    observers: Sequence[Observer] = (),
    arguments: ReplicaArguments | None = None,
) -> Iterator[None]:
    """Observe every ``strategy.run`` while the context is open."""
    original = strategy.run

    def before(traced: bool) -> None:
        for observer in observers:
            observer.before_dispatch(traced)

    def after() -> None:
        for observer in observers:
            observer.after_dispatch()

    before, after = _unconverted(before), _unconverted(after)
    functions: dict[Any, Any] = {}

    def traced_function(fn: Any) -> Any:
        """Return a ``tf.function`` in place of one of the program: always the same one, or each step would trace."""
        if fn not in functions:

            def body(*args: Any, **kwargs: Any) -> Any:
                return wrap(fn.python_function, consumption, observers, arguments)(*args, **kwargs)

            body = named_like(original, body)
            body.__signature__ = inspect.signature(fn.python_function)  # type: ignore[attr-defined]
            functions[fn] = adapter.with_body(fn, body)
        return functions[fn]

    def run(fn: Any, args: Any = (), kwargs: Any = None, options: Any = None) -> Any:
        if adapter.is_of_strategy(fn):
            return original(fn, args=args, kwargs=kwargs, options=options)
        traced = adapter.is_traced_by_strategy(fn)
        before(traced)
        try:
            function = traced_function(fn) if traced else wrap(fn, consumption, observers, arguments)
            result = original(function, args=args, kwargs=kwargs, options=options)
        finally:
            after()
        return result

    with ExitStack() as stack:
        stack.enter_context(consumption.elements.observed())
        for observer in observers:
            stack.enter_context(observer.installed())
        strategy.run = named_like(original, run)
        try:
            yield
        finally:
            del strategy.run


def wrap(
    function: Callable[..., Any],
    consumption: Consumption,
    observers: Sequence[Observer] = (),
    arguments: ReplicaArguments | None = None,
) -> Callable[..., Any]:
    """Return a replica function that also reports what it consumed, and returns the result of ``function``."""

    # Convert in the thread and the context of the caller. Strategies call the function in threads of their own.
    function = adapter.as_autograph_calls(function)

    def observed_function(*args: Any, **kwargs: Any) -> Any:
        number = None
        if arguments is not None:
            args, kwargs, number = arguments.of_call(args, kwargs)
        with current_call.numbered(number):
            tokens = [observer.before_replica((args, kwargs)) for observer in observers]
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
