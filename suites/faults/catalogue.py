"""List the recipes of recovery: the program, the sentence of the documentation, and the points of its interruptions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pytest_ddl import Sweep
from suites.faults import fits, loops

WORKERS = "multi_worker_mirrored"
SERVERS = "parameter_server"
EXACT = "exact"


@dataclass(frozen=True)
class Recipe:
    """Way to save and restore a training that the documentation describes."""

    program: Callable[[Any], None]
    strategies: tuple[str, ...]
    sentence: str
    """Sentence of the documentation that says what the recipe does."""
    link: str
    points: tuple[str, ...]
    """Points at which the chief is interrupted by default. The full tier interrupts every task at every point."""
    kind: str = "kill"
    """Kind of the fault. A handler of notices needs ``term``."""
    keras: str = ""
    """Package of Keras that the recipe is about, or an empty text for the one that is tested."""
    verdicts: tuple[str, ...] = (EXACT,)
    """Verdicts that the documentation allows. With others than ``exact``, it says itself what is lost."""
    causes: tuple[str, ...] = ()
    """Causes that the verdict ``diverged`` may have."""
    name: str = ""

    def sweep(self, strategy: str, every: bool = False) -> Sweep:
        """Return the faults to inject under a strategy."""
        if every:
            # A notice is handled between steps: to give it in a write of a save that another notice began says nothing.
            return Sweep(kind=self.kind, phases=["training", "step"] if self.kind == "term" else Sweep.phases)
        chief = "chief:0" if strategy == SERVERS else "worker:0"
        return Sweep(kind=self.kind, points=self.points, tasks=[chief])

    def allows(self, verdict: str, cause: str | None) -> bool:
        """Return whether a verdict keeps what the documentation says."""
        return verdict == EXACT or (verdict in self.verdicts and (verdict != "diverged" or cause in self.causes))


_GUIDE = "https://www.tensorflow.org/guide/"
_TUTORIALS = "https://www.tensorflow.org/tutorials/distribute/"
_HANDLER = "https://www.tensorflow.org/api_docs/python/tf/distribute/experimental/PreemptionCheckpointHandler"
_BACKUP = "https://keras.io/api/callbacks/backup_and_restore/"
_STATE = (
    "If training restarts before completion, the training state (which includes the `Model` weights and epoch number) "
    "is restored to the most recently saved state at the beginning of a new `Model.fit` run."
)
_STEP = (
    "Once the jobs get interrupted and restarted, the `BackupAndRestore` callback restores the last checkpoint, and "
    "you can continue training from the beginning of the epoch and step at which the training state was last saved."
)
_MODELS = (
    "`ModelCheckpoint` callback is used in conjunction with training using `model.fit()` to save a model or weights "
    "(in a checkpoint file) at some interval, so the model or weights can be loaded later to continue the training "
    "from the state saved."
)
_BY_EPOCH = ("before step 5", "before save 2", "after save 1", "in save 2, write 8")

RECIPES = {
    name: Recipe(**given, name=name)
    for name, given in {
        "checkpoint_manager": {
            "program": loops.checkpoint_manager,
            "strategies": ("mirrored", WORKERS, SERVERS),
            "sentence": "This enables you to recover them in the event of a program/machine failure during training.",
            "link": f"{_GUIDE}migrate/fault_tolerance",
            "points": ("before step 4", "in save 2, write 3", "after save 2", "before restore 1"),
        },
        "workers_tutorial": {
            "program": loops.workers_tutorial,
            "strategies": ("mirrored", WORKERS),
            "sentence": "Resume our CTL training",
            "link": f"{_TUTORIALS}multi_worker_with_ctl",
            "points": ("after step 2", "after save 1", "after step 5"),
        },
        "workers_tutorial_in_order": {
            "program": loops.workers_tutorial_in_order,
            "strategies": ("mirrored", WORKERS),
            "sentence": "Resume our CTL training",
            "link": f"{_TUTORIALS}multi_worker_with_ctl",
            "points": ("after step 2", "after save 1", "after step 5"),
        },
        "coordinator_restart": {
            "program": loops.coordinator_restart,
            "strategies": (SERVERS,),
            "sentence": "The training progress can be inferred approximately from `optimizer.iterations` if an "
            "optimizer is checkpointed",
            "link": f"{_TUTORIALS}parameter_server_training",
            "points": ("before step 5", "in save 2, write 3", "after save 1", "before restore 1"),
        },
        "saved_iterator": {
            "program": loops.saved_iterator,
            # With several workers, a kill may find saves of different steps, and the guide says nothing about workers.
            "strategies": ("mirrored",),
            "sentence": "In addition to checkpointing the model variables, you can also checkpoint the progress of the "
            "dataset iterator.",
            "link": f"{_GUIDE}data",
            "points": ("after step 5", "in save 2, write 2", "after save 1", "before restore 1"),
        },
        "distributed_iterator": {
            "program": loops.distributed_iterator,
            "strategies": ("mirrored", WORKERS),
            "sentence": "In addition to checkpointing the model variables, you can also checkpoint the progress of the "
            "dataset iterator.",
            "link": f"{_GUIDE}data",
            "points": ("after step 5",),
        },
        "preemption_handler": {
            "program": loops.preemption_handler,
            "strategies": ("mirrored", WORKERS),
            "sentence": "If receiving a signal, the next time the worker executes `PreemptionCheckpointHandler.run`, "
            "the `PreemptionCheckpointHandler` will align all workers to save a checkpoint.",
            "link": _HANDLER,
            "points": ("after step 2", "after step 4"),
            "kind": "term",
        },
        "preemption_handler_example": {
            "program": loops.preemption_handler_example,
            "strategies": ("mirrored", WORKERS),
            # The example makes the iterator again. What the tutorial says of another callback holds here too.
            "sentence": "The distributed dataset iterator state will be re-initialized and not restored.",
            "link": f"{_TUTORIALS}multi_worker_with_keras",
            "points": ("after step 4",),
            "kind": "term",
            "verdicts": ("examples", "diverged"),
            "causes": ("resume-data-wrong",),
        },
        "backup_by_epoch": {
            "program": fits.backup_by_epoch,
            "strategies": ("mirrored",),
            "sentence": _STATE,
            "link": _BACKUP,
            "points": _BY_EPOCH,
            "keras": "keras",
        },
        "double_backup_by_epoch": {
            "program": fits.double_backup_by_epoch,
            "strategies": ("mirrored",),
            "sentence": "After interruption if current state can't be loaded due to IO error (e.g. file corrupted) it "
            "will try to restore previous one.",
            "link": _BACKUP,
            "points": _BY_EPOCH,
            "keras": "keras",
        },
        "backup_by_batch": {
            "program": fits.backup_by_batch,
            "strategies": ("mirrored",),
            "sentence": _STEP,
            "link": f"{_TUTORIALS}multi_worker_with_keras",
            "points": ("before step 2", "before step 4", "after save 1", "before restore 1"),
            "keras": "keras",
        },
        "saved_models": {
            "program": fits.saved_models,
            "strategies": ("mirrored",),
            "sentence": _MODELS,
            "link": "https://keras.io/api/callbacks/model_checkpoint/",
            "points": ("before step 5", "in save 2, write 4", "after save 1"),
            "keras": "keras",
        },
        "backup_by_epoch_of_tf_keras": {
            "program": fits.backup_by_epoch,
            "strategies": ("mirrored", WORKERS),
            "sentence": _STATE,
            "link": "https://www.tensorflow.org/versions/r2.15/api_docs/python/tf/keras/callbacks/BackupAndRestore",
            "points": ("before step 5", "in save 2, write 4", "after save 1"),
            "keras": "tf_keras",
        },
        "backup_by_batch_of_tf_keras": {
            "program": fits.backup_by_batch,
            "strategies": ("mirrored", WORKERS),
            "sentence": "The distributed dataset iterator state will be re-initialized and not restored.",
            "link": f"{_TUTORIALS}multi_worker_with_keras",
            "points": ("before step 2", "before step 4", "after save 1"),
            "keras": "tf_keras",
            "verdicts": ("examples",),
        },
        "saved_models_of_tf_keras": {
            "program": fits.saved_models,
            "strategies": ("mirrored", WORKERS),
            "sentence": _MODELS,
            "link": "https://www.tensorflow.org/versions/r2.15/api_docs/python/tf/keras/callbacks/ModelCheckpoint",
            "points": ("before step 5", "after step 3"),
            "keras": "tf_keras",
        },
    }.items()
}
"""Name -> recipe. ``test_recipes.py`` has a test for each."""
