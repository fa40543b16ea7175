"""``run.fit``, ``run.evaluate`` and ``run.predict``, with Keras 3 and tf_keras."""

from __future__ import annotations

import numpy as np
import pytest
import training_programs as programs

from pytest_ddl.training.fitting import RUNNING_MEAN

pytestmark = pytest.mark.slow

SLOW = pytest.mark.slow


@pytest.mark.nightly
@pytest.mark.parametrize("strategy", ["mirrored", "central_storage"])
def test_fit_is_recorded_batch_by_batch(ranks, strategy):
    (reference,) = ranks("one_device", programs.fits, global_batch_size=8)
    for record in ranks(strategy, programs.fits, global_batch_size=8):
        assert len(record.steps) == len(reference.steps) == 8
        assert record.steps[0].values[RUNNING_MEAN] == record.steps[0].loss
        assert "mae" in record.steps[0].values
        assert len(record.results["fit"]["loss"]) == 2
        assert len(record.results["evaluate"]) == 2
        assert record.results["predict"].shape == (16, 1)
        for expected, step in zip(reference.steps, record.steps, strict=True):
            np.testing.assert_allclose(step.snapshot[0][0], expected.snapshot[0][0], rtol=1e-4)
        assert sum(batch.size for batch in record.steps[0].batches) in (4, 8)


def test_fit_ends_at_the_limit(ranks):
    (record,) = ranks("mirrored", programs.fits, global_batch_size=8, steps=5)
    assert len(record.steps) == 5


@pytest.mark.nightly
def test_fit_takes_arrays(ranks):
    (record,) = ranks("mirrored", programs.fits_arrays, global_batch_size=8, precision="float64")
    assert len(record.steps) == 4
    assert record.steps[0].snapshot[0][0].dtype == np.float64


def test_keras_3_cannot_fit_under_multi_worker_mirrored(records):
    """A limit of Keras 3.15.1, which the record must report in Keras' own words."""
    for record in records("multi_worker_mirrored", programs.fits, global_batch_size=8):
        assert record.error.type == "ValueError"
        assert "Attempt to convert a value (PerReplica:{" in record.error.message


@pytest.mark.nightly(each_commit=("mirrored",))
@pytest.mark.parametrize(
    "strategy", ["one_device", pytest.param("mirrored", marks=SLOW), pytest.param("multi_worker_mirrored", marks=SLOW)]
)
def test_fit_of_tf_keras(ranks, strategy):
    for record in ranks(strategy, programs.fits_tf_keras, global_batch_size=8):
        assert len(record.steps) == 8
        assert set(record.results["evaluate"]) == {"loss", "mae"}


@pytest.mark.nightly
def test_fit_under_parameter_server(ranks, records):
    (record,) = ranks("parameter_server", programs.fits_tf_keras_epochs, global_batch_size=8)
    assert len(record.steps) == 2
    assert any("is recorded by epochs" in note for note in record.notes)
    (keras_3,) = records("parameter_server", programs.fits, global_batch_size=8)
    assert "ClusterCoordinator.create_per_worker_dataset" in keras_3.error.message


@pytest.mark.nightly
def test_layers_that_fit_builds_leave_pythons_generator_alike_under_a_strategy(ranks):
    drawn = []
    for strategy in ("one_device", "mirrored"):
        (record,) = ranks(strategy, programs.lazily_built_by_tf_keras, global_batch_size=8)
        drawn.append(record.results["value"]["drawn"])
    assert drawn[0] == drawn[1]
