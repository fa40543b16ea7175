"""The process with the NumPy backend of Keras, with which tests of the suite compare TensorFlow."""

from __future__ import annotations

import math
import os
import subprocess
from types import ModuleType

import numpy as np
import pytest

from suites.backends import known, numpy_backend
from suites.backends.answers import Answer, answer_of
from suites.backends.differences import difference
from suites.backends.known import Difference
from suites.backends.numpy_backend import NumpyBackend
from suites.backends.stand_in import Lacking, _Modules
from suites.known_failures import REPROS


@pytest.mark.slow
def test_the_process_answers_until_it_is_closed():
    backend = NumpyBackend()
    try:
        assert backend.ready == Answer("numpy")
        assert backend.ask(os.getenv, "KERAS_BACKEND") == Answer("numpy")
        assert backend.ask(math.sqrt, 4.0) == Answer(2.0)
        assert backend.ask(math.sqrt, -1.0).error == "ValueError"
        assert backend.ask(print, "what is printed is no answer") == Answer(None)
        with pytest.raises(RuntimeError, match="ended without an answer"):
            backend.ask(os._exit, 0)
    finally:
        backend.close()
    assert backend.ended()


def _silent(monkeypatch: pytest.MonkeyPatch, deadline: float) -> None:
    """Let the process be one that waits for its input and says nothing."""
    start = subprocess.Popen

    def popen(_command: object, **options: object) -> object:
        return start(["cat"], **{**options, "stdout": subprocess.PIPE})

    monkeypatch.setattr(numpy_backend.subprocess, "Popen", popen)
    monkeypatch.setattr(numpy_backend, "IMPORT_DEADLINE", deadline)


def test_a_process_without_an_answer_is_ended(monkeypatch):
    _silent(monkeypatch, 0.0)
    with pytest.raises(RuntimeError, match="gave no answer"):
        NumpyBackend()


def test_what_needs_jax_says_so():
    answer = answer_of(Lacking("jax").lax.conv, 1)
    assert (answer.error, answer.lacks) == ("NotImplementedError", True)


@pytest.mark.parametrize(
    ("found", "wanted", "what"),
    [
        (np.float32([1, 2]), np.float32([1, 2]), ""),
        (np.float32([1, 2]), np.float32([1, 2.1]), "value"),
        (np.float32([1, np.nan]), np.float32([1, np.nan]), ""),
        (np.float32([1, np.nan]), np.float32([1, np.inf]), "value"),
        (np.float16([1, 2]), np.float16([1, 2.002]), ""),
        (np.int32([1000000]), np.int32([1000001]), "value"),
        (np.float32([1, 2]), np.float16([1, 2]), "dtype"),
        (np.float32([1, 2]), np.float32([[1, 2]]), "shape"),
        ([np.float32([1])], np.float32([1]), ""),
        ([np.float32([1])] * 2, [np.float32([1])], "structure"),
    ],
)
def test_answers_are_compared(found, wanted, what):
    assert difference(Answer(found), Answer(wanted), ())[0] == what


def test_what_only_one_backend_refuses():
    refused, value = Answer(error="ValueError", text="no"), Answer(np.float32([1]))
    assert difference(refused, value, ())[0] == "refused"
    assert difference(value, refused, ()) == ("", "")


def test_numbers_that_cancel_leave_their_rounding_errors():
    one, other = Answer(np.float32([1e-4])), Answer(np.float32([1.01e-4]))
    assert difference(one, other, ())[0] == "value"
    assert difference(one, other, (), 1.0)[0] == ""


def test_scipy_takes_no_number_for_one_of_jax():
    module = ModuleType("jax")
    _Modules().exec_module(module)
    assert not issubclass(np.ndarray, module.Array)


def test_a_row_explains_what_it_names_only():
    row = Difference("value", ("abs",), ("rank 0 & float16", "empty"), "because")
    assert row.explains("abs", "value", {"rank 0", "float16", "x"})
    assert row.explains("abs", "value", {"empty"})
    assert not row.explains("abs", "value", {"rank 0"})
    assert not row.explains("abs", "shape", {"empty"})
    assert not row.explains("add", "value", {"empty"})


def test_each_row_has_a_reason_and_a_program_that_exists():
    rows = known._read()["difference"]
    assert all(row["reason"].strip("?") and row["when"] and row["operations"] for row in rows)
    assert {f"{name}.py" for name in known.programs()} <= {path.name for path in REPROS.glob("*.py")}
