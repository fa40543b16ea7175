"""Outcomes of tests whose comparison meets a known behavior of Keras: an expected failure, counted, never a pass."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytestmark = pytest.mark.slow

PROJECT = {
    "programs.py": """
        import keras, numpy as np, tensorflow as tf

        def fit(run, layers=list, loss="mse"):
            x = np.random.default_rng(0).normal(size=(24, 3)).astype("float32")
            with run.strategy.scope():
                model = keras.Sequential([keras.Input((3,)), *layers(), keras.layers.Dense(1)])
                model.compile("sgd", loss)
            run.watch(model=model)
            run.fit(model, tf.data.Dataset.from_tensor_slices((x, x[:, :1])).batch(run.global_batch_size))

        def right(run):
            fit(run)

        def drop():
            return [keras.layers.Dropout(0.5)]

        def dropout(run):
            fit(run, drop)

        def dropout_and_a_mistake(run):
            fit(run, drop, loss=lambda y, p: keras.ops.mean(keras.ops.square(y - p)))
    """,
    "conftest.py": "import sys, pathlib; sys.path.insert(0, str(pathlib.Path(__file__).parent))",
    "test_known.py": """
        import pytest
        from programs import dropout, dropout_and_a_mistake, right

        pytestmark = pytest.mark.ddl(strategies="mirrored")
        SIZES = dict(global_batch_size=12, steps=2, precision="native")

        def test_dropout(ddl_equivalence):
            report = ddl_equivalence(dropout, **SIZES)
            assert report.verdict == "known" and not report.passed

        def test_dropout_and_a_pass(ddl_equivalence):
            ddl_equivalence(dropout, **SIZES)
            ddl_equivalence(right, **SIZES)

        def test_dropout_and_a_mistake(ddl_equivalence):
            ddl_equivalence(dropout_and_a_mistake, **SIZES)

        def test_declared(ddl_equivalence):
            cause = "random-stream-repeated-across-replicas"
            assert ddl_equivalence(dropout, expect={"mirrored": {cause: "fine"}}, **SIZES).passed
    """,
    "test_more.py": """
        import pytest
        from programs import dropout
        from pytest_ddl import DivergenceError

        pytestmark = pytest.mark.ddl(strategies="mirrored")
        SIZES = dict(global_batch_size=12, steps=2, precision="native")

        def test_dropout_and_a_failure(ddl_equivalence):
            ddl_equivalence(dropout, **SIZES)
            assert False, "what the test asserts by itself"

        @pytest.mark.xfail(raises=DivergenceError, strict=True)
        def test_marked(ddl_equivalence):
            ddl_equivalence(dropout, **SIZES)
    """,
}
LABEL = "[mirrored]"
SECTION = "known behaviors of TensorFlow and Keras (--ddl-strict fails on them)"


@pytest.fixture(scope="module")
def project(new_project: Callable[..., Any]) -> Any:
    return new_project(PROJECT)


@pytest.fixture(scope="module")
def run(project: Any) -> Any:
    """Run the tests that run for each commit."""
    return project.pytest("-rx", "test_known.py", timeout=400.0)


@pytest.fixture(scope="module")
def more(project: Any) -> Any:
    """Run the tests that run only at night."""
    return project.pytest("-rx", "test_more.py", timeout=400.0)


@pytest.mark.parametrize(
    ("name", "outcome"),
    [
        ("test_dropout", "xfailed"),
        ("test_dropout_and_a_pass", "xfailed"),
        ("test_dropout_and_a_mistake", "failed"),
        ("test_declared", "passed"),
    ],
)
def test_outcomes(run: Any, name: str, outcome: str) -> None:
    assert run[name + LABEL].outcome == outcome, run[name + LABEL].text


@pytest.mark.nightly
@pytest.mark.parametrize(("name", "outcome"), [("test_dropout_and_a_failure", "failed"), ("test_marked", "xfailed")])
def test_more_outcomes(more: Any, name: str, outcome: str) -> None:
    assert more[name + LABEL].outcome == outcome, more[name + LABEL].text


def test_the_summary_counts_them(run: Any) -> None:
    assert SECTION in run.stdout
    assert "keras-seed-generator: 3 tests: Keras 3 gives every replica the same seeds" in run.stdout
    assert f"XFAIL test_known.py::test_dropout{LABEL} - keras-seed-generator: Keras 3" in run.stdout


@pytest.mark.nightly
def test_strict_mode_and_runxfail_fail_on_them(project: Any) -> None:
    strict = project.pytest("--ddl-strict", "test_known.py::test_dropout")
    assert strict["test_dropout" + LABEL].outcome == "failed"
    assert "known as:    keras-seed-generator" in strict["test_dropout" + LABEL].text
    unmarked = project.pytest("--runxfail", "test_known.py::test_dropout")
    assert unmarked["test_dropout" + LABEL].outcome == "failed"


# One run of pytest with all other plugins, and one with pytest-xdist, run for each commit.
@pytest.mark.nightly
def test_xdist_reports_the_same(project: Any) -> None:
    again = project.pytest("-n1", "-rx", "test_known.py::test_dropout", "test_known.py::test_declared")
    assert again.outcomes == {"test_dropout" + LABEL: "xfailed", "test_declared" + LABEL: "passed"}
    assert "keras-seed-generator: 1 test: Keras 3" in again.stdout
