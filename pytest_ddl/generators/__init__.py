"""Generate inputs for tests of distributed training: models, optimizers, batch sizes, dtypes, clusters.

Hypothesis calls these generators *strategies*; here a *strategy* is always a ``tf.distribute`` strategy.
Generated values are plain and can be pickled, so that an example from the controlling process can be
sent to every rank. Only ``build()`` imports TensorFlow, in the rank.
"""

from __future__ import annotations

from pytest_ddl.generators.faults import FaultGenerator, faults
from pytest_ddl.generators.models import ACTIVATIONS, INPUT_KINDS, OPTIMIZERS, models, optimizers
from pytest_ddl.generators.shapes import BATCH_KINDS, DTYPES, cluster_shapes, dtypes, global_batch_sizes
from pytest_ddl.generators.specs import ModelSpec, OptimizerSpec
from pytest_ddl.generators.training import TrainingSpec, trainings

__all__ = [
    "ACTIVATIONS",
    "BATCH_KINDS",
    "DTYPES",
    "INPUT_KINDS",
    "OPTIMIZERS",
    "FaultGenerator",
    "ModelSpec",
    "OptimizerSpec",
    "TrainingSpec",
    "cluster_shapes",
    "dtypes",
    "faults",
    "global_batch_sizes",
    "models",
    "optimizers",
    "trainings",
]
