"""Run Hypothesis tests on ranks. The engine runs in this process, and each example runs on all ranks."""

from __future__ import annotations

import functools
import inspect
import pickle
import time
from collections.abc import Callable
from typing import Any

import hypothesis
import pytest

from pytest_ddl.cluster import pickling
from pytest_ddl.cluster.cluster import GRACE, Answer, Cluster, Fate
from pytest_ddl.cluster.explain import RankError, explain, name_ranks
from pytest_ddl.cluster.protocol import ExampleResult, Kind
from pytest_ddl.cluster.ship import ShippingError
from pytest_ddl.items.hypothesis_adapter import adapt_settings

SHRINK_MARGIN = 1.0
"""Seconds before the deadline at which shrinking ends, so that the deadline does not pass while it shrinks."""


class FixtureOnRanks:
    """Placeholder in the controller for the value of a fixture, which exists only in the ranks."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __repr__(self) -> str:
        return f"<{self._name} of each rank>"


class ExampleDispatcher:
    """Runner of a ``@given`` test that sends each example to all ranks instead of calling the body.

    Shrinking continues as long as the ranks survive the failing examples, because an example takes milliseconds.
    Once a rank has died or was stopped, each further example would need a new cluster. Examples that have already run
    then get their known result, and all others are rejected. The engine therefore ends with the best example so far.
    """

    def __init__(self, cluster: Cluster, item: pytest.Function, deadline: float) -> None:
        self._cluster = cluster
        self._item = item
        self._deadline = deadline
        self._seen: dict[bytes, RankError | None] = {}
        self._failed = False
        self._output: list[tuple[str, str]] = []
        self.examples = 0

    def run_engine(self) -> None:
        """Run the test as Hypothesis would, with its body in the ranks.

        :raises RankError: for the smallest failing example that was found, or if no example ran.
        """
        test: Any = self._item.obj
        fixtures = {name: FixtureOnRanks(name) for name in inspect.signature(test).parameters}
        handle = test.hypothesis
        original = handle.inner_test
        # Hypothesis also passes the instance of a method by name. It is not sent, because each rank has its own.
        instance = list(inspect.signature(original).parameters)[:1] if inspect.ismethod(test) else []
        handle.inner_test = self._dispatch(original, frozenset([*fixtures, *instance]))
        try:
            with adapt_settings(test):
                test(**fixtures)
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
        answers = self._cluster.ask(Kind.BODY, example, deadline=self._deadline, patience=_patience)
        self.examples += 1
        total = len(answers)
        self._output = [
            (f"Captured {stream} call" + (f" [rank {answer.rank}]" if total > 1 else ""), text)
            for answer in answers
            for stream, text in (("stdout", answer.stdout), ("stderr", answer.stderr))
            if text
        ]
        rejecting = [answer.rank for answer in answers if answer.ok and answer.body.rejected]
        if len(rejecting) == total:
            hypothesis.reject()
        error = _error(answers, rejecting)
        self._seen[example] = error
        if error is not None:
            self._failed = True
            raise error


def _error(answers: list[Answer], rejecting: list[int]) -> RankError | None:
    failed = [_with_failure(answer) for answer in answers]
    if any(not answer.ok for answer in failed):
        return RankError(explain(failed), failed)
    if rejecting:
        who = name_ranks(rejecting, len(answers))
        return RankError(
            f"{who} rejected this example (assume) and the others ran it; call assume only with values that are equal "
            "on all ranks"
        )
    return None


def _with_failure(answer: Answer) -> Answer:
    """Turn the failure of a body into the failure of its rank's answer."""
    if answer.ok and answer.body.failure is not None:
        return Answer(answer.rank, answer.task, Fate.REPLIED, None, answer.body.failure)
    return answer


def _patience(body: ExampleResult) -> float | None:
    return GRACE if body.failed or body.rejected else None


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
