"""Compare the training of every workload under every strategy with one device."""

from __future__ import annotations

from functools import partial

import pytest

from suites.loops import train_in_a_loop, train_with_fit
from suites.workloads import WORKLOADS

BATCH = 8
NUM_EXAMPLES = {"even": 2 * BATCH, "uneven": BATCH + 5}
"""Number of examples for two steps. The last batch is full, or two replicas do not divide its size."""


ITEMS = {
    "mlp": ["layer.Dense"],
    "cnn": ["layer.Conv"],
    "embedding": ["layer.Embedding"],
    "rnn": ["layer.LSTM_GRU"],
}
"""Workload -> items that it is an example of."""
BY_WORKLOAD = [
    pytest.param(name, marks=pytest.mark.ddl_item(*ITEMS.get(name, ()), shows="parity")) for name in WORKLOADS
]


def comparable(train, name, size, **arguments):
    workload = WORKLOADS[name]
    return partial(train, workload=workload, examples=workload.load().first(NUM_EXAMPLES[size]), **arguments)


@pytest.mark.ddl_item("loop.guide", shows="parity")
@pytest.mark.parametrize("size", NUM_EXAMPLES)
@pytest.mark.parametrize("name", BY_WORKLOAD)
def test_custom_loop(name, size, ddl_equivalence):
    ddl_equivalence(comparable(train_in_a_loop, name, size), global_batch_size=BATCH)


@pytest.mark.ddl_item("fit.fit.sgd", "fit.fit.history", "fit.evaluate.uneven", shows="parity")
@pytest.mark.parametrize(("name", "size"), [*((name, "even") for name in WORKLOADS), ("mlp", "uneven")])
def test_fit(name, size, ddl_equivalence):
    ddl_equivalence(comparable(train_with_fit, name, size), global_batch_size=BATCH)


@pytest.mark.ddl_item("optimizer.build_lazily", shows="parity")
def test_optimizer_that_is_not_built(ddl_equivalence):
    ddl_equivalence(comparable(train_in_a_loop, "mlp", "even", built=False), global_batch_size=BATCH)
