"""Findings of the guard from the copies that it holds, without TensorFlow."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from pytest_ddl.guarding import guard as guard_module
from pytest_ddl.guarding.copies import Bundle, Holding
from pytest_ddl.guarding.guard import NOTHING, Guard, duplicated
from pytest_ddl.guarding.judging import Moment, in_order, of_numbers, of_variables, text_of
from pytest_ddl.records import VariableKind, VariableRecord
from pytest_ddl.training.watching import Watched

WORKER_OF_TWO = Moment(9, 2, lambda _item: 0.0)


def held(*copies: Any, kind: VariableKind = VariableKind.TRAINABLE, name: str = "w", finite: bool = True) -> Holding:
    arrays = tuple(np.asarray(copy, np.float32) for copy in copies)
    item = Watched(VariableRecord(0, name, kind, arrays[0].shape, "float32"), lambda: arrays)
    return Holding(item, Bundle((item,), alike=True, finite=finite), arrays)


def found(*variables: Holding, moment: Moment = WORKER_OF_TWO) -> list[tuple[Any, ...]]:
    findings = in_order(of_variables(variables, moment))
    return [(one.cause, one.variable, one.replica, one.worker, one.error) for one in findings]


def test_equal_copies_are_no_finding() -> None:
    assert found(held([1, 2], [1, 2], [1, 2], [1, 2])) == []
    assert found(held([1, np.nan], [1, np.nan], finite=False)) == []


def test_replicas_of_one_worker_are_told_from_workers() -> None:
    assert found(held([1.0], [1.0], [1.0], [3.0])) == [("replicas-diverged", "w", 3, 1, 2.0)]
    assert found(held([1.0], [1.0], [3.0], [3.0])) == [("workers-diverged", "w", 2, 1, 2.0)]


def test_one_finding_for_each_cause_shows_the_largest_difference() -> None:
    variables = held([1], [2], name="a"), held([1], [9], name="b"), held([1], [3], name="c")
    rate = held(0.1, 0.2, kind=VariableKind.LEARNING_RATE, name="rate")
    first, second = in_order(of_variables((*variables, rate), Moment(1, 1, lambda _item: 0.0)))
    assert (first.cause, first.variable) == ("learning-rate-differs", "rate")
    assert (second.cause, second.variable, second.others) == ("workers-diverged", "b", ("a", "c"))
    assert text_of([first, second]).startswith(
        "learning-rate-differs: rate is not the same on all workers after step 1"
    )


def test_values_before_the_first_step_have_a_cause_of_their_own() -> None:
    start = Moment(0, 2, lambda _item: 0.0)
    assert [one[0] for one in found(held([1], [2]), moment=start)] == ["initial-weights-differ"]


def test_a_tolerance_is_a_fraction_of_the_largest_value() -> None:
    near = Moment(9, 2, lambda _item: 0.01)
    assert found(held([0.0, 100.0], [0.9, 100.0]), moment=near) == []
    assert [one[0] for one in found(held([0.0, 100.0], [1.1, 100.0]), moment=near)] == ["replicas-diverged"]


def guard_of(*devices: str, steps: int) -> Any:
    strategy = SimpleNamespace(num_replicas_in_sync=len(devices), extended=SimpleNamespace(worker_devices=devices))
    # Only what decides how far copies may differ. The rest needs variables of TensorFlow.
    made: Any = Guard.__new__(Guard)
    made._tolerance, made._grows, made.steps = guard_module._usual_tolerance(strategy), True, steps
    return made


def allowed(guard: Any, kind: VariableKind = VariableKind.TRAINABLE, floating: bool = True) -> float:
    variable = SimpleNamespace(dtype=SimpleNamespace(is_floating=floating, size=4))
    item = SimpleNamespace(record=SimpleNamespace(kind=kind), variable=variable)
    return float(guard._tolerance_of(item))


@pytest.mark.slow  # for TensorFlow
def test_copies_on_gpus_may_differ_by_rounding() -> None:
    """A real job is not deterministic, and adds the gradients of an embedding in another order on each GPU."""
    on_cpus, on_gpus = (guard_of(f"/device:{kind}:0", f"/device:{kind}:1", steps=100) for kind in ("CPU", "GPU"))
    assert allowed(on_cpus) == 0.0
    ulp = float(np.spacing(np.float32(1.0)))
    assert 10 * ulp < allowed(on_gpus) < 1e-4
    assert allowed(on_gpus, VariableKind.LEARNING_RATE) == allowed(on_gpus, floating=False) == 0.0
    moment = Moment(100, 2, lambda _item: allowed(on_gpus))
    assert found(held([1.0], [1.0 + ulp]), moment=moment) == []
    assert found(held([1.0], [1.0 + ulp])) != []
    assert found(held([1.0], [1.001]), moment=moment) != []


def test_values_that_are_finite_nowhere_have_no_cause() -> None:
    assert [one[0] for one in found(held([np.inf], [np.inf]))] == [None]
    assert [one[0] for one in found(held([1.0], [np.nan]))] == ["non-finite-not-synchronised"]


def test_numbers_of_workers() -> None:
    rates = [("rate", np.array([0.1, 0.1, 0.2, 0.2]))]
    findings = in_order(of_numbers(np.array([7, 7, 8, 8]), rates, WORKER_OF_TWO))
    assert [(one.cause, one.worker) for one in findings] == [("unequal-steps", 1), ("learning-rate-differs", 1)]
    assert list(of_numbers(np.array([7, 7]), [("rate", np.array([np.nan, np.nan]))], WORKER_OF_TWO)) == []


def rows(*batches: Any) -> Any:
    made = [np.array(NOTHING) for _batch in batches]
    for row, batch in zip(made, batches, strict=True):
        row[: len(batch)] = batch
    return np.stack(made)


def test_examples_of_several_replicas() -> None:
    different = rows([1, 2, 3], [4, 5, 6])
    before = rows([7, 8, 9], [10, 11, 12])
    assert duplicated(different, before, WORKER_OF_TWO) is None
    finding = duplicated(rows([1, 2, 3], [2, 3, 4]), before, WORKER_OF_TWO)
    assert finding is not None
    assert (finding.cause, finding.replica) == ("examples-duplicated", 1)
    # One equal example of three, data that repeats itself, single examples, and batches that are not known.
    assert duplicated(rows([1, 2, 3], [3, 4, 5]), before, WORKER_OF_TWO) is None
    assert duplicated(rows([1, 2, 3], [1, 2, 3]), rows([1, 8, 9], [1, 8, 9]), WORKER_OF_TWO) is None
    assert duplicated(rows([1], [1]), rows([7], [8]), WORKER_OF_TWO) is None
    assert duplicated(rows([1, 2], [1, 2]), rows([], []), WORKER_OF_TWO) is None
