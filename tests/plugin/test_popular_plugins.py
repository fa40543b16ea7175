"""A mixed file gives the same outcomes with each of the most used pytest plugins, and with all that are installed."""

from __future__ import annotations

import importlib.metadata
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow

# Distribution -> how it is loaded, and the options with which it does its work here.
PLUGINS = {
    "allure-pytest": "-p allure_pytest --alluredir=allure",
    "anyio": "-p anyio",
    "hypothesis": "-p hypothesispytest",
    "pytest-asyncio": "-p asyncio",
    "pytest-benchmark": "-p benchmark",
    "pytest-cov": "-p pytest_cov --cov=. --cov-report=",
    "pytest-env": "-p env",
    "pytest-forked": "-p pytest_forked --forked",
    "pytest-html": "-p metadata -p html --html=report.html",
    "pytest-instafail": "-p instafail --instafail",
    "pytest-json-report": "-p metadata -p pytest_jsonreport --json-report",
    "pytest-metadata": "-p metadata",
    "pytest-mock": "-p pytest_mock",
    "pytest-order": "-p pytest_order.plugin",
    "pytest-random-order": "-p random_order.plugin --random-order",
    "pytest-randomly": "-p randomly",
    "pytest-repeat": "-p pytest_repeat",
    "pytest-rerunfailures": "-p rerunfailures --reruns=1",
    "pytest-sugar": "-p sugar",
    "pytest-timeout": "-p timeout --timeout=100",
    "pytest-xdist": "-p xdist -n1",
}
TOGETHER = [name for name in PLUGINS if name not in ("pytest-random-order", "pytest-forked")]
"""pytest-random-order and pytest-randomly both shuffle; pytest-forked is for runs without pytest-xdist."""

MIXED = {
    "conftest.py": "import sys; sys.dont_write_bytecode = True",
    "test_mixed.py": """
        import pytest
        import tensorflow as tf

        pytestmark = pytest.mark.ddl(strategies="mirrored")

        def train(run):
            with run.strategy.scope():
                variable = tf.Variable(1.0)
            optimizer = tf.keras.optimizers.SGD(0.1)
            run.watch(variables=[variable])

            @tf.function
            def step(iterator):
                def replica(batch):
                    with tf.GradientTape() as tape:
                        loss = tf.reduce_sum(variable * batch) / run.global_batch_size
                    optimizer.apply_gradients([(tape.gradient(loss, variable), variable)])
                    return loss
                return run.strategy.reduce("SUM", run.strategy.run(replica, args=(next(iterator),)), axis=None)

            data = tf.data.Dataset.from_tensor_slices(tf.range(8.0)).batch(run.global_batch_size)
            for _ in run.steps(step, data):
                pass

        def number():
            return 3

        @pytest.fixture(scope="module")
        def wide(ddl_strategy):
            return []

        def test_passes(ddl_strategy, wide, tmp_path):
            assert ddl_strategy.num_replicas_in_sync == 2

        def test_fails(ddl_strategy):
            assert ddl_strategy.num_replicas_in_sync == 3

        def test_skips(ddl_strategy):
            pytest.skip("not now")

        @pytest.mark.xfail(strict=True)
        def test_fails_as_expected(ddl_strategy):
            raise AssertionError

        @pytest.mark.parametrize("value", [1, 2])
        def test_with_parameters(ddl_strategy, wide, value):
            assert value < 3

        def test_driving(ddl_cluster):
            assert ddl_cluster.run(number) == [3]

        def test_training(ddl_equivalence):
            ddl_equivalence(train, global_batch_size=4, steps=2)
    """,
    "test_plain.py": """
        import pytest

        def test_plain():
            pass

        def test_plain_fails():
            assert [] == [1]

        @pytest.mark.skip(reason="not now")
        def test_plain_skips():
            pass
    """,
}
EXPECTED = {
    "test_passes[mirrored]": "passed",
    "test_fails[mirrored]": "failed",
    "test_skips[mirrored]": "skipped",
    "test_fails_as_expected[mirrored]": "xfailed",
    "test_with_parameters[mirrored-1]": "passed",
    "test_with_parameters[mirrored-2]": "passed",
    "test_driving[mirrored]": "passed",
    "test_training[mirrored]": "passed",
    "test_plain": "passed",
    "test_plain_fails": "failed",
    "test_plain_skips": "skipped",
}


@pytest.fixture
def run(new_project: Callable[..., Any]) -> Callable[[list[str]], Any]:
    """Run the mixed file with these plugins and no others."""

    def run(names: list[str]) -> Any:
        options = [option for name in names for option in PLUGINS[name].split()]
        project = new_project(MIXED)
        outcome = project.pytest("-p", "ddl", *options, env={"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}, timeout=400)
        assert "INTERNALERROR" not in outcome.stdout + outcome.stderr
        assert not outcome.processes
        return outcome

    return run


def is_installed(name: str) -> bool:
    try:
        importlib.metadata.distribution(name)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


@pytest.mark.nightly
def test_without_any(run: Any) -> None:
    assert run([]).outcomes == EXPECTED


# One run of pytest with all other plugins, and one with pytest-xdist, run for each commit.
@pytest.mark.nightly(
    each_commit=(
        "anyio",
        "pytest-asyncio",
        "pytest-benchmark",
        "pytest-cov",
        "pytest-html",
        "pytest-metadata",
        "pytest-random",
        "pytest-repeat",
    )
)
@pytest.mark.parametrize("name", PLUGINS)
def test_with_each(run: Any, name: str) -> None:
    if not is_installed(name):
        pytest.skip(f"{name} is not installed; `tox -e py311-plugins` has it")
    outcome = run([name])
    assert outcome.outcomes == EXPECTED, outcome.stdout


@pytest.mark.nightly
def test_allure_has_each_test_once(new_project: Callable[..., Any]) -> None:
    if not is_installed("allure-pytest"):
        pytest.skip("allure-pytest is not installed; `tox -e py311-plugins` has it")
    project = new_project(MIXED)
    project.pytest("-p", "ddl", *PLUGINS["allure-pytest"].split(), env={"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"})
    files = project.folder.glob("allure/*-result.json")
    found = sorted((result["name"], result["status"]) for result in map(json.loads, map(Path.read_text, files)))
    assert found == sorted((name, outcome.replace("xfailed", "skipped")) for name, outcome in EXPECTED.items())


@pytest.mark.nightly
def test_with_all_that_are_installed(run: Any) -> None:
    outcome = run([name for name in TOGETHER if is_installed(name)])
    assert outcome.outcomes == EXPECTED, outcome.stdout
