"""Call the body of a ``@given`` test in a rank, with the values that the controller's Hypothesis drew."""

from __future__ import annotations

import inspect
import unittest
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import pytest

from pytest_ddl.cluster.proof import Proof
from pytest_ddl.cluster.protocol import Failure, shown


@dataclass(frozen=True)
class CallEnding:
    """End of one call of a body."""

    error: BaseException | None = None
    returned: str | None = None
    """Description of a value other than ``None`` that the body returned."""
    rejected: bool = False
    """True if the body called ``assume(False)`` or ``reject()``."""

    @property
    def outcome(self) -> Literal["passed", "failed", "skipped"]:
        """Outcome as pytest names it. An expected failure is a skip to pytest."""
        if self.error is None or self.rejected:
            return "passed"
        skips = (pytest.skip.Exception, unittest.SkipTest, pytest.xfail.Exception)
        return "skipped" if isinstance(self.error, skips) else "failed"

    @property
    def failure(self) -> Failure | None:
        """Text of the exception, if it fails the example."""
        return Failure.of(self.error) if self.error is not None and self.outcome == "failed" else None

    def report(self, item: pytest.Item) -> pytest.TestReport:
        """Return a report without a traceback, whose outcome can be merged with those of the other ranks."""
        file, line, _ = item.location
        longrepr: Any = None
        extra: dict[str, Any] = {}
        if isinstance(self.error, pytest.xfail.Exception):
            longrepr = extra["wasxfail"] = str(self.error)
        elif self.outcome == "skipped":
            longrepr = file, (line or 0) + 1, str(self.error)
        return pytest.TestReport(item.nodeid, item.location, {}, self.outcome, longrepr, "call", **extra)


def run_example(
    item: pytest.Function,
    drawn: Mapping[str, Any],
    proof: Proof,
    finish: Callable[[], None],
    on_error: Callable[[], None],
) -> CallEnding:
    """Call the body once.

    The call is made inside a one-example run of Hypothesis. So ``note``, ``event`` and ``target`` work in the body, and
    the methods ``setup_example``, ``teardown_example`` and ``execute_example`` of a class are called. Exceptions of
    the body are caught before this inner engine sees them. It would otherwise repeat the example, while the other
    ranks do not.

    :param finish: called after the body, as a part of it.
    :param on_error: called at once when the body has raised.
    """
    from hypothesis.errors import UnsatisfiedAssumption

    function: Any = item.obj
    fixtures = {name: item.funcargs[name] for name in inspect.signature(function).parameters if name in item.funcargs}
    body = proof.of(function.hypothesis.inner_test)
    # A static method has no instance, although it is in a class.
    instance = function.__self__ if inspect.ismethod(function) else None
    if instance is not None:
        body = body.__get__(instance)
    endings: list[CallEnding] = []

    def once(self: Any, values: Mapping[str, Any]) -> None:
        if endings:
            return
        try:
            result = body(**fixtures, **values)
            finish()
        except UnsatisfiedAssumption as error:
            endings.append(CallEnding(error, rejected=True))
        except BaseException as error:
            on_error()
            endings.append(CallEnding(error))
        else:
            endings.append(CallEnding(returned=_described(result)))

    try:
        _given_once(once, drawn)(instance)
    except BaseException as error:
        # Raised by the engine itself, or by a method of the class that runs around each example. The session must go
        # on, or every later request of the item would fail.
        on_error()
        endings[:] = [next((ending for ending in endings if ending.outcome == "failed"), CallEnding(error))]
    return endings[0] if endings else CallEnding(RuntimeError("Hypothesis did not call the body of this test"))


def asked_exit(error: BaseException | None) -> tuple[str, int | None] | None:
    """Return the reason and the exit status of ``pytest.exit``, if it raised this exception."""
    return (str(error.msg), error.returncode) if isinstance(error, pytest.exit.Exception) else None


def _given_once(body: Callable[..., None], drawn: Mapping[str, Any]) -> Callable[..., None]:
    """Return a function that lets Hypothesis call the body with these values, once."""
    import hypothesis
    from hypothesis.errors import HypothesisWarning

    one_example = hypothesis.settings(
        max_examples=1,
        phases=[hypothesis.Phase.generate],
        database=None,
        deadline=None,
        derandomize=True,
        suppress_health_check=list(hypothesis.HealthCheck),
    )

    def call(instance: Any) -> None:
        with warnings.catch_warnings():
            # Hypothesis 6.100 looks for referrers of its generator, and finds none if the zygote has frozen them.
            message = "It looks like `register_random` was passed an object"
            warnings.filterwarnings("ignore", message, HypothesisWarning)
            one_example(hypothesis.given(hypothesis.strategies.just(drawn))(body))(instance)

    return call


def _described(result: Any) -> str | None:
    if inspect.isgenerator(result) or inspect.iscoroutine(result) or inspect.isasyncgen(result):
        # Its repr would contain an address, which differs between the ranks.
        return f"a {type(result).__name__}"
    return None if result is None else shown(result)
