"""Interrupt each recipe of the documentation, and start it again: it must recover as the documentation says.

The sentences of the documentation are in ``catalogue.py``.
"""

from __future__ import annotations

import pytest

from pytest_ddl import RecoveryError
from suites.expecting import strategy_of
from suites.faults.catalogue import RECIPES
from suites.faults.training import BATCH

LOCAL_AND_WORKERS = ["mirrored", "multi_worker_mirrored"]
SWEEPS = ["chosen", "every"]
"""``chosen`` interrupts at the points of the catalogue, and ``every`` at all points that a run has."""
pytestmark = pytest.mark.parametrize("points", SWEEPS)


def recovers(ddl_equivalence, request, name, points):
    """Inject the faults of a recipe. Verdicts that its documentation allows are no failure."""
    recipe = RECIPES[name]
    faults = recipe.sweep(strategy_of(request.node), every=points == "every")
    try:
        ddl_equivalence(recipe.program, global_batch_size=BATCH, faults=faults, exact=True)
    except RecoveryError as error:
        found = [(trial.verdict.value, trial.finding and trial.finding.cause) for trial, _why in error.report.broken]
        if not all(recipe.allows(*one) for one in found):
            raise


@pytest.mark.ddl(strategies=["mirrored", "multi_worker_mirrored", "parameter_server"])
@pytest.mark.ddl_item("saving.tf_checkpoint", shows="parity")
def test_checkpoint_manager(points, ddl_equivalence, request):
    recovers(ddl_equivalence, request, "checkpoint_manager", points)


@pytest.mark.ddl(strategies=LOCAL_AND_WORKERS)
@pytest.mark.ddl_item("saving.tf_checkpoint", shows="parity")
def test_workers_tutorial(points, ddl_equivalence, request):
    recovers(ddl_equivalence, request, "workers_tutorial", points)


@pytest.mark.ddl(strategies=LOCAL_AND_WORKERS)
@pytest.mark.ddl_item("saving.tf_checkpoint", shows="parity")
def test_workers_tutorial_in_order(points, ddl_equivalence, request):
    recovers(ddl_equivalence, request, "workers_tutorial_in_order", points)


@pytest.mark.ddl(strategies="parameter_server")
@pytest.mark.ddl_item("saving.tf_checkpoint", shows="parity")
def test_coordinator_restart(points, ddl_equivalence, request):
    recovers(ddl_equivalence, request, "coordinator_restart", points)


@pytest.mark.ddl(strategies="mirrored")
@pytest.mark.ddl_item("saving.tf_checkpoint", shows="parity")
def test_saved_iterator(points, ddl_equivalence, request):
    recovers(ddl_equivalence, request, "saved_iterator", points)


@pytest.mark.ddl(strategies=LOCAL_AND_WORKERS)
@pytest.mark.ddl_item("saving.tf_checkpoint", shows="parity")
def test_distributed_iterator(points, ddl_equivalence, request):
    recovers(ddl_equivalence, request, "distributed_iterator", points)


@pytest.mark.ddl(strategies=LOCAL_AND_WORKERS)
@pytest.mark.ddl_item("failure.handler.run", "failure.numerics", shows="parity")
def test_preemption_handler(points, ddl_equivalence, request):
    recovers(ddl_equivalence, request, "preemption_handler", points)


@pytest.mark.ddl(strategies=LOCAL_AND_WORKERS)
@pytest.mark.ddl_item("failure.handler.run", shows="parity")
def test_preemption_handler_example(points, ddl_equivalence, request):
    recovers(ddl_equivalence, request, "preemption_handler_example", points)


@pytest.mark.ddl(strategies="mirrored", keras="keras")
@pytest.mark.ddl_item("callback.BackupAndRestore", shows="parity")
def test_backup_by_epoch(points, ddl_equivalence, request):
    recovers(ddl_equivalence, request, "backup_by_epoch", points)


@pytest.mark.ddl(strategies="mirrored", keras="keras")
@pytest.mark.ddl_item("callback.BackupAndRestore", shows="parity")
def test_double_backup_by_epoch(points, ddl_equivalence, request):
    recovers(ddl_equivalence, request, "double_backup_by_epoch", points)


@pytest.mark.ddl(strategies="mirrored", keras="keras")
@pytest.mark.ddl_item("callback.BackupAndRestore", shows="parity")
def test_backup_by_batch(points, ddl_equivalence, request):
    recovers(ddl_equivalence, request, "backup_by_batch", points)


@pytest.mark.ddl(strategies="mirrored", keras="keras")
@pytest.mark.ddl_item("callback.ModelCheckpoint", "saving.keras_file", shows="parity")
def test_saved_models(points, ddl_equivalence, request):
    recovers(ddl_equivalence, request, "saved_models", points)


@pytest.mark.ddl(strategies=LOCAL_AND_WORKERS, keras="tf_keras")
@pytest.mark.ddl_item("callback.BackupAndRestore", shows="parity")
def test_backup_by_epoch_of_tf_keras(points, ddl_equivalence, request):
    recovers(ddl_equivalence, request, "backup_by_epoch_of_tf_keras", points)


@pytest.mark.ddl(strategies=LOCAL_AND_WORKERS, keras="tf_keras")
@pytest.mark.ddl_item("callback.BackupAndRestore", shows="parity")
def test_backup_by_batch_of_tf_keras(points, ddl_equivalence, request):
    recovers(ddl_equivalence, request, "backup_by_batch_of_tf_keras", points)


@pytest.mark.ddl(strategies=LOCAL_AND_WORKERS, keras="tf_keras")
@pytest.mark.ddl_item("callback.ModelCheckpoint", "saving.keras_file", shows="parity")
def test_saved_models_of_tf_keras(points, ddl_equivalence, request):
    recovers(ddl_equivalence, request, "saved_models_of_tf_keras", points)
