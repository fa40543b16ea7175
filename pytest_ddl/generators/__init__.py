"""Hypothesis generators of what distributed training varies over: models, optimizers, batch sizes, dtypes, clusters.

Hypothesis calls these *strategies*; here a *strategy* is always a ``tf.distribute`` one. Values are
plain and picklable, so that an example drawn in the controlling process can be sent to every rank;
TensorFlow is imported only by ``build()``, in the rank.
"""

from __future__ import annotations

from pytest_ddl.generators.batches import BATCH_KINDS, global_batch_sizes
from pytest_ddl.generators.clusters import cluster_shapes
from pytest_ddl.generators.dtypes import DTYPES, dtypes
from pytest_ddl.generators.models import ACTIVATIONS, INPUT_KINDS, models
from pytest_ddl.generators.optimizers import OPTIMIZERS, optimizers
from pytest_ddl.generators.specs import ModelSpec, OptimizerSpec
from pytest_ddl.generators.training import TrainingSpec, trainings

__all__ = [
    "ACTIVATIONS",
    "BATCH_KINDS",
    "DTYPES",
    "INPUT_KINDS",
    "OPTIMIZERS",
    "ModelSpec",
    "OptimizerSpec",
    "TrainingSpec",
    "cluster_shapes",
    "dtypes",
    "global_batch_sizes",
    "models",
    "optimizers",
    "trainings",
]
