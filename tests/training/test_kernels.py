"""A run on a GPU is deterministic, and is repeated without if an operation has no deterministic kernel."""

from __future__ import annotations

from functools import partial

import determinism_programs as programs
import pytest

pytestmark = pytest.mark.slow


def test_operations_are_deterministic_on_a_gpu_and_nowhere_else(in_rank, ranks):
    ((record, afterwards),) = in_rank("one_device", partial(programs.as_on_a_gpu, programs.deterministic))
    assert record.steps[0].values == {"deterministic": 1.0}
    assert record.facts["device"] == "gpu"
    assert "not_deterministic" not in record.facts
    assert not afterwards
    (record,) = ranks("one_device", programs.deterministic)
    assert record.steps[0].values == {"deterministic": 0.0}
    assert "device" not in record.facts


@pytest.mark.parametrize("program", [programs.without_a_kernel, programs.draws_without_a_seed])
def test_a_program_that_determinism_stops_runs_without_it(program, in_rank):
    ((record, afterwards),) = in_rank("one_device", partial(programs.as_on_a_gpu, program))
    assert record.error is None
    assert record.steps[0].values == {"deterministic": 0.0}
    assert record.facts["not_deterministic"]
    assert not afterwards


def test_another_error_does_not_repeat_the_program(in_rank):
    ((record, _afterwards),) = in_rank("one_device", partial(programs.as_on_a_gpu, programs.fails_anyway))
    assert record.error.message == "deterministic: True"


def test_an_error_that_does_not_need_determinism_is_reported(in_rank):
    ((record, _afterwards),) = in_rank("one_device", partial(programs.as_on_a_gpu, programs.never_implemented))
    assert "deterministic: False" in record.error.message
    assert "not_deterministic" not in record.facts
