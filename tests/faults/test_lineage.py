"""A program continues after the step whose values it has, whatever the number of replicas."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from pytest_ddl.records import VariableKind, VariableRecord
from pytest_ddl.training import lineage

WEIGHT = VariableRecord(0, "kernel", VariableKind.TRAINABLE, (2,), "float64")
SLOT = VariableRecord(1, "kernel_momentum", VariableKind.SLOT, (2,), "float64")


def digests(weight, slot, replicas=1):
    values = {0: (np.full(2, weight),) * replicas, 1: (np.full(2, slot),) * replicas}
    return lineage.digests((variable, values) for variable in (WEIGHT, SLOT))


KNOWN = ((0, digests(0.0, 0.0)), (1, digests(1.0, 5.0)), (2, digests(1.0, 6.0)), (3, digests(2.0, 6.0)))


@pytest.mark.parametrize(
    ("weight", "slot", "step"),
    [
        (0.0, 0.0, 0),
        (1.0, 5.0, 1),
        (1.0, 6.0, 2),
        (1.0, 9.0, 2),  # the slot is lost, and of two steps with these weights the later one counts
        (2.0, 0.0, 3),
        (np.nextafter(2.0, 3.0), 6.0, None),
    ],
)
def test_the_weights_decide_and_then_the_rest(weight, slot, step):
    assert lineage.step_of(digests(weight, slot), KNOWN) == step


def test_another_number_of_replicas_has_the_same_digests():
    assert digests(1.0, 5.0, replicas=4) == digests(1.0, 5.0)


def test_names_and_order_do_not_count():
    values = {0: (np.full(2, 5.0),), 1: (np.full(2, 1.0),)}
    others = (replace(SLOT, index=0, name="m"), replace(WEIGHT, index=1, name="kernel_1"))
    assert lineage.digests((variable, values) for variable in others) == digests(1.0, 5.0)


def test_a_program_without_weights_continues_at_no_known_step():
    assert lineage.step_of(frozenset(), KNOWN) is None


def test_a_further_step_tells_at_which_of_several_steps_with_these_weights_a_program_began():
    place = lineage.ResumedPlace(KNOWN)
    place.see(0, digests(1.0, 9.0))
    assert (place.start, place.starts) == (2, {1, 2})
    place.see(1, digests(1.0, 9.5))
    assert (place.start, place.late, place.replaced) == (1, False, 0)


def test_weights_that_are_restored_after_a_step_are_late():
    place = lineage.ResumedPlace(KNOWN)
    place.see(0, digests(0.0, 0.0))
    place.see(1, digests(2.0, 6.0))
    assert (place.start, place.late, place.replaced) == (2, True, 0)
