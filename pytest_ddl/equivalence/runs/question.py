"""All arguments of a comparison, checked before anything runs. Each error is one line with what is valid."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ParamSpec, TypeVar

from pytest_ddl.equivalence.checks.registry import CHECKS, Check, select
from pytest_ddl.equivalence.expectations import Expect, Expectations, expectations_for
from pytest_ddl.hints import Hint, HintedError
from pytest_ddl.items.selection import DdlMark, is_seconds
from pytest_ddl.messages import no_such_argument, not_one_of
from pytest_ddl.strategies.registry import StrategyRegistry
from pytest_ddl.strategies.spec import StrategySpec

PRECISIONS = ("auto", "float64", "native")
SEED = 20_201

TrainFunction = Callable[[Any], Any]
Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


class ArgumentError(HintedError):
    """Error for an argument that cannot be used. The message is one line and names the argument."""


# pytest prints the module of an exception in front of every failure, and the message has to fit on the line.
ArgumentError.__module__ = "pytest_ddl"


@dataclass(frozen=True)
class Question:
    """All arguments of one comparison. :func:`pytest_ddl.check_training` describes those that a user gives."""

    train: TrainFunction
    spec: StrategySpec
    """Strategy that is compared with one device."""
    mark: DdlMark
    global_batch_size: int | None = None
    steps: int | None = None
    precision: str = "auto"
    expect: Expect = ()
    strict: bool = False
    checks: Collection[str] | None = None
    timeout: float | None = None
    """Seconds for all runs; ``None`` for the time of the marker or of the options."""
    seed: int = SEED
    test: str = ""
    """Name of the test. Runs on one device are shared only by the comparisons of one test."""
    known: Sequence[Check] = CHECKS
    """All checks that exist, those of plugins included."""
    declared: Expectations = field(default_factory=Expectations)
    """Declarations of ``expect`` for the strategy. :meth:`checked` reads them."""

    def checked(self, registry: StrategyRegistry) -> Question:
        """Return the question with all values checked, and with what is declared for its strategy.

        :raises ArgumentError: for the first value that cannot be used.
        """
        try:
            self._check_values()
            select(self.checks, self.known)
            return replace(self, declared=expectations_for(self.spec, self.expect, registry))
        except ValueError as error:
            raise ArgumentError(*error.args) from None

    def _check_values(self) -> None:
        if not callable(self.train):
            raise ValueError(f"train={self.train!r} must be a function that takes the run, as in def train(run): …")
        for name, whole in (("global_batch_size", self.global_batch_size), ("steps", self.steps)):
            if whole is not None and not (is_whole(whole) and whole >= 1):
                raise ValueError(f"{Hint.GIVEN(name, repr(whole))} must be a whole number, at least 1")
        if self.precision not in PRECISIONS:
            raise ValueError(not_one_of(Hint.PRECISION(), self.precision, PRECISIONS))
        if self.timeout is not None and not is_seconds(self.timeout):
            raise ValueError(f"{Hint.GIVEN('timeout', repr(self.timeout))} must be a positive number of seconds")
        if not (is_whole(self.seed) and 0 <= self.seed < 2**32):
            seed = Hint.GIVEN("seed", repr(self.seed))
            raise ValueError(f"{seed} must be a whole number, at least 0 and below 2**32 (NumPy takes no other)")
        if not isinstance(self.strict, bool):
            raise ValueError(f"{Hint.GIVEN('strict', repr(self.strict))} must be True or False")
        collections = (
            ("expect", self.expect, "{'cause-id': 'reason'}"),
            ("checks", () if self.checks is None else self.checks, "['STEP-EQ']"),
        )
        for name, value, example in collections:
            if not isinstance(value, Collection):
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
                further = args[len(positional)]
                keyword = next(one.name for one in parameters if one.kind is one.KEYWORD_ONLY)
                advice = f"name {further!r}, for example {keyword}={further!r}"
                if not isinstance(further, int | float | str):
                    advice = f"train(run) makes the data itself, or give this {type(further).__name__} to ddl_fit"
                raise TypeError(f"{name}() takes only {' and '.join(positional)} by position; {advice}")
            if not args and "train" not in kwargs:
                raise TypeError(f"{name}() needs the training function, train(run), as its first argument")
            try:
                return function(*args, **kwargs)
            except ArgumentError as error:
                raise error.with_traceback(None) from None

        return call

    return decorate
