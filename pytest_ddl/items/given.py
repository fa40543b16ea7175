"""Run Hypothesis tests on ranks. The engine runs in this process, and each example runs on all ranks."""

from __future__ import annotations

import functools
import inspect
import pickle
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import hypothesis
import pytest
from hypothesis.errors import FailedHealthCheck

from pytest_ddl.cluster import pickling
from pytest_ddl.cluster.cluster import GRACE, Cluster, Fate
from pytest_ddl.cluster.explain import Answer, RankError, explain, name_ranks
from pytest_ddl.cluster.protocol import ExampleResult, Failure, PhaseResult, RequestKind
from pytest_ddl.cluster.ship import ShippingError
from pytest_ddl.items.hypothesis_adapter import adapt_settings
from pytest_ddl.items.merge import merge_example, must_fail, output_sections, session_exit

SHRINK_MARGIN = 1.0
"""Seconds before the deadline at which shrinking ends, so that the deadline does not pass while it shrinks."""


class FixtureOnRanks:
    """Placeholder in the controller for the value of a fixture, which exists only in the ranks."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __repr__(self) -> str:
        return f"<{self._name} of each rank>"


class RankDisagreementError(RankError):
    """The ranks did not all run an example, or ended it differently. ``xfail`` does not excuse that."""


class ExampleDispatcher:
    """Runner of a ``@given`` test that sends each example to all ranks instead of calling the body.

    Shrinking continues as long as the ranks survive the failing examples, because an example takes milliseconds.
    Once a rank has died or was stopped, each further example would need a new cluster. Examples that have already run
    then get their known result, and all others are rejected. The engine therefore ends with the best example so far.

    :param patience: returns the seconds to wait for the other ranks after the result of one.
    """

    def __init__(
        self,
        cluster: Cluster,
        item: pytest.Function,
        deadline: float,
        patience: Callable[[PhaseResult], float | None],
    ) -> None:
        self._cluster = cluster
        self._item = item
        self._deadline = deadline
        self._patience = patience
        self._seen: dict[bytes, BaseException | None] = {}
        self._failed = False
        self._output: list[tuple[str, str]] = []
        self.examples = 0
        self.failed_subtests = 0

    def run_engine(self) -> None:
        """Run the test as Hypothesis would, with its body in the ranks.

        :raises RankError: for the smallest failing example that was found, or if no example ran.
        """
        test: Any = self._item.obj
        fixtures = {name: FixtureOnRanks(name) for name in inspect.signature(test).parameters}
        handle = test.hypothesis
        original = handle.inner_test
        # Hypothesis also passes the instance of a method by name. It is not sent, because each rank has its own. This
        # process passes a placeholder, so that methods such as setup_example are called in the ranks only.
        bound = (FixtureOnRanks("self"),) if inspect.ismethod(test) else ()
        instance = list(inspect.signature(original).parameters)[: len(bound)]
        # Hypothesis refuses a coroutine function before it calls it.
        if not inspect.iscoroutinefunction(original):
            handle.inner_test = self._dispatch(original, frozenset([*fixtures, *instance]))
        try:
            with adapt_settings(test):
                getattr(test, "__func__", test)(*bound, **fixtures)
        finally:
            handle.inner_test = original
        if self.examples == 0:
            raise RankError("Hypothesis ran no example on any rank, so nothing was tested")

    def sections(self) -> list[tuple[str, str]]:
        """Return report sections with the output of the last example, by rank."""
        return self._output

    def _dispatch(self, original: Callable[..., Any], not_drawn: frozenset[str]) -> Callable[..., None]:
        @functools.wraps(original)
        def run_on_ranks(*_self: Any, **kwargs: Any) -> None:
            __tracebackhide__ = True
            drawn = {name: value for name, value in kwargs.items() if name not in not_drawn}
            self._run_example(_pickle(drawn))

        return run_on_ranks

    def _run_example(self, example: bytes) -> None:
        __tracebackhide__ = True
        # Shrinking uses the time that the test has left. After that, the best example so far is the result.
        if self._cluster.dirty or (self._failed and time.monotonic() > self._deadline - SHRINK_MARGIN):
            known = self._seen.get(example)
            if known is None:
                hypothesis.reject()
            raise known
        answers = self._cluster.ask(RequestKind.BODY, example, deadline=self._deadline, patience=self._wait_after)
        self.examples += 1
        self._output = output_sections(answers, "call")
        if (ended := session_exit(self._item, answers)) is not None:
            raise ended
        error = self._judge(answers)
        if all(answer.ok and answer.body.rejected for answer in answers):
            hypothesis.reject()
        self._seen[example] = error
        if error is not None:
            self._failed = True
            raise error

    def _judge(self, answers: Sequence[Answer]) -> BaseException | None:
        """Report the subtests of an example, and return the exception with which the example ends in this process."""
        report: pytest.TestReport | None = None
        lost = ""
        try:
            subtests, report = merge_example(self._item, answers)
        except pytest.fail.Exception as error:
            subtests, lost = [], str(error)
        for subtest in subtests:
            self.failed_subtests += subtest.failed
            self._item.ihook.pytest_runtest_logreport(report=subtest)
        failures = [answer.body.failure for answer in answers if answer.ok and answer.body.failure is not None]
        if failures:
            failed = [_with_failure(answer) for answer in answers]
            passed = [answer.rank for answer in failed if answer.ok and not answer.body.rejected]
            if passed and must_fail(self._item):
                text = f"{name_ranks(passed, len(answers))} did not fail, although xfail(strict=True) says that all do"
                return RankDisagreementError(f"{explain(failed)}\n\n{text}", failed)
            return error_like(failures, explain(failed), failed)
        if report is None:
            return RankError(lost, answers)
        if any(answer.body.returned is not None for answer in answers):
            return FailedHealthCheck(_returned(self._item, answers))
        if report.failed:
            return RankDisagreementError(report.longreprtext, answers)
        if hasattr(report, "wasxfail"):
            return pytest.xfail.Exception(report.wasxfail)
        if report.skipped:
            reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longreprtext
            return pytest.skip.Exception(reason, _use_item_location=True)
        return None

    def _wait_after(self, body: ExampleResult) -> float | None:
        return GRACE if body.rejected else self._patience(body)


def _returned(item: pytest.Item, answers: Sequence[Answer]) -> str:
    by_value: dict[str, list[int]] = {}
    for answer in answers:
        if answer.body.returned is not None:
            by_value.setdefault(answer.body.returned, []).append(answer.rank)
    values = "; ".join(f"{value} on {name_ranks(ranks, len(answers))}" for value, ranks in by_value.items())
    return (
        f"Tests run under @given should return None, but {item.name} returned {values}. A generator or a coroutine is "
        "not run: write a plain function. Use assert instead of return"
    )


def _with_failure(answer: Answer) -> Answer:
    """Turn the failure of a body into the failure of its rank's answer."""
    if answer.ok and answer.body.failure is not None:
        return Answer(answer.rank, answer.task, Fate.REPLIED, None, answer.body.failure)
    return answer


def _pickle(drawn: dict[str, Any]) -> bytes:
    try:
        data = pickling.dumps(drawn)
        pickle.loads(data)
    except Exception as error:
        raise ShippingError(
            f"the drawn values {sorted(drawn)} cannot be sent to the ranks: {type(error).__name__}: {error}. "
            "Draw plain values in @given (st.data() draws inside the body cannot cross to other processes), "
            "and make TensorFlow objects of them in the body."
        ) from error
    return data


def error_like(failures: Sequence[Failure], message: str, answers: Sequence[Answer]) -> RankError:
    """Return a :class:`RankError` that is also an instance of the class that all failures have in common.

    ``raises=`` of the marker ``xfail`` and of ``@example(...).xfail()`` then means the same as without ranks.
    """
    shared: Any = _shared_class(failures)
    try:
        return _error_class(shared)(message, answers)
    except TypeError:
        # Python cannot combine every class with another, and some classes need other arguments to make an instance.
        return RankError(message, answers)


def _shared_class(failures: Sequence[Failure]) -> type[Exception]:
    """Return the most specific class of all exceptions that this process has loaded.

    It loads nothing for this, in particular not TensorFlow. The module of a class that the test names is loaded.
    """
    first, *others = failures
    for module, name in first.classes:
        loaded = getattr(sys.modules.get(module), name, None)
        is_shared = all((module, name) in failure.classes for failure in others)
        if is_shared and isinstance(loaded, type) and issubclass(loaded, Exception):
            return loaded
    return Exception


# Hypothesis takes exceptions of different classes for different failures, so equal failures need the same class.
@functools.cache
def _error_class(shared: type[Exception]) -> type[RankError]:
    if issubclass(RankError, shared):
        return RankError

    def initialize(self: RankError, message: str, answers: Sequence[Answer] = ()) -> None:
        BaseException.__init__(self, message)
        self.answers = tuple(answers)

    own = {"__init__": initialize, "__str__": BaseException.__str__, "__module__": RankError.__module__}
    return type(RankError.__name__, (RankError, shared), own)
