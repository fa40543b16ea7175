"""Defects of TensorFlow and Keras that are planted on purpose, to prove that tests of the suite can fail."""

from __future__ import annotations

from suites.defects import (
    collectives,
    dtensor,
    fitting,
    images,
    inputs,
    layers,
    masks,
    parameters,
    precision,
    printing,
    refusals,
    saving,
    servers,
    training,
    utilities,
    variables,
)
from suites.defects.registry import DEFECTS, VARIABLE, Defect, plant_from_environment, planted

__all__ = [
    "DEFECTS",
    "VARIABLE",
    "Defect",
    "collectives",
    "dtensor",
    "fitting",
    "images",
    "inputs",
    "layers",
    "masks",
    "parameters",
    "plant_from_environment",
    "planted",
    "precision",
    "printing",
    "refusals",
    "saving",
    "servers",
    "training",
    "utilities",
    "variables",
]
