"""Arguments of constructors and the package of ``tf.keras``, by marker; fixtures that override those of the plugin."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from pytest_ddl.items.selection import DdlMark, select
from pytest_ddl.strategies.registry import StrategyRegistry
from pytest_ddl.strategies.spec import BuildContext, StrategySpec, Task, Topology

PROJECT = {
    "test_marker.py": """
        import pytest
        import tensorflow as tf

        # An operation: a rank must not import this module before its strategy exists.
        SHARDS = 2
        ONE = tf.constant(1.0)

        def hierarchical():
            return {"cross_device_ops": tf.distribute.HierarchicalCopyAllReduce()}

        def swapped():
            return {"devices": ["CPU:1", "CPU:0"]}

        def ring():
            kind = tf.distribute.experimental.CommunicationImplementation.RING
            return {"communication_options": tf.distribute.experimental.CommunicationOptions(implementation=kind)}

        def in_shards():
            return {"variable_partitioner": tf.distribute.experimental.partitioners.FixedShardsPartitioner(SHARDS)}

        @pytest.mark.ddl(strategies="mirrored", arguments={"mirrored": hierarchical})
        def test_cross_device_ops(ddl_strategy):
            assert isinstance(ddl_strategy.extended._cross_device_ops, tf.distribute.HierarchicalCopyAllReduce)

        @pytest.mark.ddl(strategies="mirrored", arguments={"mirrored": swapped})
        def test_devices(ddl_strategy):
            assert [device[-1] for device in ddl_strategy.extended.worker_devices] == ["1", "0"]

        @pytest.mark.ddl(strategies="mwms", arguments={"mwms": ring})
        def test_communication_options(ddl_strategy):
            options = ddl_strategy.extended._communication_options
            assert options.implementation == tf.distribute.experimental.CommunicationImplementation.RING

        @pytest.mark.ddl(strategies="parameter_server", arguments={"parameter_server": in_shards})
        def test_variable_partitioner(ddl_strategy):
            with ddl_strategy.scope():
                assert len(tf.Variable(tf.zeros((4, 2))).variables) == 2

        @pytest.mark.ddl(strategies="mirrored", arguments={"mirrored": lambda: {"device": ["CPU:0"]}})
        def test_wrong_argument(ddl_strategy):
            pass

        @pytest.mark.ddl(strategies="mirrored", keras="tf_keras")
        def test_tf_keras(ddl_strategy):
            from tensorflow.keras.layers import Dense
            assert {one.__module__.split(".")[0] for one in (tf.keras.Sequential, Dense)} == {"tf_keras"}

        @pytest.mark.ddl(strategies="mirrored", keras="keras")
        def test_keras(ddl_strategy):
            from tensorflow.keras.layers import Dense
            assert {one.__module__.split(".")[0] for one in (tf.keras.Sequential, Dense)} == {"keras"}
    """,
}
GOOD = ["cross_device_ops", "devices", "communication_options", "variable_partitioner", "tf_keras", "keras"]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"arguments": {"mirored": dict}}, r"arguments=….: 'mirored' is not a strategy \(did you mean 'mirrored'\?\)"),
        ({"arguments": {"model_parallel": dict}}, "model_parallel takes no arguments of its constructor"),
        ({"arguments": {"mirrored": {"devices": ["CPU:0"]}}}, "must map names of strategies to functions that return"),
        ({"arguments": dict}, "must map names of strategies to functions that return"),
        ({"keras": "tf-keras"}, r"keras='tf-keras' is not one of keras, tf_keras \(did you mean 'tf_keras'\?\)"),
    ],
)
def test_wrong_arguments_of_the_marker_are_one_line(given: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        select(DdlMark(**given), ["ddl_strategy"], "all", StrategyRegistry())


def wrong_type() -> Any:
    return ["CPU:0"]


def wrong_name() -> dict[str, Any]:
    return {"device": ["CPU:0"]}


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (wrong_type, r"must return a dict, not \['CPU:0'\]"),
        (wrong_name, r"mirrored has no argument 'device' \(did you mean 'devices'\?\); valid: devices"),
    ],
)
def test_a_function_that_returns_something_else_is_one_line(make: Any, words: str) -> None:
    import pickle

    task = Task("worker", 0)
    context = BuildContext(StrategySpec("mirrored"), Topology((task,)), task, 0, make_arguments=pickle.dumps(make))
    with pytest.raises(TypeError, match=words):
        context.arguments("devices")


def test_fixtures_that_override_keep_the_strategies(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        test_override="""
        import pytest

        @pytest.fixture
        def ddl_strategy(ddl_strategy):
            return ddl_strategy

        @pytest.fixture
        def ddl_equivalence(ddl_equivalence):
            return lambda train: ddl_equivalence(train, steps=3)

        def test_spmd(ddl_strategy): pass
        def test_comparison(ddl_equivalence): pass
        """
    )
    result = pytester.runpytest_subprocess("--collect-only", "-q", "--ddl-strategy=mirrored,mwms")
    names = ["test_spmd[mirrored]", "test_spmd[multi_worker_mirrored]"]
    names += ["test_comparison[mirrored]", "test_comparison[multi_worker_mirrored]"]
    result.stdout.fnmatch_lines_random([f"test_override.py::{name.replace('[', '[[]')}" for name in names])


@pytest.mark.nightly
@pytest.mark.slow
def test_markers_reach_the_constructors(new_project: Callable[..., Any]) -> None:
    project = new_project(PROJECT)
    run = project.pytest(timeout=550)
    outcomes = {name.partition("[")[0].removeprefix("test_"): case.outcome for name, case in run.cases.items()}
    texts = "\n".join(case.text for case in run.cases.values())
    assert {name: outcomes[name] for name in GOOD} == dict.fromkeys(GOOD, "passed"), texts
    assert outcomes["wrong_argument"] == "error"
    assert "mirrored has no argument 'device' (did you mean 'devices'?); valid: devices, cross_device_ops" in texts
    assert (run.processes, run.files) == ([], [])


@pytest.mark.nightly
@pytest.mark.slow
def test_a_debugger_has_no_process_for_them(new_project: Callable[..., Any]) -> None:
    run = new_project(PROJECT).pytest("--ddl-in-process", "-k", "tf_keras or devices", timeout=300)
    assert set(run.outcomes.values()) == {"skipped"}
    assert all("needs other processes" in case.text for case in run.cases.values())
