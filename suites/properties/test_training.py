"""Check that random models, optimizers and batch sizes train alike on one device and under every strategy."""

from __future__ import annotations

import pytest
from hypothesis import given, note
from hypothesis import strategies as st

from pytest_ddl import check_training, generators
from pytest_ddl.items.selection import SPEC_FIXTURE

MULTIPLE = ("mirrored", "central_storage", "multi_worker_mirrored", "parameter_server")
"""Strategies whose cluster shapes are drawn, with at most three replicas, because two cores cannot run more."""


@pytest.mark.ddl_item("loop.guide", "precision.float64", "loop.reduce_loss", shows="parity")
@given(spec=generators.trainings(), precision=st.sampled_from(["float64", "native"]))
def test_any_model_trains_alike(spec, precision, ddl_equivalence, request):
    if request.node.callspec.params[SPEC_FIXTURE].name == "model_parallel":
        pytest.skip("DTensor does not lay out every operation that a random model may have (TensorFlow 2.21)")
    arguments = {"global_batch_size": spec.batch, "precision": precision}
    note(spec.program(str(request.node.callspec.params[SPEC_FIXTURE]), precision=precision))
    ddl_equivalence(spec, **arguments)


@pytest.mark.ddl_item("loop.guide", shows="parity", under=MULTIPLE, keras=">=3.7")
@given(
    shape=generators.cluster_shapes(MULTIPLE, max_replicas=3),
    spec=generators.trainings(num_replicas=3, batches=["even", "uneven"]),
)
def test_any_cluster_trains_alike(shape, spec):
    note(spec.program(shape))
    report = check_training(spec, shape, global_batch_size=spec.batch)
    assert report.verdict != "fail", str(report)
