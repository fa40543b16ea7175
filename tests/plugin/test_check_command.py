"""``pytest-ddl check``, which compares a training function without a test file, and ``pytest-ddl --version``."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

PROGRAM = """
    import numpy as np
    import tensorflow as tf

    def right(run, scale=1.0):
        with run.strategy.scope():
            weight = tf.Variable([[1.0], [2.0]])
        run.watch(variables=[weight])
        x = np.random.default_rng(0).normal(size=(24, 2)).astype("float32")
        dataset = tf.data.Dataset.from_tensor_slices(x).batch(run.global_batch_size)

        @tf.function
        def train_step(iterator):
            def replica_step(x):
                with tf.GradientTape() as tape:
                    loss = tf.reduce_sum((x @ weight) ** 2) / run.global_batch_size
                gradient = tape.gradient(loss, weight)
                gradient = tf.distribute.get_replica_context().all_reduce("SUM", gradient)
                weight.assign_sub(0.1 * scale * gradient)
                return loss

            return run.strategy.reduce("SUM", run.strategy.run(replica_step, args=(next(iterator),)), axis=None)

        for loss in run.steps(train_step, dataset):
            pass

    def wrong(run):
        right(run, scale=float(run.num_replicas))

    SETTING = 3
"""

KERAS = """
import keras, numpy as np

def fit():
    x = np.random.default_rng(0).normal(size=(96, 4)).astype("float32")
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    return model, (x, x[:, :1])

def fit_nothing():
    return fit()[0]
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder for calls that train nothing, and so wait for no server that imports TensorFlow."""
    folder = tmp_path_factory.mktemp("folder")
    (folder / "pytest.ini").write_text("[pytest]\n")
    (folder / "train.py").write_text(dedent(PROGRAM))
    (folder / "broken.py").write_text("import not_there\ndef train(run): pass\n")
    return folder


@pytest.fixture(scope="module")
def project(new_project: Callable[..., Any]) -> Any:
    return new_project({"train.py": PROGRAM})


def call(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pytest_ddl.cli", *arguments]
    return subprocess.run(command, cwd=folder, text=True, capture_output=True, timeout=120)


def test_version_names_all_parts_without_tensorflow(tmp_path: Path) -> None:
    code = (
        "import sys\nfrom pytest_ddl.cli import main\ntry:\n    main(['--version'])\n"
        "finally:\n    assert 'tensorflow' not in sys.modules"
    )
    result = subprocess.run([sys.executable, "-c", code], text=True, capture_output=True, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    lines = result.stdout.splitlines()
    assert [line.split()[0] for line in lines] == ["pytest-ddl", "TensorFlow", "Keras", "pytest", "Python"]
    assert lines[-1].endswith(".".join(map(str, sys.version_info[:3])))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["train:rigth"], "train.py has no 'rigth' (did you mean 'right'?); its functions: right, wrong"),
        (["train.py::rigth"], "train.py has no 'rigth' (did you mean 'right'?); its functions: right, wrong"),
        (
            ["train.py:right:x"],
            "'train.py:right:x' must name a function as MODULE:FUNCTION",
        ),
        (["train.py:SETTNG"], "train.py has no 'SETTNG'"),
        (["trian.py:right"], "there is no file 'trian.py' (did you mean 'train.py'?)"),
        (["trian:right"], "there is no module 'trian' here or installed (did you mean 'train'?)"),
        (["train.py"], "for example train.py:train"),
        (["train:right", "--strategy=mirored"], "'mirored' is not a strategy (did you mean 'mirrored'?)"),
        (["train:right", "--checks=STEPEQ"], "an unknown check 'STEPEQ' (did you mean 'STEP-EQ'?)"),
        (["train:right", "--expect=metric-wong"], "an unknown cause 'metric-wong' (did you mean 'metric-wrong'?)"),
        (["train:right", "--precision=flaot64"], "not one of auto, float64, native (did you mean 'float64'?)"),
        (["train:right", "--expect=mirored:metric-wrong"], "'mirored' is not a strategy (did you mean 'mirrored'?)"),
    ],
    ids=lambda value: value[-1] if isinstance(value, list) else "",
)
def test_a_wrong_name_is_one_line_before_anything_runs(folder: Path, arguments: list[str], said: str) -> None:
    result = call(folder, "check", *arguments)
    assert result.returncode == 4
    (line,) = result.stderr.strip().splitlines()
    assert said in line
    assert result.stdout == ""


def test_a_misspelled_option_is_one_line_before_anything_runs(folder: Path) -> None:
    result = call(folder, "check", "train:right", "--stratgy=all")
    assert result.returncode == 2
    (line,) = result.stderr.strip().splitlines()
    assert "there is no option --stratgy (did you mean '--strategy'?)" in line
    assert result.stdout == ""


def test_a_file_of_another_name_and_a_class_are_not_suggested(tmp_path: Path) -> None:
    (tmp_path / "ctrlc.py").write_text("class Model: pass\ndef fit(run): pass\n")
    (line,) = call(tmp_path, "check", "train.py:fit").stderr.strip().splitlines()
    assert line.endswith("there is no file 'train.py'")
    (line,) = call(tmp_path, "check", "ctrlc.py:train").stderr.strip().splitlines()
    assert line.endswith("ctrlc.py has no 'train'; its functions: fit")


def test_a_test_is_no_training_function(folder: Path) -> None:
    (folder / "test_it.py").write_text("def test_it(ddl_equivalence):\n    ddl_equivalence(train)\n")
    result = call(folder, "check", "test_it.py:test_it")
    assert result.returncode == 4
    assert "test_it is a test, because it takes ddl_equivalence. Run it with `pytest test_it.py::" in result.stderr


@pytest.mark.parametrize("option", ["--steps=0", "--global-batch-size=many", "--timeout=-1", "--expect=a:b:c="])
def test_a_wrong_value_is_refused(folder: Path, option: str) -> None:
    result = call(folder, "check", "train:right", option)
    assert result.returncode == 2
    assert result.stderr.splitlines()[-1].startswith(f"pytest-ddl check: error: argument {option.partition('=')[0]}: ")


def test_what_cannot_be_imported_is_an_error_of_collection(folder: Path) -> None:
    result = call(folder, "check", "broken.py:train", "--strategy=mirrored")
    assert result.returncode == 4
    assert "broken.py:1: in <module>" in result.stdout
    assert "No module named 'not_there'" in result.stdout


def test_an_object_that_is_no_function_is_an_error_of_collection(folder: Path) -> None:
    (folder / "settings.py").write_text("SETTING = 3\n\ndef setting(run): pass\n")
    result = call(folder, "check", "settings:SETTING", "--ddl-strategy=mirrored", "-p", "no:cacheprovider")
    assert result.returncode == 4
    assert "settings.py:SETTING is not a function" in result.stdout


@pytest.mark.slow
def test_check_is_a_test_of_the_function(project: Any) -> None:
    options = ["--strategy=mirrored,tpu", "--global-batch-size=12", "--steps=2", "-v"]
    result = project.finish(project.start("-m", "pytest_ddl.cli", "check", "train:right", *options, python=True))
    assert (result.status, result.processes, result.files) == (0, [], []), result.stdout
    assert "train.py::right[mirrored] PASSED" in result.stdout
    assert "train.py::right[tpu] SKIPPED" in result.stdout
    assert "warning" not in result.stdout


@pytest.mark.slow
def test_a_function_that_returns_a_model_and_its_data_is_compared(project: Any) -> None:
    project.write("of_keras.py", KERAS)
    options = ["--strategy=mirrored", "--global-batch-size=12", "-v"]
    for name, status in (("fit", 0), ("fit_nothing", 1)):
        command = ["-m", "pytest_ddl.cli", "check", f"of_keras.py:{name}", *options]
        result = project.finish(project.start(*command, python=True))
        assert result.status == status, result.stdout
    assert "fit_nothing() must return a compiled Keras model and its data" in result.stdout


@pytest.mark.nightly
@pytest.mark.slow
def test_a_difference_is_shown_without_frames_of_the_plugin(project: Any) -> None:
    options = ["--strategy=mirrored,multi_worker_mirrored", "--global-batch-size=12", "--steps=2", "-n", "2"]
    options += ["--expect=multi_worker_mirrored:gradient-scaled-by-replica-count=known"]
    result = project.finish(project.start("-m", "pytest_ddl.cli", "check", "train.py:wrong", *options, python=True))
    assert (result.status, result.processes, result.files) == (1, [], []), result.stdout
    assert "2 workers [2 items]" in result.stdout
    assert "\ngradient-scaled-by-replica-count: mirrored[replicas=2] differs from one device at step 1" in result.stdout
    assert "plugin.py" not in result.stdout
    assert "1 failed, 1 passed" in result.stdout


def test_a_path_with_two_dots_names_the_same_file(folder: Path) -> None:
    beside = folder / "beside"
    beside.mkdir(exist_ok=True)
    result = call(beside, "check", "../broken.py:train", "--strategy=mirrored")
    assert "not found" not in result.stdout + result.stderr
    assert "No module named 'not_there'" in result.stdout
