"""``ddl_equivalence`` in tests and ``check_training`` in a script: the verdict is the outcome, whatever the order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytestmark = pytest.mark.slow

PROGRAMS = """
    import keras, numpy as np, tensorflow as tf

    CALLS = []

    def training(scale):
        def train(run):
            CALLS.append(1)
            with run.strategy.scope():
                model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
                optimizer = keras.optimizers.SGD(0.1)
            run.watch(model=model, optimizer=optimizer)
            x = np.random.default_rng(0).normal(size=(24, 3)).astype("float32")
            dataset = tf.data.Dataset.from_tensor_slices((x, x.sum(1, keepdims=True))).batch(run.global_batch_size)

            @tf.function
            def step(iterator):
                def replica(batch):
                    x, y = batch
                    with tf.GradientTape() as tape:
                        error = tf.square(model(x) - y)[:, 0]
                        loss = tf.nn.compute_average_loss(error, global_batch_size=run.global_batch_size)
                        loss = loss * scale(run)
                    gradients = tape.gradient(loss, model.trainable_variables)
                    optimizer.apply_gradients(zip(gradients, model.trainable_variables))
                    return loss
                return run.strategy.reduce("SUM", run.strategy.run(replica, args=(next(iterator),)), axis=None)

            for _ in run.steps(step, dataset):
                pass
            assert len(CALLS) == 1, "module globals of an earlier run are seen"
        return train

    right = training(lambda run: 1.0)
    scaled = training(lambda run: float(run.num_replicas))
"""
PROJECT = {
    "programs.py": PROGRAMS,
    "conftest.py": """
        import sys, pathlib
        from pytest_ddl.equivalence.findings import CheckResult, Outcome
        from pytest_ddl.equivalence.checks.registry import Check

        sys.path.insert(0, str(pathlib.Path(__file__).parent))

        def undecided(reference, distributed, tolerance):
            outcome = Outcome.INCONCLUSIVE if reference.seed == 7 else Outcome.NOT_APPLICABLE
            return CheckResult("ARITHMETIC", outcome, "rounding noise is too large")

        def pytest_ddl_register_checks(checks):
            checks.append(Check("ARITHMETIC", undecided, "rounding is small enough", "nothing"))
    """,
    "test_equivalence.py": """
        import pytest, threading
        from pytest_ddl import DivergenceError
        from programs import right, scaled

        pytestmark = pytest.mark.ddl(strategies="mirrored")
        SIZES = dict(global_batch_size=12, steps=2)

        def test_right(ddl_equivalence):
            report = ddl_equivalence(right, **SIZES)
            assert report.passed and report.verdict == "pass"
            assert report.distributed.num_replicas == 2

        def test_wrong(ddl_equivalence):
            ddl_equivalence(scaled, **SIZES)

        def test_wrong_is_caught(ddl_equivalence):
            with pytest.raises(DivergenceError) as caught:
                ddl_equivalence(scaled, **SIZES)
            assert caught.value.report.findings[0].cause == "gradient-scaled-by-replica-count"

        def test_right_again(ddl_equivalence):
            assert ddl_equivalence(right, **SIZES).passed

        def test_never_called(ddl_equivalence):
            pass

        def test_skips_before_it_calls(ddl_equivalence):
            pytest.skip("not today")

        def test_fails_before_it_calls(ddl_equivalence):
            raise KeyError("not today")

        def test_inconclusive(ddl_equivalence):
            ddl_equivalence(right, seed=7, **SIZES)

        def test_inconclusive_strict(ddl_equivalence):
            ddl_equivalence(right, seed=7, strict=True, **SIZES)

        def test_named_check_that_does_not_apply(ddl_equivalence):
            ddl_equivalence(right, checks=["CKPT"], **SIZES)

        @pytest.mark.parametrize("arguments, words", [
            (dict(global_batch_size=0), "global_batch_size=0 must be a whole number"),
            (dict(steps="2"), "steps='2' must be a whole number"),
            (dict(precision="double"), "precision='double' is not one of auto, float64, native"),
            (dict(timeout=-1), "timeout=-1 must be a positive number"),
            (dict(checks=["NO-SUCH"]), "NO-SUCH"),
            (dict(checks=[]), "checks= names no check"),
            (dict(expect={"no-such-cause": "reason"}), "no-such-cause"),
            (dict(expect={"mirored": {"metric-wrong": "reason"}}), "did you mean 'mirrored'"),
        ])
        def test_arguments(ddl_equivalence, arguments, words):
            with pytest.raises(ValueError) as caught:
                ddl_equivalence(right, **arguments)
            assert words in str(caught.value)

        def test_arguments_not_callable(ddl_equivalence):
            with pytest.raises(ValueError, match="must be a function that takes the run"):
                ddl_equivalence(3)
            with pytest.raises(TypeError, match="batch"):
                ddl_equivalence(right, batch=3)

        def in_a_thread(compare, train):
            thread = threading.Thread(target=lambda: compare(train, **SIZES))
            thread.start()
            return thread

        def test_right_in_a_thread(ddl_equivalence):
            in_a_thread(ddl_equivalence, right).join()

        @pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
        def test_wrong_in_a_thread(ddl_equivalence):
            in_a_thread(ddl_equivalence, scaled).join()

        @pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
        def test_wrong_in_a_thread_that_is_not_joined(ddl_equivalence):
            in_a_thread(ddl_equivalence, scaled)

        def test_wrong_argument(ddl_equivalence):
            ddl_equivalence(right, global_batch_sise=3)

        def test_wrong_value(ddl_equivalence):
            ddl_equivalence(right, steps="two")
    """,
}
LABEL = "[mirrored]"


@pytest.fixture(scope="module")
def project(new_project: Callable[..., Any]) -> Any:
    return new_project(PROJECT)


@pytest.fixture(scope="module")
def run(project: Any) -> Any:
    return project.pytest()


def test_the_run_leaves_nothing(run: Any) -> None:
    assert (run.status, run.processes, run.files) == (1, [], [])


@pytest.mark.nightly
@pytest.mark.parametrize(
    "name", ["test_right", "test_wrong_is_caught", "test_right_again", "test_arguments_not_callable"]
)
def test_passes(run: Any, name: str) -> None:
    assert run[name + LABEL].outcome == "passed", run[name + LABEL].text


def test_wrong_arguments_are_named(run: Any) -> None:
    cases = {name: case for name, case in run.cases.items() if name.startswith("test_arguments[")}
    assert len(cases) == 8
    assert {name: case.text for name, case in cases.items() if case.outcome != "passed"} == {}


def test_a_wrong_argument_shows_only_the_line_that_has_it(run: Any) -> None:
    for name, said in (("argument", "(did you mean 'global_batch_size'?)"), ("value", "steps='two' must be a whole")):
        text = run[f"test_wrong_{name}{LABEL}"].text
        assert said in text
        assert "test_equivalence.py:" in text
        assert "comparer.py" not in text
        assert "arguments.py" not in text


@pytest.mark.nightly
def test_a_named_check_that_does_not_apply_is_no_pass(run: Any) -> None:
    case = run["test_named_check_that_does_not_apply" + LABEL]
    assert case.outcome == "skipped", case.text
    assert "CKPT: checks= names it, but it does not apply" in case.text


def test_a_divergence_fails_with_its_cause(run: Any) -> None:
    case = run["test_wrong" + LABEL]
    assert case.outcome == "failed"
    assert "gradient-scaled-by-replica-count" in case.text


@pytest.mark.parametrize("name", ["test_wrong_in_a_thread", "test_wrong_in_a_thread_that_is_not_joined"])
def test_a_divergence_in_a_thread_fails_the_test(run: Any, name: str) -> None:
    case = run[name + LABEL]
    assert (case.outcome, "gradient-scaled-by-replica-count" in case.text) == ("failed", True), case.text
    assert run["test_right_in_a_thread" + LABEL].outcome == "passed"


def test_nothing_compared_is_a_failure(run: Any) -> None:
    case = run["test_never_called" + LABEL]
    assert (case.outcome, "never called it, so nothing was compared" in case.text) == ("failed", True)


def test_a_test_that_ends_before_it_compares_keeps_its_outcome(run: Any) -> None:
    assert run["test_skips_before_it_calls" + LABEL].outcome == "skipped"
    assert run["test_fails_before_it_calls" + LABEL].outcome == "failed"


@pytest.mark.nightly
def test_inconclusive_skips_and_fails_in_strict_mode(run: Any) -> None:
    assert run["test_inconclusive" + LABEL].outcome == "skipped", run["test_inconclusive" + LABEL].text
    assert "inconclusive" in run["test_inconclusive" + LABEL].text
    assert run["test_inconclusive_strict" + LABEL].outcome == "failed"


@pytest.mark.nightly
def test_the_order_of_tests_changes_no_result(project: Any, run: Any) -> None:
    names = ["test_right_again", "test_wrong_is_caught", "test_inconclusive", "test_wrong", "test_right"]
    backwards = project.pytest("--ddl-strict", *[f"test_equivalence.py::{name}" for name in names])
    expected = {f"{name}{LABEL}": run[name + LABEL].outcome for name in names}
    # With --ddl-strict, and by nothing else.
    expected["test_inconclusive" + LABEL] = "failed"
    assert backwards.outcomes == expected


@pytest.mark.nightly
def test_check_training_in_a_script_closes_cleanly(project: Any) -> None:
    project.write(
        "script.py",
        """
        from programs import right, scaled
        from pytest_ddl import ClusterError, check_training

        assert check_training(right, "mirrored", global_batch_size=12, steps=2).verdict == "pass"
        assert check_training(right, "mirrored", global_batch_size=12, steps=2)
        report = check_training(scaled, "mirrored[replicas=3]", global_batch_size=12, steps=2)
        assert not report
        print(report.verdict, report.findings[0].cause)
        try:
            check_training(right, "tpu")
        except ClusterError as error:
            print("refused:", error)
        """,
    )
    result = project.script("script.py")
    assert (result.status, result.processes, result.files) == (0, [], []), result.stderr
    assert "fail gradient-scaled-by-replica-count" in result.stdout
    assert "refused: strategy='tpu' cannot run here" in result.stdout
