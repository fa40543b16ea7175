"""Arguments of comparisons that cannot be used: one line with the name, the value and what is valid."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import pytest_ddl
from pytest_ddl.equivalence.runs.question import ArgumentError, Question, explains_arguments
from pytest_ddl.items.selection import DdlMark
from pytest_ddl.strategies.registry import StrategyRegistry


def train(run: object) -> None:
    pass


def ask(**arguments: Any) -> Question:
    registry = StrategyRegistry()
    given = {"train": train, "spec": registry.default("mirrored"), "mark": DdlMark(), **arguments}
    return Question(**given).checked(registry)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"train": 3}, "train=3 must be a function that takes the run, as in def train(run): …"),
        ({"global_batch_size": 0}, "global_batch_size=0 must be a whole number, at least 1"),
        ({"steps": True}, "steps=True must be a whole number, at least 1"),
        ({"precision": "flaot64"}, "precision='flaot64' is not one of auto, float64, native (did you mean 'float64'?)"),
        ({"timeout": "3"}, "timeout='3' must be a positive number of seconds"),
        ({"seed": -1}, "seed=-1 must be a whole number, at least 0 and below 2**32 (NumPy takes no other)"),
        ({"strict": "no"}, "strict='no' must be True or False"),
        ({"expect": None}, "expect=None must be a collection, for example expect={'cause-id': 'reason'}"),
        ({"expect": ["metric-wong"]}, "expect= names an unknown cause 'metric-wong' (did you mean 'metric-wrong'?)"),
        ({"checks": 5}, "checks=5 must be a collection, for example checks=['STEP-EQ']"),
    ],
)
def test_a_wrong_value_is_one_line(arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(ArgumentError) as caught:
        ask(**arguments)
    assert str(caught.value) == said


def test_a_similar_name_of_a_check_is_suggested() -> None:
    with pytest.raises(ArgumentError, match=r"unknown check 'step_eq' \(did you mean 'STEP-EQ'\?\); valid: RUN, "):
        ask(checks=["step_eq"])


def test_good_values_pass() -> None:
    assert ask().declared == {}
    given: dict[str, Any] = {"steps": 3, "timeout": 0.5, "seed": 0, "strict": True, "checks": {"STEP-EQ"}}
    assert ask(expect={"mirrored": {"metric-wrong": "why"}}, **given).declared == {"metric-wrong": "why"}


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda f: f(train, batch_size=3), "no argument 'batch_size' (did you mean 'global_batch_size'?); valid: glob"),
        (lambda f: f(train, setps=3), "no argument 'setps' (did you mean 'steps'?)"),
        (lambda f: f(train, 12), "takes only train by position; name 12, for example global_batch_size=12"),
        (lambda f: f(train, (np.zeros((9, 9)),)), "train(run) makes the data itself, or give this tuple to ddl_fit"),
        (lambda f: f(), "needs the training function, train(run), as its first argument"),
    ],
)
def test_a_wrong_name_of_an_argument_is_one_line(call: Callable[[Any], Any], said: str) -> None:
    explained = explains_arguments("ddl_equivalence", pytest_ddl.Equivalence.__call__)(lambda *args, **kwargs: None)
    with pytest.raises(TypeError) as caught:
        call(explained)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)
    assert explained(train, steps=3) is None


def test_check_training_explains_its_arguments() -> None:
    check: Any = pytest_ddl.check_training
    with pytest.raises(TypeError, match=r"check_training\(\) has no argument 'startegy' \(did you mean 'strategy'\?\)"):
        check(train, startegy="mirrored")
    with pytest.raises(ArgumentError, match="strategy=12 must be the name of a strategy or variant"):
        check(train, 12)
    with pytest.raises(TypeError, match="takes only train and strategy by position; name 12, for example global_batch"):
        check(train, "mirrored", 12)


def test_a_comparison_without_faults_does_not_load_them() -> None:
    code = (
        "import sys, pytest_ddl.comparisons, pytest_ddl.equivalence.runs.api\n"
        "loaded = {name for name in sys.modules if name.startswith('pytest_ddl.faults.')}\n"
        "assert loaded <= {'pytest_ddl.faults.rank'}, loaded  # a worker has the name of a variable from it"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
