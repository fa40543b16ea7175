"""Tests that drive ranks from the controlling process (``ddl_cluster``), and ``@given`` over ranks: one run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.plugin.conftest import PATIENT

pytestmark = pytest.mark.slow

CLUSTER = """
    import os, signal, threading, time
    from concurrent.futures import ThreadPoolExecutor
    import pytest
    from pytest_ddl import RankError, ShippingError, ClusterError, current_rank, current_strategy

    pytestmark = pytest.mark.ddl(strategies="multi_worker_mirrored", timeout=60)
    FACTOR = 10

    def by_rank(number, *, plus=0):
        return FACTOR * current_rank().rank + number + plus

    def sum_of_ranks():
        import tensorflow as tf
        def replica():
            context = tf.distribute.get_replica_context()
            return context.all_reduce("SUM", tf.constant(1.0))
        strategy = current_strategy()
        return float(strategy.experimental_local_results(strategy.run(replica))[0])

    def fails_on_one():
        if current_rank().rank == 1:
            raise KeyError("the one")
        return "fine"

    def test_results_by_rank(ddl_cluster):
        assert ddl_cluster.run(by_rank, 1, plus=2) == [3, 13]
        base = 7
        assert ddl_cluster.run(lambda: base + current_rank().rank) == [7, 8]
        assert ddl_cluster.run(sum_of_ranks) == [2.0, 2.0]
        assert ddl_cluster.tasks == ("worker:0", "worker:1")
        assert ddl_cluster.num_replicas == 2
        assert str(ddl_cluster.spec) == "multi_worker_mirrored[workers=2,replicas=1]"

    def test_errors(ddl_cluster):
        with pytest.raises(ShippingError, match="by_rank with its arguments"):
            ddl_cluster.run(by_rank, threading.Lock())
        with pytest.raises(RankError, match="ShippingError on all 2 ranks.*the result of"):
            ddl_cluster.run(threading.Lock)
        with pytest.raises(ValueError, match="task='worker:7' is not in this cluster; tasks: worker:0, worker:1"):
            ddl_cluster.kill("worker:7")
        with pytest.raises(RankError) as caught:
            ddl_cluster.run(fails_on_one)
        message = str(caught.value)
        assert message.startswith("KeyError on rank 1 of 2: 'the one'")
        assert 'raise KeyError("the one")' in message
        assert [answer.ok for answer in caught.value.answers] == [True, False]

    @pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
    def test_error_in_a_thread(ddl_cluster):
        thread = threading.Thread(target=lambda: ddl_cluster.run(fails_on_one))
        thread.start()
        thread.join()

    def test_error_in_a_pool(ddl_cluster):
        with ThreadPoolExecutor() as pool:
            pool.submit(ddl_cluster.run, fails_on_one)

    def warns():
        import warnings
        warnings.warn("of a rank", DeprecationWarning)
        return current_rank().rank

    def test_warnings(ddl_cluster):
        with pytest.warns(DeprecationWarning, match="of a rank") as issued:
            assert ddl_cluster.run(warns) == [0, 1]
        assert len(issued) == 1

    @pytest.mark.filterwarnings("error")
    def test_warnings_as_errors(ddl_cluster):
        with pytest.raises(RankError, match="DeprecationWarning on all 2 ranks: of a rank"):
            ddl_cluster.run(warns)

    def test_logs_and_stacks(ddl_cluster):
        ddl_cluster.run(lambda: print("said by", current_rank().rank))
        assert "said by 0" in ddl_cluster.logs("worker:0")
        assert "said by 1" in ddl_cluster.logs(1)
        stacks = ddl_cluster.stacks()
        assert list(stacks) == ["worker:0", "worker:1"]
        assert "worker.py" in stacks["worker:0"]

    def test_kill_and_restart(ddl_cluster):
        ddl_cluster.kill("worker:1")
        assert ddl_cluster.run(lambda: current_rank().rank) == [0]
        with pytest.raises(RankError, match="ZeroDivisionError on rank 0 of 2"):
            ddl_cluster.run(lambda: 1 / current_rank().rank)
        ddl_cluster.kill(0)
        with pytest.raises(RankError, match="all ranks .* were killed"):
            ddl_cluster.run(by_rank, 1)

    def test_restart(ddl_cluster):
        ddl_cluster.kill("worker:1")
        ddl_cluster.restart("worker:1")
        assert ddl_cluster.run(sum_of_ranks) == [2.0, 2.0]

    def test_after_the_kill(ddl_cluster):
        assert ddl_cluster.run(sum_of_ranks) == [2.0, 2.0]

    @pytest.mark.ddl(strategies="multi_worker_mirrored", timeout=5)
    def test_suspended(ddl_cluster):
        ddl_cluster.suspend("worker:1")
        with pytest.raises(RankError, match="deadline exceeded: no answer from rank 1 of 2"):
            ddl_cluster.run(by_rank, 1)
        with pytest.raises(ClusterError, match="has ended"):
            ddl_cluster.run(by_rank, 1)

    def test_suspended_and_resumed(ddl_cluster):
        ddl_cluster.suspend("worker:1")
        ddl_cluster.resume("worker:1")
        assert ddl_cluster.run(by_rank, 1) == [1, 11]

    def test_a_rank_that_ends(ddl_cluster):
        with pytest.raises(RankError, match="exited with status 5"):
            ddl_cluster.run(lambda: os._exit(5))

    def train_on_servers(steps):
        import tensorflow as tf
        strategy = current_strategy()
        coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
        with strategy.scope():
            variable = tf.Variable(0.0)

        @tf.function
        def add():
            variable.assign_add(1.0)

        for _ in range(steps):
            coordinator.schedule(add)
        coordinator.join()
        return float(variable.read_value())

    @pytest.mark.ddl(strategies="parameter_server[processes=separate]", timeout=60)
    def test_a_parameter_server_cluster_survives_a_worker(ddl_cluster):
        assert ddl_cluster.tasks == ("chief:0", "worker:0", "worker:1", "ps:0")
        assert ddl_cluster.run(train_on_servers, 3) == [3.0]
        ddl_cluster.kill("worker:1")
        assert ddl_cluster.run(train_on_servers, 3) == [3.0]
        ddl_cluster.restart("worker:1")
        assert ddl_cluster.run(train_on_servers, 3) == [3.0]
"""
GIVEN = """
    import os
    import pytest
    from hypothesis import HealthCheck, assume, given, note, settings
    from hypothesis import strategies as st
    from pytest_ddl import RankError, current_rank

    pytestmark = pytest.mark.ddl(strategies="multi_worker_mirrored", timeout=60)
    few = settings(max_examples=10, database=None, derandomize=True, deadline=None)

    @few
    @given(number=st.integers(0, 50))
    def test_given_passes(ddl_strategy, number):
        assert ddl_strategy.num_replicas_in_sync == 2
        assert 0 <= number <= 50

    class TestGiven:
        @pytest.mark.parametrize("low", [1])
        @few
        @given(st.integers(0, 5))
        def test_given_method(self, ddl_strategy, low, number):
            assert isinstance(self, TestGiven) and low == 1 and 0 <= number <= 5

    @settings(max_examples=100, database=None, derandomize=True, deadline=None)
    @given(number=st.integers(0, 1000))
    def test_given_shrinks(ddl_strategy, number):
        assert number < 17

    @few
    @given(number=st.integers(0, 50))
    def test_given_assumes(ddl_strategy, number):
        assume(number % 2 == 0)
        assert number % 2 == 0

    @few
    @given(number=st.integers(0, 50))
    def test_given_assumes_by_rank(ddl_strategy, number):
        assume(current_rank().rank == 0)

    @settings(max_examples=200, database=None, derandomize=True, deadline=None)
    @given(number=st.integers(0, 1000))
    def test_given_dies(ddl_strategy, number):
        if number > 3:
            os._exit(9)

    @few
    @given(number=st.integers())
    def test_given_generator(ddl_strategy, number):
        yield
        raise AssertionError("never reached")

    @few
    @given(number=st.sampled_from([1, 2]))
    def test_given_subtests(ddl_strategy, subtests, number):
        with subtests.test("a"):
            assert number == 1 or current_rank().rank == 0

    @few
    @given(number=st.integers())
    def test_given_skips(ddl_strategy, number):
        pytest.skip("not now")

    @pytest.mark.xfail(reason="must not excuse it")
    @few
    @given(number=st.integers())
    def test_given_skips_by_rank(ddl_strategy, number):
        if current_rank().rank == 1:
            pytest.skip("not now")

    @few
    @given(number=st.nothing())
    def test_given_nothing(ddl_strategy, number):
        pass

    @pytest.mark.xfail(reason="known", raises=ValueError)
    @few
    @given(number=st.integers())
    def test_given_xfail(ddl_strategy, number):
        raise ValueError

    @pytest.mark.xfail(reason="known", strict=True)
    @few
    @given(number=st.integers())
    def test_given_xfail_strict(ddl_strategy, number):
        raise ValueError

    @pytest.mark.xfail(reason="known", strict=True)
    @few
    @given(number=st.integers())
    def test_given_xfail_strict_on_one_rank(ddl_strategy, number):
        if current_rank().rank == 1:
            raise ValueError

    @settings(max_examples=3, database=None, derandomize=True, deadline=None, suppress_health_check=list(HealthCheck))
    @given(number=st.integers(0, 50))
    def test_given_in_the_controller(ddl_cluster, number):
        assert ddl_cluster.run(lambda: number) == [number, number]

    @pytest.fixture
    def engine_of_a_rank(monkeypatch, said):
        import hypothesis
        from hypothesis.errors import HypothesisWarning
        given = hypothesis.given

        def broken(*values):
            import warnings
            if said == "error":
                raise RuntimeError("the engine is broken")
            warnings.warn("It looks like `register_random` was passed an object that is frozen", HypothesisWarning)
            return given(*values)
        monkeypatch.setattr(hypothesis, "given", broken)

    @pytest.mark.filterwarnings("error")
    @pytest.mark.parametrize("said", ["warning", "error"])
    @settings(max_examples=3, database=None, derandomize=True, deadline=None, suppress_health_check=list(HealthCheck))
    @given(number=st.integers(0, 50))
    def test_given_engine(ddl_strategy, engine_of_a_rank, said, number):
        pass

    def test_after_given(ddl_strategy):
        pass
"""
PROJECT = {"test_cluster.py": CLUSTER, "test_given.py": GIVEN}
LABEL = "[multi_worker_mirrored]"


@pytest.fixture(scope="module")
def run(new_project: Callable[..., Any]) -> Any:
    return new_project(PROJECT | PATIENT).pytest("-p", "patient")


def test_the_run_leaves_nothing(run: Any) -> None:
    assert (run.status, run.processes, run.files) == (1, [], [])


@pytest.mark.parametrize(
    "name",
    [
        "test_results_by_rank",
        "test_errors",
        "test_warnings",
        "test_warnings_as_errors",
        "test_logs_and_stacks",
        "test_kill_and_restart",
        "test_restart",
        "test_after_the_kill",
        "test_suspended",
        "test_suspended_and_resumed",
        "test_a_rank_that_ends",
        "test_given_passes",
        "test_given_assumes",
        "test_given_in_the_controller",
        "test_after_given",
    ],
)
def test_passes(run: Any, name: str) -> None:
    assert run[name + LABEL].outcome == "passed", run[name + LABEL].text


def test_a_given_method_with_parameters_passes(run: Any) -> None:
    assert run["test_given_method[multi_worker_mirrored-1]"].outcome == "passed"


def test_a_parameter_server_cluster_survives_a_worker(run: Any) -> None:
    case = run["test_a_parameter_server_cluster_survives_a_worker[parameter_server[processes=separate]]"]
    assert case.outcome == "passed", case.text


@pytest.mark.parametrize("name", ["test_error_in_a_thread", "test_error_in_a_pool"])
def test_an_error_of_ranks_in_a_thread_fails_the_test(run: Any, name: str) -> None:
    assert run[name + LABEL].outcome == "failed"
    assert "KeyError on rank 1 of 2" in run[name + LABEL].text


def test_the_smallest_failing_example_is_shown(run: Any) -> None:
    case = run["test_given_shrinks" + LABEL]
    assert case.outcome == "failed"
    assert "number=17" in case.text
    assert "AssertionError on all 2 ranks" in case.text


def test_ranks_that_assume_differently_fail(run: Any) -> None:
    case = run["test_given_assumes_by_rank" + LABEL]
    assert (case.outcome, "rank 1 of 2 rejected this example" in case.text) == ("failed", True), case.text


def test_a_body_that_never_ran_fails(run: Any) -> None:
    case = run["test_given_generator" + LABEL]
    assert (case.outcome, "returned a generator on all 2 ranks" in case.text) == ("failed", True), case.text


def test_a_failed_subtest_of_an_example_fails(run: Any) -> None:
    case = run["test_given_subtests" + LABEL]
    assert (case.outcome, "this happened on rank 1 of 2" in case.text) == ("failed", True), case.text


def test_a_skip_in_an_example_skips_the_test(run: Any) -> None:
    case = run["test_given_skips" + LABEL]
    assert (case.outcome, "not now" in case.text) == ("skipped", True), case.text


def test_a_skip_on_one_rank_fails(run: Any) -> None:
    case = run["test_given_skips_by_rank" + LABEL]
    assert case.outcome == "failed"
    assert "rank 0 of 2 passed; rank 1 of 2 skipped (not now)" in case.text


def test_an_example_that_kills_a_rank_fails_at_once(run: Any) -> None:
    case = run["test_given_dies" + LABEL]
    assert case.outcome == "failed"
    assert "exited with status 9" in case.text
    assert "Flaky" not in case.text
    assert case.seconds < 30, "no cluster is started for shrinking"


def test_an_error_of_the_engine_of_a_rank_is_shown(run: Any) -> None:
    case = run["test_given_engine[multi_worker_mirrored-error]"]
    assert (case.outcome, "RuntimeError: the engine is broken" in case.text) == ("failed", True), case.text


def test_hypothesis_may_warn_of_its_generator(run: Any) -> None:
    case = run["test_given_engine[multi_worker_mirrored-warning]"]
    assert case.outcome == "passed", case.text


def test_no_example_is_no_pass(run: Any) -> None:
    assert run["test_given_nothing"].outcome == "failed"


def test_an_expected_failure_of_examples(run: Any) -> None:
    assert run["test_given_xfail" + LABEL].outcome == "xfailed"
    assert run["test_given_xfail_strict" + LABEL].outcome == "xfailed"


def test_a_strict_expectation_of_examples_is_that_of_all_ranks(run: Any) -> None:
    case = run["test_given_xfail_strict_on_one_rank" + LABEL]
    assert (case.outcome, "rank 0 of 2 did not fail, although xfail(strict=True)" in case.text) == ("failed", True)
