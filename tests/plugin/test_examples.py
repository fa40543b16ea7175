"""``@given`` on two ranks that are simulated in this process: how an example ends when its body ends in any way."""

from __future__ import annotations

import functools
import inspect
import pickle
import sys
import time
import types
import unittest
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

hypothesis = pytest.importorskip("hypothesis")

from hypothesis import HealthCheck, Phase, assume, example, given, reject, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from hypothesis.errors import FailedHealthCheck, InvalidArgument  # noqa: E402

from pytest_ddl.cluster.explain import Answer, Fate, RankError  # noqa: E402
from pytest_ddl.cluster.rank_session import RankSession  # noqa: E402
from pytest_ddl.items.given import ExampleDispatcher, RankDisagreementError  # noqa: E402

few = settings(
    max_examples=3,
    database=None,
    derandomize=True,
    deadline=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=[HealthCheck.filter_too_much],
)


class Item:
    """A test item whose function is a ``@given`` test. The running test lends it everything else."""

    def __init__(self, node: Any, function: Any) -> None:
        self._node, self.obj = node, function
        self.logged: list[pytest.TestReport] = []
        self.ihook = SimpleNamespace(pytest_runtest_logreport=lambda report: self.logged.append(report))
        self.funcargs: dict[str, Any] = {}
        self.name = function.__name__

    def __getattr__(self, name: str) -> Any:
        return getattr(self._node, name)

    def iter_markers(self, _name: str) -> Iterator[Any]:
        return iter(())


class Subtests:
    """Fixture ``subtests`` of a simulated rank."""

    def __init__(self, item: Any, session: RankSession) -> None:
        self._item, self._session = item, session

    @contextmanager
    def test(self, msg: str) -> Iterator[None]:
        outcome: Any = "passed"
        try:
            yield
        except AssertionError:
            outcome = "failed"
        report = pytest.TestReport(self._item.nodeid, self._item.location, {}, outcome, None, "call")
        report.context = SimpleNamespace(msg=msg, kwargs={})  # type: ignore[attr-defined]
        self._session.pytest_runtest_logreport(report)


def in_rank(function: Any) -> Any:
    """Return the function as a rank collects it: this process replaces the body of its own one."""
    raw = getattr(function, "__func__", function)

    @functools.wraps(raw)
    def collected() -> None:
        raise AssertionError

    collected.hypothesis = SimpleNamespace(inner_test=raw.hypothesis.inner_test)  # type: ignore[attr-defined]
    return types.MethodType(collected, function.__self__) if inspect.ismethod(function) else collected


class Ranks:
    """A cluster of two ranks, which run their examples one after the other in this process."""

    def __init__(self, item: Item, process: ThreadPoolExecutor) -> None:
        self._process = process
        self.dirty = ""
        self.rank = 0
        self._item = Item(item._node, in_rank(item.obj))
        worker: Any = SimpleNamespace(context=SimpleNamespace(strategy=None), notify=lambda: None)
        self._sessions = [RankSession(worker, opening=None) for _ in range(2)]  # type: ignore[arg-type]

    def ask(self, _kind: Any, example: bytes, deadline: float, patience: Callable[[Any], float | None]) -> list[Answer]:
        answers = []
        for rank, session in enumerate(self._sessions):
            self.rank = rank
            item: Any = self._item
            values = {"ranks": self, "subtests": Subtests(item, session)}
            item.funcargs = values
            result = self._process.submit(session._example, item, pickle.loads(example)).result()
            patience(result)
            answers.append(Answer(rank, f"worker:{rank}", Fate.REPLIED, result))
        return answers


@pytest.fixture(scope="module")
def process() -> Iterator[ThreadPoolExecutor]:
    """Return a thread for the ranks, because Hypothesis refuses an engine inside of another one.

    All tests share it: in each new thread, Hypothesis collects the garbage of the whole process. That takes a second
    for each example if another test has imported TensorFlow.
    """
    with ThreadPoolExecutor(1) as thread:
        yield thread


@pytest.fixture
def run(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, process: ThreadPoolExecutor
) -> Callable[[Any], ExampleDispatcher]:
    monkeypatch.setattr(pytest, "Function", Item)

    def run_function(function: Any) -> ExampleDispatcher:
        item: Any = Item(request.node, function)
        ranks: Any = Ranks(item, process)
        dispatcher = ExampleDispatcher(ranks, item, time.monotonic() + 60.0, lambda _body: None)
        dispatcher.run_engine()
        return dispatcher

    return run_function


def test_an_ordinary_body_passes(run: Any) -> None:
    @few
    @given(x=st.integers())
    def body(ranks: Ranks, subtests: Subtests, x: int) -> None:
        with subtests.test("a"):
            assert isinstance(x, int)

    dispatcher = run(body)
    assert (dispatcher.examples > 0, dispatcher.failed_subtests) == (True, 0)


def test_a_coroutine_function_is_refused_as_without_ranks(run: Any) -> None:
    @few
    @given(x=st.integers())
    async def body(ranks: Ranks, x: int) -> None:
        raise AssertionError

    with pytest.raises(InvalidArgument, match="async"):
        run(body)


def _generator() -> Iterator[None]:
    yield
    raise AssertionError


async def _async_generator() -> Any:
    yield
    raise AssertionError


@pytest.mark.parametrize("value", [_generator, _async_generator, lambda: False, lambda: 0, lambda: Unprintable()])
@pytest.mark.parametrize("ranks_that_return", [(0, 1), (1,)], ids=["all", "one"])
@pytest.mark.parametrize("phases", [few.phases, (Phase.explicit,)], ids=["drawn", "explicit"])
def test_a_body_that_returns_something_fails(run: Any, value: Any, ranks_that_return: Any, phases: Any) -> None:
    @settings(few, phases=phases)
    @given(x=st.integers())
    @example(x=1)
    def body(ranks: Ranks, x: int) -> Any:
        return value() if ranks.rank in ranks_that_return else None

    with pytest.raises(FailedHealthCheck, match="1 of 2" if len(ranks_that_return) == 1 else "all 2 ranks"):
        run(body)


class Unprintable:
    def __repr__(self) -> str:
        raise ValueError


@pytest.mark.filterwarnings("ignore:coroutine")
def test_a_returned_coroutine_fails(run: Any) -> None:
    @few
    @given(x=st.integers())
    def body(ranks: Ranks, x: int) -> Any:
        async def later() -> None:
            raise AssertionError

        return later()

    with pytest.raises(FailedHealthCheck, match="coroutine"):
        run(body)


@pytest.mark.parametrize("failing", [(0, 1), (0,), (1,)])
def test_failed_subtests_are_counted_for_each_example(run: Any, failing: Any) -> None:
    @few
    @given(x=st.sampled_from([1, 2, 3]))
    def body(ranks: Ranks, subtests: Subtests, x: int) -> None:
        with subtests.test("a"):
            assert x == 1 or ranks.rank not in failing

    assert run(body).failed_subtests == 2


@pytest.mark.parametrize("rank", [0, 1])
def test_a_subtest_that_only_one_rank_has_fails(run: Any, rank: int) -> None:
    @few
    @given(x=st.just(1))
    def body(ranks: Ranks, subtests: Subtests, x: int) -> None:
        if ranks.rank == rank:
            with subtests.test("a"):
                pass

    assert run(body).failed_subtests == 1


def test_failed_subtests_of_a_rejected_example_count(run: Any) -> None:
    @few
    @given(x=st.sampled_from([1, 2]))
    def body(ranks: Ranks, subtests: Subtests, x: int) -> None:
        with subtests.test("a"):
            assert x == 1
        assume(x == 1)

    assert run(body).failed_subtests == 1


def skip() -> None:
    pytest.skip("not now")


def skip_as_unittest() -> None:
    raise unittest.SkipTest("not now")


def skip_without_a_module() -> None:
    pytest.importorskip("no_such_module", reason="not now")


def xfail() -> None:
    raise pytest.xfail.Exception("not now")


@pytest.mark.parametrize("leave", [skip, skip_as_unittest, skip_without_a_module, xfail])
def test_what_all_ranks_leave_ends_as_without_ranks(run: Any, leave: Callable[[], None]) -> None:
    @few
    @given(x=st.integers())
    def body(ranks: Ranks, x: int) -> None:
        leave()

    with pytest.raises((pytest.skip.Exception, pytest.xfail.Exception), match=r"^not now") as caught:
        run(body)
    assert caught.type is (pytest.xfail.Exception if leave is xfail else pytest.skip.Exception)


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("leave", [skip, skip_as_unittest, skip_without_a_module, xfail, reject])
def test_what_one_rank_leaves_is_a_disagreement(run: Any, rank: int, leave: Callable[[], None]) -> None:
    @few
    @given(x=st.sampled_from([1, 2]))
    def body(ranks: Ranks, x: int) -> None:
        if x == 2 and ranks.rank == rank:
            leave()

    with pytest.raises(RankDisagreementError, match=f"rank {1 - rank} of 2 passed"):
        run(body)


@pytest.mark.parametrize("ranks_that_raise", [(0, 1), (0,), (1,)])
@pytest.mark.parametrize("kind", [AssertionError, FileNotFoundError, KeyError, StopIteration])
def test_a_failure_has_the_class_of_the_exception(run: Any, ranks_that_raise: Any, kind: type[Exception]) -> None:
    @few
    @given(x=st.sampled_from([1, 2]))
    def body(ranks: Ranks, x: int) -> None:
        if x == 2 and ranks.rank in ranks_that_raise:
            raise kind("wrong")

    with pytest.raises(RankError, match="wrong") as caught:
        run(body)
    assert isinstance(caught.value, kind)


def test_different_failures_have_the_class_that_they_share(run: Any) -> None:
    @few
    @given(x=st.just(1))
    def body(ranks: Ranks, x: int) -> None:
        raise IndexError if ranks.rank else KeyError

    with pytest.raises(LookupError) as caught:
        run(body)
    assert not isinstance(caught.value, (IndexError, KeyError))


@pytest.mark.parametrize("leave", [lambda: sys.exit(0), lambda: pytest.fail("wrong")])
@pytest.mark.parametrize("leaving", [(0, 1), (1,)])
def test_any_other_end_fails(run: Any, leave: Callable[[], None], leaving: Any) -> None:
    @few
    @given(x=st.integers())
    def body(ranks: Ranks, x: int) -> None:
        if ranks.rank in leaving:
            leave()

    with pytest.raises(RankError):
        run(body)


def test_an_exit_ends_the_session_as_in_a_test_without_ranks(run: Any) -> None:
    @few
    @given(x=st.integers())
    def body(ranks: Ranks, x: int) -> None:
        pytest.exit("enough", returncode=7)

    with pytest.raises(pytest.exit.Exception, match="enough") as caught:
        run(body)
    assert caught.value.returncode == 7


def test_an_explicit_example_may_be_expected_to_raise(run: Any) -> None:
    @few
    @given(x=st.integers(0, 5))
    @example(x=7).xfail(raises=ZeroDivisionError)
    def body(ranks: Ranks, x: int) -> None:
        1 / (x - 7)

    assert run(body).examples > 1


class TestOfAClass:
    made = False

    def setup_example(self) -> None:
        self.made = True

    def teardown_example(self, _token: Any) -> None:
        self.made = False

    @few
    @given(x=st.integers())
    def body(self, ranks: Ranks, x: int) -> None:
        assert self.made

    @staticmethod
    @few
    @given(x=st.integers())
    def static(ranks: Ranks, x: int) -> None:
        assert x == 0 or ranks.rank == 0

    def test_its_methods_around_an_example_run_in_the_ranks(self, run: Any) -> None:
        assert run(self.body).examples > 0

    def test_a_static_method_has_no_instance(self, run: Any) -> None:
        with pytest.raises(RankError, match="rank 1 of 2"):
            run(self.static)


class TestWithoutAnEnd:
    def teardown_example(self, _token: Any) -> None:
        raise OSError("no end")

    @few
    @given(x=st.integers())
    def body(self, ranks: Ranks, x: int) -> None:
        pass

    def test_a_teardown_of_an_example_that_fails(self, run: Any) -> None:
        with pytest.raises(OSError, match="no end"):
            run(self.body)
