"""Steps of a coordinator that overlap: each example is used once, and staleness is counted."""

from __future__ import annotations

from typing import Any

import pytest
import training_programs as programs

from pytest_ddl.training import adapter
from pytest_ddl.training.coordinator import STALENESS


@pytest.mark.slow
def test_overlapping_steps_use_each_batch_once(ranks) -> None:
    (record,) = ranks("parameter_server", programs.overlaps, global_batch_size=8, overlap=True, staleness=True)
    assert len(record.steps) == 12
    assert all(step.loss is not None for step in record.steps)
    # Each loop waits for its steps, so no step outlasts more than the others of its loop.
    lengths = [5] * 5 + [5] * 5 + [2] * 2
    for length, step in zip(lengths, record.steps, strict=True):
        assert step.values[STALENESS] in range(length)


@pytest.mark.slow
def test_one_worker_has_no_stale_step(ranks) -> None:
    (record,) = ranks(
        "parameter_server[workers=1]", programs.overlaps, global_batch_size=8, overlap=True, staleness=True
    )
    assert [step.values[STALENESS] for step in record.steps] == [0.0] * 12


def test_staleness_is_counted_only_if_asked_for(ranks) -> None:
    (record,) = ranks("parameter_server", programs.overlaps, global_batch_size=8, overlap=True)
    assert len(record.steps) == 12
    assert not any(STALENESS in step.values for step in record.steps)


def test_synchronous_strategies_ignore_it(ranks) -> None:
    (record,) = ranks("one_device", programs.overlaps, global_batch_size=8, overlap=True, staleness=True)
    assert len(record.steps) == 12
    assert all(step.snapshot for step in record.steps)
    assert not any(STALENESS in step.values for step in record.steps)


def test_nothing_is_exported_where_functions_run_at_the_same_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """The export waits for the functions of all threads with the interpreter's lock, which one of them may need."""
    import tensorflow as tf

    def fails() -> None:
        raise AssertionError("exported")

    monkeypatch.setattr(adapter.module_of("eager.context", "export_run_metadata"), "export_run_metadata", fails)
    seen: list[Any] = []
    function = tf.function(lambda value: value + 1)
    with adapter.executed_functions(lambda graph, parts: seen.append(parts), with_parts=False) as is_possible:
        assert int(function(tf.constant(1))) == 2
    assert is_possible
    assert seen == [[]]
    with (
        pytest.raises(AssertionError, match="exported"),
        adapter.executed_functions(lambda graph, parts: seen.append(parts)),
    ):
        tf.function(lambda value: value + 2)(tf.constant(1))
