"""pytest-cov shows as executed what ranks have executed."""

from __future__ import annotations

import pytest

MODULE = """
    def build():
        import keras
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
        return model

    def data():
        import numpy as np
        x = np.random.default_rng(0).normal(size=(48, 4)).astype("float32")
        return x, x[:, :1]

    def in_rank():
        total = 1
        return total + 2
"""
TESTS = """
    import own

    def test_in_a_training_function(ddl_fit):
        ddl_fit(own.build, own.data, batch_size=12)

    def test_in_a_rank(ddl_strategy):
        assert own.in_rank() == 3
"""


@pytest.mark.slow
@pytest.mark.parametrize("options", [(), ("-n", "2")], ids=["alone", "xdist"])
def test_lines_that_only_ranks_execute_are_covered(options: tuple[str, ...], pytester: pytest.Pytester) -> None:
    pytest.importorskip("pytest_cov")
    pytester.makepyfile(own=MODULE, test_own=TESTS)
    pytester.makeini("[pytest]\n")
    given = ("-p", "no:cacheprovider", "--ddl-strategy=mirrored", "--cov=own", "--cov-report=term", *options)
    result = pytester.runpytest_subprocess(*given, timeout=300)
    result.assert_outcomes(passed=2)
    result.stdout.fnmatch_lines(["own.py*100%*"])
    assert [path.name for path in pytester.path.glob(".coverage*")] == [".coverage"]
