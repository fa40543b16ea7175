"""Check the arguments of a comparison before anything runs. Each error is one line with what is valid."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, ParamSpec, TypeVar

from pytest_ddl.equivalence.checks.registry import Check, select
from pytest_ddl.equivalence.expectations import expectations_for
from pytest_ddl.hints import Hint, HintedError
from pytest_ddl.items.selection import is_seconds
from pytest_ddl.messages import no_such_argument, not_one_of
from pytest_ddl.strategies.registry import StrategyRegistry

PRECISIONS = ("auto", "float64", "native")

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


class ArgumentError(HintedError):
    """Error for an argument that cannot be used. The message is one line and names the argument."""


# pytest prints the module of an exception in front of every failure, and the message has to fit on the line.
ArgumentError.__module__ = "pytest_ddl"


def check_arguments(known: Sequence[Check], registry: StrategyRegistry, **given: Any) -> None:
    """Check the values of all arguments that were given.

    :param known: the checks that exist.
    :param given: arguments of ``ddl_equivalence``, by name.
    :raises ArgumentError: for the first value that cannot be used.
    """
    try:
        _check_values(given)
        select(given.get("checks"), known)
        expectations_for(registry.default("one_device"), given.get("expect", ()), registry)
    except ValueError as error:
        raise ArgumentError(*error.args) from None


def _check_values(given: Mapping[str, Any]) -> None:
    if "train" in given and not callable(given["train"]):
        raise ValueError(f"train={given['train']!r} must be a function that takes the run, as in def train(run): …")
    for name in ("global_batch_size", "steps"):
        value = given.get(name)
        if value is not None and not (is_whole(value) and value >= 1):
            raise ValueError(f"{Hint.GIVEN(name, repr(value))} must be a whole number, at least 1")
    if given.get("precision", "auto") not in PRECISIONS:
        raise ValueError(not_one_of(Hint.PRECISION(), given["precision"], PRECISIONS))
    if given.get("timeout") is not None and not is_seconds(given["timeout"]):
        raise ValueError(f"{Hint.GIVEN('timeout', repr(given['timeout']))} must be a positive number of seconds")
    seed = given.get("seed", 0)
    if not (is_whole(seed) and 0 <= seed < 2**32):
        given_as = Hint.GIVEN("seed", repr(seed))
        raise ValueError(f"{given_as} must be a whole number, at least 0 and below 2**32 (NumPy takes no other)")
    if not isinstance(given.get("strict", False), bool):
        raise ValueError(f"{Hint.GIVEN('strict', repr(given['strict']))} must be True or False")
    for name, example in (("expect", "{'cause-id': 'reason'}"), ("checks", "['STEP-EQ']")):
        value = given.get(name, ())
        if not isinstance(value, Collection) and not (name == "checks" and value is None):
            raise ValueError(
                f"{Hint.GIVEN(name, repr(value))} must be a collection, for example {Hint.GIVEN(name, example)}"
            )


def is_whole(value: object) -> bool:
    """Return whether a value is a whole number, and neither True nor False."""
    return isinstance(value, int) and not isinstance(value, bool)


def explains_arguments(
    name: str, like: Callable[..., Any] | None = None
) -> Callable[[Callable[Arguments, Result]], Callable[Arguments, Result]]:
    """Decorate a function so that it explains wrong names of arguments, and errors do not show its own frames.

    :param name: name of the function for the messages.
    :param like: a function with the same arguments, if the decorated one does not list them.
    """

    def decorate(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
        parameters = [one for one in inspect.signature(like or function).parameters.values() if one.name != "self"]
        positional = [one.name for one in parameters if one.kind is not one.KEYWORD_ONLY]

        @functools.wraps(function)
        def call(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
            __tracebackhide__ = True
            for given in kwargs:
                names = [one.name for one in parameters]
                if given not in names:
                    raise TypeError(no_such_argument(f"{name}()", given, [one for one in names if one != "train"]))
            if len(args) > len(positional):
                further = next(one.name for one in parameters if one.kind is one.KEYWORD_ONLY)
                raise TypeError(
                    f"{name}() takes only {' and '.join(positional)} by position; name {args[len(positional)]!r}, for "
                    f"example {further}={args[len(positional)]!r}"
                )
            if not args and "train" not in kwargs:
                raise TypeError(f"{name}() needs the training function, train(run), as its first argument")
            try:
                return function(*args, **kwargs)
            except ArgumentError as error:
                raise error.with_traceback(None) from None

        return call

    return decorate
