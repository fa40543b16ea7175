"""The JSON of an evaluation: it round-trips, other commands read its matrix, and damage is reported."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pytest_ddl.bench import Matrix
from pytest_ddl.bench.evaluating.records import Evaluation, FormatError
from tests.bench.evaluating.synthetic import ONE, TWO, evaluation, identity, options


def through_json(one: Evaluation) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(json.dumps(one.as_json()))
    return found


def test_an_evaluation_comes_back_from_its_json() -> None:
    one = evaluation(failures={"tpu": {"training": "no"}})
    assert Evaluation.from_json(through_json(one)) == one


def test_others_read_the_launches_as_a_matrix() -> None:
    one = evaluation()
    matrix = Matrix.from_json(through_json(one)["matrix"])
    assert matrix.launches == one.launches
    assert matrix.skipped == {"tpu": "needs a TPU, and this machine has none"}
    assert matrix.scaling == "weak"
    assert (
        Matrix.from_json(
            evaluation(identity=identity(options=options(batch_rule="global"))).as_json()["matrix"]
        ).scaling
        == "strong"
    )


def test_launches_of_a_cell_that_failed_later_are_kept_beside_the_matrix() -> None:
    one = evaluation().with_failure(TWO.variant, "measuring", "a rank died")
    data = through_json(one)
    assert TWO.variant not in Matrix.from_json(data["matrix"]).variants
    assert data["matrix"]["failed"] == {TWO.variant: "a rank died"}
    again = Evaluation.from_json(data)
    assert sum(launch.strategy == TWO.variant for launch in again.launches) == 3


@pytest.mark.parametrize("data", [{}, [], {"format": 99}, {"format": 1}, {"format": 1, "identity": {}}])
def test_what_is_no_evaluation_is_refused(data: Any) -> None:
    with pytest.raises(FormatError):
        Evaluation.from_json(data)


def test_an_unknown_field_is_refused_with_its_place() -> None:
    data = through_json(evaluation())
    data["cells"][0]["new"] = 1
    with pytest.raises(FormatError, match=r"Evaluation.cells\[0\] has the unknown field 'new'"):
        Evaluation.from_json(data)


def test_differences_are_named_with_both_values() -> None:
    older, newer = identity(), identity(digest="def", options=options(seeds=9), versions={"tensorflow": "2.20.0"})
    assert older.differences(newer) == [
        "the program has changed",
        "seeds 5 → 9",
        "tensorflow 2.21.0 → 2.20.0",
        "python 3.11.2 → None",
    ]
    assert older.differences(identity()) == []


def test_epochs_lie_between_the_marks() -> None:
    (first, *_rest) = evaluation().curves_of(ONE.variant, ONE.batch)
    assert first.epochs[0] == (0, 4)
    assert first.epochs[-1] == (20, 24)
