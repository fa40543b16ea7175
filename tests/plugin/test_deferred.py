"""The pytest process with --ddl-warm imports TensorFlow and Keras only when its own code uses them."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest

pytestmark = pytest.mark.slow

pytest_plugins = ["pytester"]


def run(code: str) -> str:
    """Return what a new process prints."""
    done = subprocess.run(
        [sys.executable, "-c", "from pytest_ddl.deferred import defer\ndefer()\n" + textwrap.dedent(code)],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_attribute_imports_the_module() -> None:
    assert run("""
        import sys
        import tensorflow as tf
        print(len([name for name in sys.modules if name.startswith("tensorflow.")]))
        print(hasattr(tf, "__test__"), getattr(tf, "_mock_name", None), tf.__name__)
        print(len([name for name in sys.modules if name.startswith("tensorflow.")]))
        print(int(tf.constant(3)), tf is sys.modules["tensorflow"], type(tf).__name__, tf.__version__ > "2")
        from tensorflow.python.ops import math_ops
        print(math_ops.add is not None, tf.__spec__.loader is tf.__loader__)
    """).splitlines() == ["0", "False None tensorflow", "0", "3 True module True", "True True"]


@pytest.mark.nightly
def test_submodule_imports_its_parent_first() -> None:
    assert (
        run("""
        from tensorflow import keras
        import tensorflow
        print(type(tensorflow).__name__, keras.layers.Dense.__name__)
    """)
        == "module Dense"
    )


def test_keras_alone_is_imported_at_its_first_use() -> None:
    assert run("""
        import sys
        import keras
        print("keras.src" in sys.modules)
        print(keras.layers.Dense.__name__, "keras.src" in sys.modules)
    """).splitlines() == ["False", "Dense True"]


@pytest.mark.nightly
def test_setting_an_attribute_imports_the_module() -> None:
    assert (
        run("""
        import tensorflow as tf
        tf.mine = 1
        print(tf.mine, type(tf).__name__)
    """)
        == "1 module"
    )


@pytest.mark.nightly
def test_missing_module_is_missing_at_once() -> None:
    assert (
        run("""
        import sys
        sys.path[:] = []
        try:
            import tensorflow
        except ModuleNotFoundError as error:
            print(error)
    """)
        == "No module named 'tensorflow'"
    )


@pytest.mark.nightly
def test_failed_import_is_raised_at_each_use(tmp_path: object) -> None:
    assert (
        run(f"""
        import sys
        from pathlib import Path
        (Path({str(tmp_path)!r}) / "keras.py").write_text("raise ImportError('broken on purpose')")
        sys.path.insert(0, {str(tmp_path)!r})
        import keras
        for _ in range(2):
            try:
                keras.layers
            except ImportError as error:
                print(error)
            import keras
    """).splitlines()
        == ["broken on purpose"] * 2
    )


TEST = """
    from pathlib import Path

    import keras
    import pytest
    import tensorflow as tf

    # What a test file has beside its functions is remembered, so that a change of it is seen.
    pytestmark = pytest.mark.ddl(timeout=120)
    HERE = Path(__file__).parent

    def train(run):
        with run.strategy.scope():
            weight = tf.Variable(1.0)
        run.watch(variables=weight)
        @tf.function
        def step(iterator):
            run.strategy.run(lambda batch: weight.assign_add(0.125, read_value=False), args=(next(iterator),))
            return weight.read_value()
        for _ in run.steps(step, tf.data.Dataset.range(12).batch(4)):
            pass

    def test_in_ranks(ddl_strategy):
        assert tf.distribute.get_strategy() is not None
        assert isinstance(tf.constant(1), tf.Tensor)

    def test_from_outside(ddl_cluster):
        assert ddl_cluster.run(number) == [7]
        assert ddl_cluster.run(lambda: int(tf.constant(8))) == [8]

    def number():
        return int(tf.constant(7))
"""
CONFTEST = """
    import sys

    def pytest_unconfigure(config):
        loaded = any(name.startswith("tensorflow.") for name in sys.modules)
        print("TensorFlow was", "imported" if loaded else "deferred")
"""


@pytest.mark.nightly
def test_run_does_not_import_tensorflow(pytester: pytest.Pytester) -> None:
    pytester.makeconftest(CONFTEST)
    pytester.makepyfile(TEST)
    result = pytester.runpytest_subprocess("--ddl-strategy=mirrored", "--ddl-warm", "-s")
    result.assert_outcomes(passed=2)
    result.stdout.fnmatch_lines(["TensorFlow was deferred"])


@pytest.mark.nightly
def test_run_without_the_option_imports_tensorflow(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTEST_DDL_WARM")
    pytester.makeconftest(CONFTEST)
    pytester.makepyfile(TEST)
    result = pytester.runpytest_subprocess("--ddl-strategy=mirrored", "-s", "-k", "in_ranks")
    result.stdout.fnmatch_lines(["TensorFlow was imported"])


@pytest.mark.nightly
def test_replaced_function_is_refused_as_without_the_option(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import tensorflow as tf

        def total():
            return int(tf.reduce_sum([1, 2]))

        def test_patched(ddl_cluster, monkeypatch):
            monkeypatch.setattr(tf, "reduce_sum", lambda values: 99)
            ddl_cluster.run(total)
        """
    )
    result = pytester.runpytest_subprocess("--ddl-strategy=mirrored", "--ddl-warm")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*reduce_sum was replaced in the pytest process*"])


def test_xdist_workers_defer_too(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(TEST)
    pytester.makepyfile(
        test_loaded="""
        import sys
        import tensorflow as tf

        def test_deferred():
            assert not any(name.startswith("tensorflow.") for name in sys.modules)
        """
    )
    result = pytester.runpytest_subprocess("--ddl-strategy=mirrored", "--ddl-warm", "-n", "2")
    result.assert_outcomes(passed=3)
