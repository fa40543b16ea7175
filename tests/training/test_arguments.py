"""The examples of a step are the parts of the iterator's element, whatever else the program passes to its replicas."""

from __future__ import annotations

import argument_programs as programs
import pytest

from pytest_ddl.step_records import BatchOrigin

GIVEN = {"global_batch_size": 8, "steps": 2}
ELEMENT, DERIVED, ARGUMENT = BatchOrigin.ELEMENT, BatchOrigin.DERIVED, BatchOrigin.ARGUMENT


@pytest.mark.parametrize(
    ("program", "origins", "columns"),
    [
        (programs.in_graph, [ELEMENT], 2),
        (programs.by_name, [ELEMENT], 2),
        (programs.through_functions, [ELEMENT], 2),
        (programs.eagerly, [ELEMENT], 2),
        (programs.in_a_loop, [ELEMENT] * 2, 2),
        (programs.teacher, [ELEMENT] * 2, 2),
        (programs.augmented, [ELEMENT, DERIVED], 2),
        (programs.uneven_parts, [ELEMENT], 2),
    ],
    ids=lambda given: getattr(given, "__name__", None),
)
def test_examples_are_the_parts_of_the_element(ranks, program, origins, columns):
    for name, size in (("one_device", 8), ("mirrored", 4)):
        (record,) = ranks(name, program, **GIVEN)
        for replica in range(8 // size):
            batches = [batch for batch in record.steps[0].batches if batch.replica == replica]
            assert [batch.origin for batch in batches] == origins
            assert {batch.size for batch in batches} == {size}
            assert {len(batch.columns) for batch in batches} == {columns}


def test_without_an_iterator_no_argument_is_known_to_be_examples(ranks):
    (record,) = ranks("mirrored", programs.own_data, **GIVEN)
    assert [(batch.origin, batch.size) for batch in record.steps[0].batches] == [(ARGUMENT, 2)] * 2
