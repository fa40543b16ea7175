"""Every workload, trained under every strategy, against one device."""

from __future__ import annotations

from functools import partial

import pytest

from suites.loops import train_in_a_loop, train_with_fit
from suites.workloads import WORKLOADS

BATCH = 8
NUM_EXAMPLES = {"even": 3 * BATCH, "uneven": 2 * BATCH + 5}
"""Three steps; the last batch is full, or does not divide among two replicas."""


@pytest.mark.parametrize("size", NUM_EXAMPLES)
@pytest.mark.parametrize("name", WORKLOADS)
def test_custom_loop(name, size, ddl_equivalence):
    workload = WORKLOADS[name]
    examples = workload.load().first(NUM_EXAMPLES[size])
    ddl_equivalence(partial(train_in_a_loop, workload=workload, examples=examples), global_batch_size=BATCH)


@pytest.mark.parametrize("size", NUM_EXAMPLES)
@pytest.mark.parametrize("name", WORKLOADS)
def test_fit(name, size, ddl_equivalence):
    workload = WORKLOADS[name]
    examples = workload.load().first(NUM_EXAMPLES[size])
    ddl_equivalence(partial(train_with_fit, workload=workload, examples=examples), global_batch_size=BATCH)
