"""Defects of TensorFlow and Keras that are planted on purpose, to prove that tests of the suite can fail."""

from __future__ import annotations

from suites.defects import collectives, inputs, servers, training, variables
from suites.defects.registry import DEFECTS, VARIABLE, Defect, plant_from_environment, planted

__all__ = [
    "DEFECTS",
    "VARIABLE",
    "Defect",
    "collectives",
    "inputs",
    "plant_from_environment",
    "planted",
    "servers",
    "training",
    "variables",
]
