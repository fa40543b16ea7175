"""Reading scripts and notebooks, and numbers that remember what one device would have read. No TensorFlow."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from pytest_ddl.trying import counts, synthetic
from pytest_ddl.trying.source import Source, SourceError


def notebook(path: Path, *cells: str) -> Source:
    path.write_text(json.dumps({"cells": [{"cell_type": "code", "source": cell} for cell in cells]}))
    return Source.read(path)


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
    with pytest.raises(SourceError, match=message):
        Source.read(tmp_path / name)


@pytest.mark.parametrize(
    ("code", "mentions"),
    [("s = tf.distribute.get_strategy()", True), ("# tf.distribute", False), ("model.fit(x)", False)],
)
def test_a_strategy_is_found_in_the_text(code: str, mentions: bool) -> None:
    assert Source("a.py", code).mentions_strategy is mentions


def test_numbers_of_replicas_remember_the_true_value() -> None:
    two = counts.count(2, 1, lambda: True)
    batch = 16 * two
    assert (batch, batch.true, type(batch)) == (32, 16, counts.Count)  # type: ignore[attr-defined]
    scale = 1.0 / two
    assert (scale, scale.true) == (0.5, 1.0)  # type: ignore[attr-defined]
    assert (0.1 * two / 2 == 0.1) and list(range(two)) == [0, 1] and f"{batch}" == "32"


@pytest.mark.parametrize("name", sorted(synthetic.KINDS))
def test_synthetic_data_has_two_parts_of_known_size(name: str) -> None:
    (x, y), (x_test, y_test) = synthetic.load(name, 60, {"num_words": 50})
    assert (len(x), len(y), len(x_test), len(y_test)) == (60, 60, 10, 10)
    again, _test = synthetic.load(name, 60, {"num_words": 50})
    assert np.array_equal(again[1], y)


def test_synthetic_images_have_the_type_of_the_originals() -> None:
    (x, y), _test = synthetic.load("cifar10", 6, {})
    assert (x.shape, x.dtype, y.shape) == ((6, 32, 32, 3), np.uint8, (6, 1))
