"""Train with ``Model.fit`` and its features in pairs: each strategy trains as one device does."""

from __future__ import annotations

from functools import partial

import pytest

from suites.fit_program import DIMENSIONS, PLAIN, is_allowed, train
from suites.pairwise import pairwise

BATCH = 12
"""Examples of a global batch: 2 and 3 replicas divide it."""
CASES = pairwise(DIMENSIONS, is_allowed)
SYNCHRONOUS = ["mirrored", "central_storage"]
"""Strategies that Keras 3 supports in ``fit`` on CPUs."""


def compare(ddl_equivalence, case, examples=4 * BATCH):
    ddl_equivalence(partial(train, case=case, examples=examples), global_batch_size=BATCH)


@pytest.mark.ddl(strategies="mirrored")
@pytest.mark.ddl_item(
    *("fit.fit.sgd", "fit.fit.history", "fit.fit.numpy", "fit.fit.pydataset", "fit.fit.class_sample_weight"),
    *("fit.fit.eager", "fit.fit.validation", "fit.subclass", "fit.compute_loss", "optimizer.lr_schedule"),
    shows="parity",
)
@pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(case.values()))
def test_each_pair_of_features_trains_as_on_one_device(case, ddl_equivalence):
    compare(ddl_equivalence, case)


@pytest.mark.ddl(strategies="mirrored")
@pytest.mark.ddl_item("optimizer.clipnorm", shows="parity")
@pytest.mark.parametrize("limit", ["clipnorm", "global_clipnorm", "clipvalue"])
def test_gradients_are_clipped_after_they_are_summed(limit, ddl_equivalence):
    compare(ddl_equivalence, {**PLAIN, "clipping": limit})


@pytest.mark.ddl(strategies="mirrored")
@pytest.mark.ddl_item("fit.fit.steps_per_execution", shows="parity")
@pytest.mark.parametrize("steps", ["2", "3"])
def test_several_steps_in_one_execution(steps, ddl_equivalence):
    compare(ddl_equivalence, {**PLAIN, "inputs": "dataset", "steps": steps})
