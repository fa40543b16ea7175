"""State that a test sets in the pytest process reaches the ranks, and results do not depend on earlier tests."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytestmark = pytest.mark.slow

SETTINGS = """
    RATE = 1
    TABLE = {"rate": 1}

    class Options:
        rate = 1

    def made():
        return "as written"
"""

IN_CALLS = """
    import os, sys, threading
    from pathlib import Path
    import pytest
    import pytest_ddl
    import numpy
    import settings
    from settings import RATE

    pytestmark = pytest.mark.ddl(strategies="mirrored", timeout=100)
    FLAG = "as written"
    MUTEX = None

    def seen():
        import lazily_imported
        return (settings.RATE, RATE, settings.TABLE["rate"], settings.Options.rate, settings.made(), FLAG,
                lazily_imported.VALUE)

    AS_WRITTEN = (1, 1, 1, 1, "as written", "as written", 1)

    def around():
        return os.environ.get("MODE"), os.environ.get("HOME"), os.getcwd(), "/added" in sys.path

    @pytest.mark.parametrize("mode", ["a", "b"])
    def test_surroundings(ddl_cluster, monkeypatch, tmp_path, mode):
        before = ddl_cluster.run(around)
        monkeypatch.setenv("MODE", mode)
        monkeypatch.delenv("HOME")
        monkeypatch.chdir(tmp_path)
        monkeypatch.syspath_prepend("/added")
        assert ddl_cluster.run(around) == [(mode, None, str(tmp_path), True)]
        monkeypatch.undo()
        assert ddl_cluster.run(around) == before == [(None, os.environ["HOME"], os.getcwd(), False)]

    def test_globals_as_written(ddl_cluster):
        assert ddl_cluster.run(seen) == [AS_WRITTEN]

    def test_changed_globals(ddl_cluster, monkeypatch):
        import lazily_imported
        monkeypatch.setattr(settings, "RATE", 2)
        monkeypatch.setitem(settings.TABLE, "rate", 3)
        monkeypatch.setattr(settings.Options, "rate", 4)
        monkeypatch.setattr(settings, "made", lambda: "by the test")
        monkeypatch.setattr(sys.modules[__name__], "FLAG", "set")
        monkeypatch.setattr(lazily_imported, "VALUE", 5)
        # RATE is a copy that this module made when it was imported, in both processes.
        assert ddl_cluster.run(seen) == [(2, 1, 3, 4, "by the test", "set", 5)] == [seen()]
        monkeypatch.undo()
        assert ddl_cluster.run(seen) == [AS_WRITTEN]

    def test_removed_global(ddl_cluster, monkeypatch):
        monkeypatch.delattr(settings, "made")
        assert ddl_cluster.run(lambda: hasattr(settings, "made")) == [False]

    def test_patched_library(ddl_cluster, monkeypatch):
        monkeypatch.setattr("numpy.mean", len)
        with pytest.raises(pytest_ddl.ShippingError, match="numpy.mean was replaced in the pytest process"):
            ddl_cluster.run(around)

    def locked():
        return MUTEX is None

    def test_global_that_cannot_travel(ddl_cluster, monkeypatch):
        monkeypatch.setattr(sys.modules[__name__], "MUTEX", threading.Lock())
        with pytest.raises(pytest_ddl.ShippingError, match="MUTEX was changed .* cannot be sent to the ranks"):
            ddl_cluster.run(locked)
        assert ddl_cluster.run(around)
"""

INSTALLED = """
    import random
    import packaging.utils
    import pytest
    import pytest_ddl
    from owned import work

    pytestmark = pytest.mark.ddl(strategies="mirrored", timeout=100)

    def test_as_written(ddl_cluster):
        assert ddl_cluster.run(work.rate) == [1]

    def test_patched(ddl_cluster, monkeypatch):
        monkeypatch.setattr(work, "RATE", 2)
        assert ddl_cluster.run(work.rate) == [2]
        assert ddl_cluster.run(lambda: work.RATE) == [2]
        monkeypatch.undo()
        assert ddl_cluster.run(work.rate) == [1]

    def test_other_package(ddl_cluster, monkeypatch):
        monkeypatch.setattr(packaging.utils, "canonicalize_name", lambda *_: "by the test")
        assert ddl_cluster.run(lambda: packaging.utils.canonicalize_name("x")) == ["by the test"]

    def test_python(ddl_cluster, monkeypatch):
        monkeypatch.setattr(random, "random", lambda: 42.0)
        with pytest.raises(pytest_ddl.ShippingError, match="random.random was replaced in the pytest process"):
            ddl_cluster.run(lambda: random.random())

    @pytest.mark.parametrize("capture", [0, 1])
    def test_nothing_patched(ddl_cluster, capsys, caplog, recwarn, capture):
        print("captured")
        random.seed(capture)
        assert ddl_cluster.run(lambda: random.random() < 1) == [True]
"""

COMPARED = """
    import os
    import pytest
    import numpy as np
    import tensorflow as tf

    CONFIG = {"reduce": "SUM"}
    MODE = "right"

    def train(run):
        how = "SUM" if "wrong" in (MODE, os.environ.get("MODE")) else "MEAN"
        train_with(run, how)

    def train_as_configured(run):
        train_with(run, CONFIG["reduce"])

    def train_and_leave(run):
        tf.config.run_functions_eagerly(False)
        np.mean = np.sum
        os.environ["MODE"] = "wrong"
        train_with(run, "MEAN")

    def train_by_numpy(run):
        train_with(run, "MEAN" if np.mean([1.0, 1.0]) == 1.0 else "SUM")

    def train_with(run, how):
        with run.strategy.scope():
            v = tf.Variable(1.0)
        run.watch(variables=[v])

        @tf.function
        def step(iterator):
            def replica(batch):
                gradient = tf.distribute.get_replica_context().all_reduce(how, tf.reduce_mean(batch))
                v.assign_sub(0.1 * gradient)
            run.strategy.run(replica, args=(next(iterator),))

        for _ in run.steps(step, tf.data.Dataset.from_tensor_slices([1.0, 2.0, 3.0, 4.0]).batch(2)):
            pass

    def check(ddl_equivalence, function):
        ddl_equivalence(function, global_batch_size=2, steps=2, checks=["STEP-EQ"], precision="native", timeout=100)

    pytestmark = pytest.mark.ddl(strategies="mirrored", timeout=100)

    @pytest.mark.parametrize("mode", ["right", "wrong"])
    def test_environment(ddl_equivalence, monkeypatch, mode):
        monkeypatch.setenv("MODE", mode)
        check(ddl_equivalence, train)

    @pytest.mark.parametrize("mode", ["right", "wrong"])
    def test_global(ddl_equivalence, monkeypatch, mode):
        monkeypatch.setattr("test_compared.MODE", mode)
        check(ddl_equivalence, train)

    def test_leaves_a_right_setting(ddl_strategy):
        CONFIG["reduce"] = "MEAN"

    def test_configured(ddl_equivalence):
        check(ddl_equivalence, train_as_configured)

    def test_leaves_a_patch(ddl_equivalence):
        check(ddl_equivalence, train_and_leave)

    def test_by_numpy(ddl_equivalence):
        check(ddl_equivalence, train_by_numpy)
"""

CONFTEST = """
    import os

    def pytest_collection_modifyitems(items):
        if os.environ.get("PYTEST_ORDER") == "reversed":
            items.reverse()
"""
RIGHT = {
    "test_environment[mirrored-right]": "passed",
    "test_environment[mirrored-wrong]": "failed",
    "test_global[mirrored-right]": "passed",
    "test_global[mirrored-wrong]": "failed",
    "test_leaves_a_right_setting[mirrored]": "passed",
    "test_configured[mirrored]": "failed",
    "test_leaves_a_patch[mirrored]": "passed",
    "test_by_numpy[mirrored]": "passed",
}


@pytest.fixture(scope="module")
def project(new_project: Callable[..., Any]) -> Any:
    return new_project(
        {
            "conftest.py": CONFTEST,
            "settings.py": SETTINGS,
            "lazily_imported.py": "VALUE = 1\n",
            "test_calls.py": IN_CALLS,
            "test_compared.py": COMPARED,
        }
    )


@pytest.mark.nightly
def test_patches_of_installed_packages_travel_and_those_of_python_are_refused(new_project: Callable[..., Any]) -> None:
    path = "import sys\nfrom pathlib import Path\nsys.path.insert(0, str(Path(__file__).parent / 'site-packages'))\n"
    work = "RATE = 1\ndef rate(): return RATE\n"
    files = {"site-packages/owned/__init__.py": "", "site-packages/owned/work.py": work}
    project = new_project({"conftest.py": path, "test_installed.py": INSTALLED, **files})
    outcome = project.pytest("-p", "no:xdist", timeout=300)
    assert set(outcome.outcomes.values()) == {"passed"}, outcome.stdout


@pytest.mark.nightly
def test_calls_see_what_the_test_has_set(project: Any) -> None:
    outcome = project.pytest("-p", "no:xdist", "test_calls.py", timeout=400)
    assert set(outcome.outcomes.values()) == {"passed"}, outcome.stdout


# One run of pytest with all other plugins, and one with pytest-xdist, run for each commit.
@pytest.mark.nightly(each_commit=("as written",))
@pytest.mark.parametrize("order", ["as written", "reversed"])
def test_verdicts_do_not_depend_on_the_order(project: Any, order: str) -> None:
    outcome = project.pytest("-p", "no:xdist", "test_compared.py", env={"PYTEST_ORDER": order}, timeout=500)
    assert outcome.outcomes == RIGHT, outcome.stdout


@pytest.mark.nightly
@pytest.mark.parametrize("alone", ["test_environment and wrong", "test_configured"])
def test_verdicts_are_those_of_a_test_alone(project: Any, alone: str) -> None:
    outcome = project.pytest("-p", "no:xdist", "test_compared.py", "-k", alone, timeout=300)
    assert set(outcome.outcomes.values()) == {"failed"}, outcome.stdout
