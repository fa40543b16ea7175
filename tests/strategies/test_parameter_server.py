"""Check that a coordinator has made the first copies of closures' results before its threads run."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.slow

pytest_plugins = ["pytester"]

BEGIN = "the program begins"
PROGRAM = f"""
    import os
    import pytest

    def fetch(strategy, types):
        import tensorflow as tf
        coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
        os.write(2, b"\\n{BEGIN}\\n")
        for dtype in types:
            closure = tf.function(lambda: tf.zeros([], dtype))
            coordinator.fetch([coordinator.schedule(closure) for _ in range(4)])

    @pytest.mark.ddl(timeout=60)
    def test_common_types(ddl_strategy):
        fetch(ddl_strategy, ["float32", "float64", "int32", "int64", "bool", "string"])

    @pytest.mark.ddl(timeout=60)
    def test_another_type(ddl_strategy):
        fetch(ddl_strategy, ["complex128"])
"""


def test_copies_of_results_add_no_functions(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    """TensorFlow says when it adds the function of a copy to its list, which other threads read while it may move."""
    monkeypatch.setenv("TF_CPP_VMODULE", "cluster_function_library_runtime=1")
    monkeypatch.setenv("TF_CPP_MIN_LOG_LEVEL", "0")
    # TensorFlow reads both when it is imported, so no warm server fits, and none is left that no other test could use.
    monkeypatch.setenv("PYTEST_DDL_WARM", "0")
    pytester.makepyfile(PROGRAM)
    result = pytester.runpytest_subprocess("--ddl-strategy=parameter_server", "-rP")
    result.assert_outcomes(passed=2)
    _, common, another = result.stdout.str().split(BEGIN)
    assert not instantiated(common.partition("test_another_type")[0])
    # Otherwise TensorFlow would no longer say what this test looks for.
    assert instantiated(another)


def instantiated(output: str) -> list[str]:
    return [line for line in output.splitlines() if "CFLR::Instantiate: __wrapped__Identity" in line]
