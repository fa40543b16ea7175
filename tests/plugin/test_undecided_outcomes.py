"""Outcomes of tests whose comparison has no verdict: a reason in the program, or a crash that is expected."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytestmark = pytest.mark.slow

PROGRAMS = """
    import keras, numpy as np, tensorflow as tf

    def fit(run, x):
        with run.strategy.scope():
            model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
            model.compile("sgd", "mse")
        run.watch(model=model)
        run.fit(model, tf.data.Dataset.from_tensor_slices((x, x[:, :1])).batch(run.global_batch_size))

    def right(run):
        fit(run, np.random.default_rng(0).normal(size=(24, 3)).astype("float32"))

    def crashes(run):
        if not run.is_reference:
            raise LookupError("no shard")
        right(run)

    def raises(run):
        raise LookupError("no shard")

    def not_finite(run):
        fit(run, np.full((24, 3), np.nan, "float32"))

    def unseeded(run):
        fit(run, np.random.default_rng().normal(size=(24, 3)).astype("float32"))
"""
PROJECT = {
    "programs.py": PROGRAMS,
    "conftest.py": "import sys, pathlib; sys.path.insert(0, str(pathlib.Path(__file__).parent))",
    "settings.py": """
        SIZES = dict(global_batch_size=12, steps=2, precision="native")
        CRASH = dict(expect={"mirrored": {"worker-raised": "shards are missing"}}, **SIZES)
        ELSEWHERE = {"parameter_server": {"worker-raised": "shards are missing"}}
    """,
    "test_outcomes.py": """
        import pytest
        from programs import crashes, raises
        from settings import CRASH, SIZES

        pytestmark = pytest.mark.ddl(strategies="mirrored")

        def test_raises_on_one_device_too(ddl_equivalence):
            ddl_equivalence(raises, **SIZES)

        def test_crash(ddl_equivalence):
            report = ddl_equivalence(crashes, **CRASH)
            assert report.verdict == "inconclusive"

        def test_crash_strict(ddl_equivalence):
            ddl_equivalence(crashes, strict=True, **CRASH)
    """,
    "test_more.py": """
        import pytest
        from programs import crashes, not_finite, right, unseeded
        from settings import CRASH, ELSEWHERE, SIZES

        pytestmark = pytest.mark.ddl(strategies="mirrored")

        def test_not_finite(ddl_equivalence):
            ddl_equivalence(not_finite, **SIZES)

        def test_other_data_each_time(ddl_equivalence):
            ddl_equivalence(unseeded, **SIZES)

        def test_nothing_recorded(ddl_equivalence):
            ddl_equivalence(lambda run: None, **SIZES)

        def test_crash_and_a_failure(ddl_equivalence):
            ddl_equivalence(crashes, **CRASH)
            assert False, "what the test asserts by itself"

        def test_crash_and_a_pass(ddl_equivalence):
            ddl_equivalence(crashes, **CRASH)
            ddl_equivalence(right, **SIZES)

        def test_crash_expected_elsewhere(ddl_equivalence):
            ddl_equivalence(crashes, expect=ELSEWHERE, **SIZES)

        def test_pass_with_a_crash_expected_elsewhere(ddl_equivalence):
            report = ddl_equivalence(right, expect=ELSEWHERE, **SIZES)
            assert report.passed and not report.unused_expectations
    """,
}
LABEL = "[mirrored]"
XFAIL = f"XFAIL test_outcomes.py::test_crash{LABEL} - worker-raised: shards are missing"


@pytest.fixture(scope="module")
def project(new_project: Callable[..., Any]) -> Any:
    return new_project(PROJECT)


@pytest.fixture(scope="module")
def run(project: Any) -> Any:
    """Run the tests that run for each commit."""
    return project.pytest("-rx", "test_outcomes.py")


@pytest.fixture(scope="module")
def more(project: Any) -> Any:
    """Run the tests that run only at night."""
    return project.pytest("-rx", "test_more.py")


@pytest.mark.nightly(each_commit=("run",))
@pytest.mark.parametrize(
    ("runs", "name", "words"),
    [
        ("more", "test_not_finite", "the single-device run itself is not finite after step"),
        ("more", "test_other_data_each_time", "the program consumes other examples each time"),
        ("more", "test_nothing_recorded", "no training step was recorded"),
        ("run", "test_raises_on_one_device_too", "without a strategy too: LookupError: no shard"),
    ],
)
def test_a_reason_in_the_program_fails_with_that_reason(
    request: pytest.FixtureRequest, runs: str, name: str, words: str
) -> None:
    case = request.getfixturevalue(runs)[name + LABEL]
    assert case.outcome == "failed", case.text
    assert words in case.text


@pytest.mark.nightly(each_commit=("test_crash_strict",))
@pytest.mark.parametrize("name", ["test_crash", "test_crash_strict"])
def test_an_expected_crash_is_an_expected_failure_with_its_reason(run: Any, name: str) -> None:
    case = run[name + LABEL]
    assert case.outcome == "xfailed", case.text
    assert "worker-raised: shards are missing" in case.text
    assert XFAIL in run.stdout


@pytest.mark.nightly
def test_an_expected_crash_hides_nothing_else(more: Any) -> None:
    assert more["test_crash_and_a_failure" + LABEL].outcome == "failed"
    assert more["test_crash_and_a_pass" + LABEL].outcome == "passed"
    assert f"test_crash_and_a_pass{LABEL}: worker-raised: shards are missing" in more.stdout


@pytest.mark.nightly
def test_an_expectation_for_another_strategy_does_not_hold(more: Any) -> None:
    case = more["test_crash_expected_elsewhere" + LABEL]
    assert case.outcome == "failed"
    assert "worker-raised: mirrored[replicas=2] fails at step 1 (LookupError: no shard)" in case.text
    assert more["test_pass_with_a_crash_expected_elsewhere" + LABEL].outcome == "passed"


@pytest.mark.nightly
def test_xdist_reports_the_same(project: Any) -> None:
    again = project.pytest("-n1", "-rx", "test_outcomes.py::test_crash", "test_more.py::test_not_finite")
    assert again.outcomes == {"test_crash" + LABEL: "xfailed", "test_not_finite" + LABEL: "failed"}
    assert XFAIL in again.stdout
