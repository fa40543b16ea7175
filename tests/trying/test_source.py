"""Reading scripts and notebooks, and synthetic data, without TensorFlow."""

from __future__ import annotations

import json
import sys
from argparse import ArgumentParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from absl.flags import DEFINE_string, Error, FlagValues

from pytest_ddl.records import ErrorRecord
from pytest_ddl.trying import shell, synthetic
from pytest_ddl.trying.found import explained, told_at_exit
from pytest_ddl.trying.legacy import keras_2_name, refusal
from pytest_ddl.trying.program import exit_with_its_reason
from pytest_ddl.trying.source import Script, ScriptError


def notebook(path: Path, *cells: str) -> Script:
    path.write_text(json.dumps({"cells": [{"cell_type": "code", "source": cell} for cell in cells]}))
    return Script.read(path)


def test_a_notebook_loses_its_magics_and_keeps_its_lines(tmp_path: Path) -> None:
    source = notebook(
        tmp_path / "a.ipynb", "%load_ext x\nif True:\n    !ls\nvalue = (7\n% 4)\n", "%%bash\nrm -r /\n", "len?\n"
    )
    assert source.left_out == (
        "cell 1: %load_ext x",
        "cell 1: !ls",
        "cell 2: %%bash (the whole cell)",
        "cell 3: len?",
    )
    values: dict[str, int] = {}
    exec(source.code, values)
    assert values["value"] == 3


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.ipynb", "{}", "not a notebook"),
        ("a.ipynb", "no json", "not a notebook"),
        ("a.py", "def f(:\n", r"a.py:1 is not valid Python"),
        ("a.txt", "", "neither a Python script"),
    ],
)
def test_what_cannot_be_run_is_refused(name: str, text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(ScriptError, match=message):
        Script.read(tmp_path / name)


@pytest.mark.parametrize(
    ("code", "mentions"),
    [
        ("s = tf.distribute.MirroredStrategy()", True),
        ("with get_strategy().scope():", True),
        ("loss /= tf.distribute.get_strategy().num_replicas_in_sync", False),
        ("with tf.name_scope('a'):", False),
        ("# tf.distribute.MirroredStrategy()", False),
        ("model.fit(x)", False),
    ],
)
def test_a_strategy_is_found_in_the_text(code: str, mentions: bool) -> None:
    assert Script("a.py", code).mentions_strategy is mentions


def test_what_a_notebook_times_or_captures_runs(tmp_path: Path) -> None:
    source = notebook(
        tmp_path / "a.ipynb",
        "%%time\nseen = ['cell']\n",
        "if seen:\n    %time seen.append('line')\n",
        "%%capture out\nlast = 1",
    )
    names: dict[str, Any] = {}
    exec(source.code, names)
    assert (names["seen"], names["last"]) == (["cell", "line"], 1)
    assert source.left_out == ("cell 1: %%time", "cell 3: %%capture out")


def test_a_notebook_finds_the_names_of_ipython() -> None:
    code = (
        "from IPython import display as shown\nimport IPython.display\nfrom IPython.display import HTML, clear_output\n"
        "clear_output(wait=True)\nshown.clear_output()\ndisplay(HTML('x'))\n"
        "get_ipython().run_line_magic('matplotlib', 'inline')\nassert IPython.get_ipython() is None\n"
    )
    before = set(sys.modules)
    with shell.ipython():
        exec(code, dict(shell.NAMES))
    assert {name for name in set(sys.modules) - before if name.startswith("IPython")} == set()


def test_ipython_is_there_only_after_its_import_and_looks_new() -> None:
    """Matplotlib looks for the module and its version when it makes a figure."""
    before = set(sys.modules)
    with shell.ipython():
        assert set(sys.modules) == before
        exec("import IPython\nassert IPython.version_info[:2] >= (8, 24)\nassert IPython.__version__ >= '8'", {})
    assert not {name for name in set(sys.modules) - before if name.startswith("IPython")}


def test_a_notebook_imports_any_module_of_ipython() -> None:
    code = "from IPython.utils import io\nwith io.capture_output() as shown:\n    x = 1\nshown.show()\n"
    with shell.ipython():
        exec(code, {})
    assert "IPython.utils" not in sys.modules


def test_a_file_that_a_notebook_writes_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    exec(notebook(tmp_path / "a.ipynb", "%%writefile part.py\nVALUE = 'x'\n").code, {})
    assert (tmp_path / "part.py").read_text() == "VALUE = 'x'\n"


@pytest.mark.parametrize("name", sorted(synthetic.KINDS))
def test_synthetic_data_has_two_parts_of_known_size(name: str) -> None:
    (x, y), (x_test, y_test) = synthetic.load(name, 60, {"num_words": 50})
    assert (len(x), len(y), len(x_test), len(y_test)) == (60, 60, 10, 10)
    again, _test = synthetic.load(name, 60, {"num_words": 50})
    assert np.array_equal(again[1], y)


@pytest.mark.parametrize(
    ("code", "rows"),
    [
        ("x = x.reshape(60000, 784) / 255", 60_000),
        ("x = np.reshape(x, (60_000, 28, 28, 1))", 60_000),
        ("x_val, y_val = x[55000:], y[55000:]", 60_000),
        ("x_val = x[-10000:]", 12_000),
        ("data = data.shuffle(60000)", 12_000),
        ("x = x.reshape(100000, 10)", 12_000),
    ],
)
def test_a_script_that_names_rows_of_a_dataset_has_them(code: str, rows: int) -> None:
    """Else it fails on one device: there is nothing after row 55,000, and no shape of 60,000 rows fits."""
    (x, _), (test, _) = synthetic.load("mnist", None, {}, code)
    assert (len(x), len(test)) == (rows, rows // 6)
    assert len(synthetic.load("mnist", 60, {}, code)[0][0]) == 60


def test_trained_weights_are_drawn_and_own_ones_are_read() -> None:
    def network(shape: int, weights: str | None = "imagenet", classes: int = 3) -> tuple[Any, ...]:
        return shape, weights, classes

    told: list[str] = []
    make = synthetic._untrained("Network", network, told.append)
    assert (make(4), make(4, "imagenet", classes=5)) == ((4, None, 3), (4, None, 5))
    assert len(told) == 2
    assert (make(4, weights="own.h5"), make(4, None)) == ((4, "own.h5", 3), (4, None, 3))
    assert len(told) == 2


def test_synthetic_images_have_the_type_of_the_originals() -> None:
    (x, y), _test = synthetic.load("cifar10", 6, {})
    assert (x.shape, x.dtype, y.shape) == ((6, 32, 32, 3), np.uint8, (6, 1))


@pytest.mark.parametrize(
    ("code", "name"),
    [
        ("import tensorflow as tf\nx = tf.keras.losses.Reduction.NONE", (2, "losses.Reduction")),
        ("tf.keras.optimizers.legacy.SGD()", (1, "optimizers.legacy")),
        ("metric.reset_states()", (1, "reset_states()")),
        ("import keras\nmetric.reset_states()", None),
        ("metric.reset_state()", None),
    ],
)
def test_names_of_keras_2_are_found(code: str, name: tuple[int, str] | None) -> None:
    assert keras_2_name(code) == name


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("import os\nos.environ['KERAS_BACKEND'] = 'jax'", "backend of Keras other"),
        ("os.environ['KERAS_BACKEND'] = 'tensorflow'", None),
        ("keras.distribution.DataParallel()", "does not distribute"),
        ("# keras.distribution.DataParallel()", None),
        ("mesh = dtensor.create_mesh([('batch', 8)])", "a mesh of DTensor"),
    ],
)
def test_scripts_that_no_strategy_can_run_are_refused(code: str, reason: str | None) -> None:
    refused = refusal(code)
    assert refused is None if reason is None else refused is not None and reason in refused[1]


def raised(kind: str, message: str, wants_file: bool = False) -> ErrorRecord:
    return ErrorRecord(kind, message, "", 0, wants_file=wants_file)


def test_the_exception_about_a_variable_outside_the_scope_says_what_to_change() -> None:
    message = (
        "`colocate_vars_with` must only be passed a variable created in this tf.distribute.Strategy.scope(), not: v"
    )
    of_keras = "Mixing different tf.distribute.Strategy objects: <Mirrored> is not <Default>"
    for text in (message, of_keras):
        assert "in `with strategy.scope():`" in explained(raised("ValueError", text))
    assert explained(raised("ValueError", "other")) == "ValueError: other"


def test_a_missing_package_says_what_to_do() -> None:
    text = explained(raised("ModuleNotFoundError", "No module named 'einops'"))
    assert text.startswith("ModuleNotFoundError: No module named 'einops'. Install it in the environment")


def test_a_line_belongs_to_its_cell(tmp_path: Path) -> None:
    source = notebook(tmp_path / "a.ipynb", "first = 1\n", "second = 2\n")
    lines = source.code.splitlines()
    assert [source.cell_of(lines.index(text) + 1) for text in ("first = 1", "second = 2")] == [1, 2]


TRAINING = "model.fit(data)\n"


@pytest.mark.parametrize(
    ("failing", "later", "needed"),
    [
        ("assert len(layer.weights) == 2\n", TRAINING, False),
        ("model.save(path)\n", TRAINING, False),
        ("import hub\n", TRAINING, False),
        (TRAINING, "", True),
        ("step()\n", "", True),
        ("Loop().go()\n", "", True),
        ("data = prepared()\n", TRAINING, True),
        ("import data\n", TRAINING, True),
        ("model.compile()\n", TRAINING, True),
        ("freeze(model)\n", TRAINING, True),
        ("rate = 0.5\n", "step()\n", True),
        ("rate = 0.5\n", "print(rate)\n", False),
        ("tf.saved_model.load(path)\n", "tf.function(model.fit)()\n", False),
    ],
)
def test_a_cell_is_needed_if_it_trains_or_makes_what_is_trained(
    failing: str, later: str, needed: bool, tmp_path: Path
) -> None:
    functions = (
        "import tensorflow as tf\ndef step():\n    strategy.run(inner, rate)\n"
        "def freeze(x):\n    x.trainable = False\nclass Loop:\n    def go(self):\n        step()\n"
    )
    assert notebook(tmp_path / "a.ipynb", functions, failing, later).needs_cell(2) is needed


def test_a_file_that_is_not_in_the_empty_folder_says_what_to_give() -> None:
    absent = explained(raised("NotFoundError", "Could not find directory flowers", wants_file=True))
    assert "flowers. If a file or folder is missing: the script runs in an empty folder. " in absent
    assert absent.endswith("with --data=PATH")
    own = "No such file or directory among the known ones"
    assert explained(raised("ValueError", own)) == f"ValueError: {own}"


def test_a_script_that_ends_by_itself_says_why(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(ArgumentParser, "exit", exit_with_its_reason)
    parser = ArgumentParser(prog="train.py")
    parser.add_argument("--data-dir", required=True)
    with pytest.raises(SystemExit) as of_argparse:
        parser.parse_args([])
    assert of_argparse.value.code == 2
    said = told_at_exit(of_argparse.value)
    assert said.startswith("test_source.py:")
    assert "before it trained: train.py: error: the following arguments are required: --data-dir" in said
    assert '--args="--name=value"' in said
    assert "--data-dir" in capsys.readouterr().err


def test_a_script_that_lacks_a_flag_says_which() -> None:
    flags = FlagValues()
    DEFINE_string("model_dir", None, "folder", required=True, flag_values=flags)

    def main() -> None:
        try:
            flags(["train.py"])
        except Error:
            sys.exit(1)

    with pytest.raises(SystemExit) as ended:
        main()
    assert "Flag --model_dir must have a value" in told_at_exit(ended.value)
