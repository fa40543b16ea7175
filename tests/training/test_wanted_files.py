"""Exceptions about files that do not exist are known by their class, never by their text."""

from __future__ import annotations

from pathlib import Path

import pytest
import tensorflow as tf

from pytest_ddl.training.execute import error_record


def wrapped():
    try:
        Path("absent").read_text()
    except FileNotFoundError as error:
        raise ValueError("give the data") from error


def replaced():
    try:
        Path("absent").read_text()
    except OSError:
        raise ValueError("run download.py first")  # noqa: B904


def hidden():
    try:
        Path("absent").read_text()
    except OSError:
        raise ValueError("the data is not known") from None


def refused():
    raise ValueError("No such file or directory among the known ones")


def recovered():
    try:
        Path("absent").read_text()
    except OSError:
        refused()  # an error of what is done without the file


@pytest.mark.parametrize(
    ("raises", "expected"),
    [
        (lambda: Path("absent").read_text(), True),
        (lambda: tf.io.read_file("absent"), True),
        (wrapped, True),
        (replaced, True),
        (hidden, False),
        (refused, False),
        (recovered, False),
        (lambda: Path("/dev/null/absent").read_text(), False),
    ],
    ids=["open", "tensorflow", "wrapped", "replaced", "hidden", "text", "recovered", "other-errno"],
)
def test_a_file_that_does_not_exist_is_known_by_the_class_of_its_exception(raises, expected):
    with pytest.raises((OSError, ValueError, tf.errors.NotFoundError)) as failure:
        raises()
    assert error_record(failure.value).wants_file is expected
