"""List the observers of a run, which have one file each."""

from __future__ import annotations

from pytest_ddl.training.observer import Observer
from pytest_ddl.training.observers.assignments import Assignments
from pytest_ddl.training.observers.attributes import Attributes
from pytest_ddl.training.observers.casts import Casts
from pytest_ddl.training.observers.checkpoints import CheckpointObserver
from pytest_ddl.training.observers.collectives import CollectiveObserver
from pytest_ddl.training.observers.draws import Draws
from pytest_ddl.training.observers.generators import Generators
from pytest_ddl.training.observers.gradients import GradientObserver
from pytest_ddl.training.observers.graphs import GraphObserver
from pytest_ddl.training.observers.lines import LineObserver
from pytest_ddl.training.observers.reads import Reads
from pytest_ddl.training.observers.reductions import ReductionObserver
from pytest_ddl.training.observers.setup import Setup
from pytest_ddl.training.observers.writes import WriteObserver

OBSERVERS: tuple[type[Observer], ...] = (
    Setup,
    CollectiveObserver,
    GraphObserver,
    Casts,
    ReductionObserver,
    GradientObserver,
    Reads,
    Draws,
    Generators,
    WriteObserver,
    CheckpointObserver,
    Assignments,
    Attributes,
    LineObserver,
)
"""Observers of a run. To add an observer, add a file and one entry here."""
