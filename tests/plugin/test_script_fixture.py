"""``ddl_script``: a training script is compared as it is, as one test of a project."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.slow

TRAIN = """
    import argparse
    import keras, numpy as np, tensorflow as tf

    class Own(keras.Sequential):
        def train_step(self, data):
            x, y = data
            with tf.GradientTape() as tape:
                error = tf.reduce_mean(tf.square(self(x, training=True) - y))
                loss = options.factor * error
                if options.divide:
                    loss /= tf.distribute.get_strategy().num_replicas_in_sync
            self.optimizer.apply(tape.gradient(loss, self.trainable_variables), self.trainable_variables)
            return {"error": error}

    parser = argparse.ArgumentParser()
    parser.add_argument("--factor", type=float, default=1.0)
    parser.add_argument("--divide", action="store_true")
    options = parser.parse_args()
    x = np.loadtxt("table.csv", dtype="float32", ndmin=2)
    model = Own([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(0.1))
    model.fit(x, x[:, :1], batch_size=8, epochs=2)
"""

TESTS = """
    def test_right(ddl_script):
        report = ddl_script("train.py", args=["--divide"], data=["table.csv"], steps=2)
        assert report.passed and report.distributed.num_steps == 2

    def test_intended(ddl_script):
        intended = {"gradient-scaled-by-replica-count": "a sum is intended here"}
        ddl_script("train.py", args=["--factor=2"], data=["table.csv"], steps=2, expect=intended)

    def test_wrong(ddl_script):
        ddl_script("train.py", data=["table.csv"], steps=2)

    def test_undecided(ddl_script):
        ddl_script("nothing.py")

    def test_no_file(ddl_script):
        ddl_script("none.py")

    def test_a_typing_mistake(ddl_script):
        ddl_script("train.py", arg=[])

    def test_nothing_is_compared(ddl_script):
        pass
"""


def test_scripts_are_compared_as_tests(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(train=TRAIN, nothing="print('no training')")
    pytester.makefile(".csv", table="\n".join(f"{row / 8} {row % 3}" for row in range(32)))
    (pytester.mkdir("tests") / "test_project.py").write_text("\n".join(line[4:] for line in TESTS.splitlines()))
    pytester.makeini("[pytest]\n")
    result = pytester.runpytest_subprocess("-p", "no:cacheprovider", "--ddl-strategy=mirrored", "tests", timeout=300)
    result.assert_outcomes(passed=2, failed=5)
    for line in (
        "*DivergenceError: gradient-scaled-by-replica-count: *",
        "*undecided: no training step was seen*",
        "*there is no file *none.py*",
        "*ddl_script() has no argument 'arg' (did you mean 'args'?)*",
        "*the test asked for ddl_script and never called it, so nothing was compared*",
        "models:       Own 'own'",
    ):
        result.stdout.fnmatch_lines([line])
