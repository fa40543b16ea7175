"""No later test, call or comparison may see the state that a test leaves in a warm rank, in any order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytestmark = pytest.mark.slow

KINDS = """
    import logging, os, random, signal, sys, time, warnings
    import keras, numpy as np, tensorflow as tf
    import helper

    CONFIG = {"reduce": "as written"}
    SETTING = 1

    class Options:
        rate = 1

    options = Options()
    draws = np.random.default_rng(7)

    def set_global():
        global SETTING
        SETTING = 2

    def count(calls=[]):
        calls.append(1)
        return len(calls)

    # name -> how a test leaves it, how another sees it
    KINDS = {
        "environ": (lambda: os.environ.update(LEFT="yes"), lambda: "LEFT" in os.environ),
        "cwd": (lambda: os.chdir("/"), lambda: os.getcwd() == "/"),
        "umask": (lambda: os.umask(0), lambda: os.umask(0o022) == 0),
        "path": (lambda: sys.path.insert(0, "/left"), lambda: "/left" in sys.path),
        "signal": (lambda: signal.signal(signal.SIGTERM, signal.SIG_IGN),
                   lambda: signal.getsignal(signal.SIGTERM) == signal.SIG_IGN),
        "warnings": (lambda: warnings.simplefilter("error"), lambda: warnings.filters[0][0] == "error"),
        "logging": (lambda: logging.getLogger("tensorflow").setLevel(7),
                    lambda: logging.getLogger("tensorflow").level == 7),
        "seed": (lambda: random.seed(5), lambda: random.random() == random.Random(5).random()),
        "numpy seed": (lambda: np.random.seed(5), lambda: np.random.random() == np.random.RandomState(5).random()),
        "tf seed": (lambda: tf.random.set_seed(5), lambda: float(tf.random.uniform(())) == seeded()),
        "generator": (lambda: draws.normal(), lambda: draws.normal() != np.random.default_rng(7).normal()),
        "eager": (lambda: tf.config.run_functions_eagerly(True), tf.config.functions_run_eagerly),
        "floatx": (lambda: keras.config.set_floatx("float64"), lambda: keras.config.floatx() == "float64"),
        "policy": (lambda: keras.config.set_dtype_policy("mixed_bfloat16"),
                   lambda: "bfloat16" in keras.config.dtype_policy().name),
        "names": (lambda: keras.layers.Dense(1), lambda: keras.layers.Dense(1).name != "dense"),
        "numpy errors": (lambda: np.seterr(all="raise"), lambda: np.geterr()["over"] == "raise"),
        "contents": (lambda: CONFIG.update(reduce="left"), lambda: CONFIG["reduce"] == "left"),
        "global": (set_global, lambda: SETTING == 2),
        "class attribute": (lambda: setattr(Options, "rate", 2), lambda: Options.rate == 2),
        "instance": (lambda: setattr(options, "rate", 3), lambda: options.rate == 3),
        "default argument": (count, lambda: count() > 1),
        "imported module": (lambda: setattr(helper, "VALUE", 2), lambda: helper.VALUE == 2),
        "late module": (lambda: setattr(__import__("late"), "VALUE", 2), lambda: __import__("late").VALUE == 2),
        "numpy function": (lambda: setattr(np, "mean", len), lambda: np.mean is len),
        "method": (lambda: setattr(tf.distribute.Strategy, "run", None), lambda: tf.distribute.Strategy.run is None),
        "keras method": (lambda: setattr(keras.layers.Dense, "call", None), lambda: keras.layers.Dense.call is None),
        "time": (lambda: setattr(time, "monotonic", time.time), lambda: time.monotonic is time.time),
        "thread": (lambda: __import__("threading").Thread(target=time.sleep, args=(60,), daemon=True).start(),
                   lambda: __import__("threading").active_count() > threads_at_first),
        "process": (lambda: __import__("subprocess").Popen(["sleep", "60"]),
                    lambda: bool(open(f"/proc/self/task/{os.getpid()}/children").read())),
    }

    def seeded():
        tf.random.set_seed(5)
        return float(tf.random.uniform(()))

    threads_at_first = __import__("threading").active_count()

    def leave(kind):
        KINDS[kind][0]()

    def see(kind):
        return bool(KINDS[kind][1]())
"""

IN_RANKS = """
    import pytest
    from kinds import KINDS, leave, see

    @pytest.mark.ddl(strategies="mirrored", timeout=100)
    @pytest.mark.parametrize(("kind", "act"), [(kind, act) for kind in KINDS for act in ("leave", "see")])
    def test_rank(ddl_strategy, kind, act):
        assert act == "leave" or not see(kind)
        leave(kind)

    @pytest.mark.ddl(strategies="mirrored", timeout=100)
    @pytest.mark.parametrize("kind", KINDS)
    def test_call(ddl_cluster, kind):
        assert ddl_cluster.run(see, kind) == [False]
        ddl_cluster.run(leave, kind)

    @pytest.mark.ddl(strategies="mirrored", timeout=100)
    @pytest.mark.parametrize("kind", KINDS)
    def test_next_call(ddl_cluster, kind):
        assert ddl_cluster.run(see, kind) == [False]
"""


@pytest.fixture(scope="module")
def outcome(new_project: Callable[..., Any]) -> Any:
    project = new_project(
        {"kinds.py": KINDS, "helper.py": "VALUE = 1\n", "late.py": "VALUE = 1\n", "test_ranks.py": IN_RANKS}
    )
    return project.pytest("-p", "no:xdist", timeout=500)


def test_nothing_is_seen_later(outcome: Any) -> None:
    assert [name for name, case in outcome.cases.items() if case.outcome != "passed"] == [], outcome.stdout
    assert len(outcome.cases) > 100


def test_nothing_outlives_the_run(outcome: Any) -> None:
    assert (outcome.processes, outcome.files) == ([], [])
