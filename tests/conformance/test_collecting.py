"""Checks that an object gets, objects that are refused, and outcomes of a check."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import keras
import numpy as np
import pytest

from pytest_ddl.conformance import CONFORMANCE_CHECKS, Case, Tags, layers, parametrize_with_ddl_checks
from pytest_ddl.conformance.bench import Planned, RankAnswer
from pytest_ddl.conformance.cases import PLAN
from pytest_ddl.conformance.collecting import planned
from pytest_ddl.conformance.comparing import MismatchError
from pytest_ddl.conformance.registry import Subject
from pytest_ddl.strategies.registry import StrategyRegistry
from pytest_ddl.strategies.spec import Capabilities
from tests.conformance.planted import DrawsTheSame, KeepsLocalState

MEAN = keras.metrics.Mean()


def checks_of(*factories: Any, **expected: str) -> list[Planned]:
    """Collect a test in this process."""

    @parametrize_with_ddl_checks(factories, expected_failures=expected)
    def test(ddl_check: Any) -> None: ...

    return planned(getattr(test, PLAN), lambda function, *given: function(*given), ["mirrored", "central_storage"])


def names_of(factory: Any) -> set[str]:
    return {one.check.name for one in checks_of(factory)}


def the_mean() -> Any:
    return MEAN


class Unused:
    pass


class Refuses(keras.layers.Layer):
    def call(self, inputs: Any) -> Any:
        raise ValueError("no inputs please\nmore text")


@pytest.mark.parametrize(
    ("factories", "expected", "message"),
    [
        ([], {}, "the list of factories is empty"),
        ([MEAN], {}, r"must be a function without arguments that makes the object.*write lambda"),
        ([the_mean], {}, "the_mean: the factory returns the same object twice"),
        ([Unused], {}, r"Unused: a .*Unused is no layer, metric, loss, optimizer or callback of Keras; valid: Case"),
        ([lambda: 1 / 0], {}, "<lambda>: the factory raises ZeroDivisionError: division by zero$"),
        ([Refuses], {}, "Refuses: this layer cannot be used .* so give data= in a Case: ValueError:"),
        ([keras.metrics.Mean], {"metric_of_parts": "why"}, "no check 'metric_of_parts'.*did you mean 'metric_of_"),
        ([keras.metrics.Mean], {"mirored:metric_of_uneven_parts": "why"}, "no strategy 'mirored'.*did you mean 'mirr"),
        ([keras.metrics.Mean], {"loss_of_parts": "why"}, "does not apply to the objects of the test; those that do: m"),
        ([keras.metrics.Mean], {"metric_of_uneven_parts": ""}, "must map the name of a check to a reason"),
    ],
)
def test_a_mistake_has_a_message_in_one_line(factories: Sequence[Any], expected: dict[str, str], message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        checks_of(*factories, **expected)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"kind": "model"}, "kind='model' is not one of layer, metric"),
        ({"tags": {"random": True}}, r"must be pytest_ddl.conformance.Tags\(\.\.\.\)"),
        ({"data": [1]}, "must be a function of a number of examples"),
        ({"expected_failures": ["metric_of_parts"]}, "must map names of checks to reasons"),
    ],
)
def test_a_wrong_argument_of_a_case_is_named(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Case(keras.metrics.Mean, **arguments)


def test_an_expected_failure_of_a_case_must_apply_to_it() -> None:
    with pytest.raises(ValueError, match="this check does not apply to Mean; those that do: metric_"):
        checks_of(Case(keras.metrics.Mean, expected_failures={"loss_of_parts": "why"}), keras.losses.MeanSquaredError)


@pytest.mark.parametrize(
    ("factory", "kind", "found"),
    [
        (lambda: keras.layers.Dense(2), "layer", Tags(random=False, state=False)),
        (DrawsTheSame, "layer", Tags(random=True, state=False)),
        (lambda: keras.layers.Dropout(0.5), "layer", Tags(random=True, state=False)),
        (KeepsLocalState, "layer", Tags(random=False, state=True)),
        (keras.metrics.Mean, "metric", Tags(sample_weights=True)),
        (keras.losses.MeanSquaredError, "loss", Tags(sample_weights=True)),
        (Case(lambda: keras.losses.mean_squared_error, kind="loss"), "loss", Tags(sample_weights=False)),
        (keras.optimizers.SGD, "optimizer", Tags(sparse_gradients=True)),
        (keras.callbacks.Callback, "callback", Tags()),
    ],
)
def test_kind_and_tags_are_found(factory: Any, kind: str, found: Tags) -> None:
    subject = checks_of(factory)[0].subject
    assert subject.kind == kind
    assert subject.tags == found.over(subject.tags)
    assert subject.precision == "float64"


def test_the_data_fit_the_object() -> None:
    shapes = {
        factory: [np.shape(one) for one in checks_of(factory)[0].subject.arrays(6)]
        for factory in (
            keras.metrics.Mean,
            keras.metrics.SparseCategoricalAccuracy,
            keras.layers.GlobalAveragePooling1D,
            keras.layers.GlobalAveragePooling2D,
        )
    }
    assert list(shapes.values()) == [[(6, 3)], [(6,), (6, 4)], [(6, 5, 4)], [(6, 6, 6, 3)]]


def test_declared_tags_decide() -> None:
    batch = Case(lambda: keras.layers.Dense(2), tags=Tags(needs_whole_batch=True, random=True))
    assert "layer_in_training" in names_of(lambda: keras.layers.Dense(2))
    assert names_of(batch) == {
        "layer_draws_of_replicas",
        "layer_draws_after_a_seed",
        "layer_from_its_configuration",
    }


def test_objects_of_the_same_name_get_a_number() -> None:
    found = checks_of(keras.optimizers.SGD, keras.optimizers.SGD, Case(keras.optimizers.SGD, name="plain"))
    assert list(dict.fromkeys(one.id.partition("-")[0] for one in found)) == ["SGD", "SGD2", "plain"]


def outcome(answers: list[RankAnswer], expected: dict[str, str] | None = None, **capabilities: bool) -> str:
    """Return the message of a check that gets answers, and how it ends."""
    subject = Subject(keras.metrics.Mean, "Mean", "metric", "keras", "float64", Tags())
    one = Planned(CONFORMANCE_CHECKS["callback_logs"], subject, expected or {})
    call: Callable[..., Any] = lambda *_given: answers  # noqa: E731
    try:
        one.run(StrategyRegistry().default("mirrored"), Capabilities(**capabilities), call, call)
    except (pytest.fail.Exception, pytest.skip.Exception, pytest.xfail.Exception) as ended:
        return f"{type(ended).__name__}: {ended}"
    return "passed"


def test_the_outcome_of_a_check() -> None:
    right, wrong = RankAnswer(SimpleNamespace(logs=[])), RankAnswer(problem="the result is 2, and 1")
    assert outcome([right, right]) == "passed"
    assert "Mean: callback_logs under mirrored[replicas=2]: the result is 2, and 1 (rank 1 of 2)" in outcome(
        [right, wrong]
    )
    assert outcome([RankAnswer(skipped="no fit")]) == "Skipped: callback_logs: no fit"
    assert outcome([wrong], {"": "known"}) == "XFailed: known"
    assert outcome([wrong], {"mirrored": "here", "": "known"}) == "XFailed: here"
    assert "the result is 2, and 1" in outcome([wrong], {"central_storage": "elsewhere"})
    assert "passes under mirrored[replicas=2], and expected_failures says that it fails: 'known'" in outcome(
        [right], {"mirrored": "known"}
    )
    assert outcome([right], {"central_storage": "elsewhere"}) == "passed"
    assert "Skipped: callback_logs: mirrored has no replicas that take" in outcome([right], coordinator=True)


def test_what_the_ranks_returned_is_compared() -> None:
    ranks = [RankAnswer(SimpleNamespace(logs=[("on_epoch_end 0", {"loss": loss})])) for loss in (1.0, 2.0)]
    assert "the logs of on_epoch_end 0 are {'loss': 2.0} on rank 1, and {'loss': 1.0} on rank 0" in outcome(ranks)


def test_a_mismatch_says_what_differs() -> None:
    from pytest_ddl.conformance.comparing import compare

    compare("the result", [1.0, np.nan], [1.0 + 1e-7, np.nan], 1e-6)
    for found, wanted, message in (
        (2.0, 1.0, r"the result is 2, and 1 on one device with all examples \(2 times as much\)"),
        ([1.0], [1.0, 2.0], "the result has 1 values, and 2 on one device"),
        (np.ones(3), np.ones(2), r"the result has the shape \(3,\), and \(2,\)"),
        (np.arange(9.0), np.arange(9.0) + 1, r"is \[0 1 2 3 \.\.\.\], and \[1 2 3 4 \.\.\.\] on one device"),
        ({"a": 1, "b": 2}, {"a": 1, "b": 3}, "the result is 2, and 3"),
    ):
        with pytest.raises(MismatchError, match=message):
            compare("the result", found, wanted, 1e-6)


@pytest.mark.parametrize(("by", "differs"), [(1e-7, False), (0.1, True)])
def test_a_layer_may_round_otherwise_after_the_same_seed(
    by: float, differs: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a GPU, not each kernel gives the same bits twice. Other random numbers differ by far more."""
    runs = iter((7.0, 7.0 * (1 + by), 8.0))
    monkeypatch.setattr(layers, "_draws", lambda *_given: [[np.full(4, next(runs), np.float32)]])
    given: Any = None
    with pytest.raises(MismatchError) if differs else contextlib.nullcontext():
        layers.layer_draws_after_a_seed(given, given)
