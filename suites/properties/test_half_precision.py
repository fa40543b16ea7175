"""Give losses and metrics many large examples in 16 bits, and compare with the same numbers in more bits."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from suites.parameters.spaces import Arguments, Space, Wrong
from suites.tables.loss_values import LOSSES, examples
from suites.tables.metric_values import MEASURES

ROWS, TIMES = 2100, 2
"""Float16 counts to 2048, and bfloat16 to 256."""
LARGE = 64.0
"""Factor of numbers that are no probabilities: squares of their differences are no numbers of float16."""
PROBABLE = (0.02, 0.98)
"""No logarithm is large, and 16 bits do not round these numbers to 0 or 1."""
ROUNDING = {"mixed_float16": 2.0**-11, "mixed_bfloat16": 2.0**-8}
BOUND = 3e-5
"""Relative bound of a result in float32: some thousand roundings of 6e-8, of which most are not in one direction."""


@pytest.fixture(params=ROUNDING)
def policy(request: pytest.FixtureRequest) -> Iterator[str]:
    """Make it the policy of all layers, as programs do."""
    from suites.subject import keras

    before = keras.mixed_precision.dtype_policy()
    keras.mixed_precision.set_dtype_policy(request.param)
    yield request.param
    keras.mixed_precision.set_dtype_policy(before)


def cases_of(space: Space) -> list[Arguments]:
    """Return one case for each form of the data; other parameters change nothing in how numbers are rounded."""
    found: dict[Any, Arguments] = {}
    for case in space.cases():
        own = {name: value for name, value in case.items() if name not in ("name", "dtype", "reduction")}
        found.setdefault((case.get("from_logits"), case.get("axis")), own)
    return list(found.values())


def in_16_bits(kind: str, policy: str, case: Arguments, *, flat: bool) -> tuple[Any, Any]:
    """Return labels and predictions. Labels that are no whole numbers have 16 bits, too."""
    import tensorflow as tf

    form = {"logits": case.get("from_logits", False), "axis": case.get("axis", -1), "flat": flat}
    truth, predicted = examples("sparse" if kind == "ids" else kind, ROWS, **form)
    if kind in ("binary", "classes", "one_of", "sparse") and not form["logits"]:
        predicted = np.clip(predicted, *PROBABLE)
    if kind in ("real", "positive", "signs"):
        truth, predicted = truth * (1 if kind == "signs" else LARGE), predicted * LARGE
    if kind == "ids":
        return truth, predicted.argmax(axis=-1)
    typed = policy.removeprefix("mixed_")
    return tf.cast(truth, typed) if truth.dtype.kind == "f" else truth, tf.cast(predicted, typed)


def widened(values: Any, dtype: str) -> Any:
    """Return the same numbers in more bits."""
    return values if isinstance(values, np.ndarray) else np.asarray(values).astype(dtype)


@pytest.mark.ddl(strategies=["one_device"])
@pytest.mark.ddl_item("precision.mixed_float16", "precision.mixed_bfloat16", "loss.reductions")
@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: loss.space.name)
def test_a_loss_of_16_bits_is_that_of_the_same_numbers_in_64(loss, policy, ddl_strategy):
    """The loss itself has precision float32. The gradient has the precision of the predictions."""
    import tensorflow as tf

    def result(made: Any, truth: Any, predicted: Any) -> tuple[float, Any]:
        given = tf.convert_to_tensor(predicted)
        with tf.GradientTape() as tape:
            tape.watch(given)
            value = made(truth, given)
            # The gradient of one element of a mean is too small for float16; programs scale their loss.
            scaled = tf.cast(value, "float64") * ROWS * TIMES
        return float(value), np.asarray(tf.cast(tape.gradient(scaled, given), "float64"))

    wrong = Wrong()
    for case in cases_of(loss.space):
        with wrong.of(case):
            truth, predicted = in_16_bits(loss.data, policy, case, flat=False)
            value, slopes = result(loss.space.make(case), truth, predicted)
            more = widened(truth, "float64"), widened(predicted, "float64")
            expected, its_slopes = result(loss.space.make({**case, "dtype": "float64"}), *more)
            assert value == pytest.approx(expected, rel=BOUND, abs=BOUND)
            atol = 4 * ROUNDING[policy] * np.abs(its_slopes).max()
            np.testing.assert_allclose(slopes, its_slopes, rtol=0, atol=atol)
    wrong.check()


@pytest.mark.ddl(strategies=["one_device"])
@pytest.mark.ddl_item("precision.mixed_float16", "precision.mixed_bfloat16", "metric.Mean")
@pytest.mark.parametrize("measure", MEASURES, ids=lambda measure: measure.space.name)
def test_a_metric_of_16_bits_is_that_of_the_same_numbers_in_32(measure, policy, ddl_strategy):
    """The state has float32, which is the type of both."""
    wrong, flat = Wrong(), measure.flat or measure.data in ("ids", "one_output")
    for case in cases_of(measure.space):
        with wrong.of(case):
            kind = "real" if measure.data == "one_output" else measure.data
            given = in_16_bits(kind, policy, case, flat=flat)
            if measure.data == "one_output":
                given = given[0][:, :1], given[1][:, :1]
            results = []
            for truth, predicted in (given, tuple(widened(one, "float32") for one in given)):
                metric = measure.space.make(case)
                for _ in range(2):
                    metric.update_state(truth, predicted)
                results.append(np.asarray(metric.result()))
            np.testing.assert_allclose(*results, rtol=BOUND, atol=BOUND)
    wrong.check()
