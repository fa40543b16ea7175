"""Record the environment, working directory and import path of the pytest process, and find changes."""

from __future__ import annotations

import contextlib
import os
import sys
from dataclasses import dataclass

from pytest_ddl.cluster.protocol import Surroundings

OWN = frozenset({"PYTEST_CURRENT_TEST", "PYTEST_VERSION", "TF_CONFIG", "TMPDIR", "CUDA_VISIBLE_DEVICES"})
"""Environment variables that each process sets for itself: those of pytest, and those set when a cluster starts."""


@dataclass(frozen=True)
class Snapshot:
    """Environment, working directory and import path of this process at one time."""

    environ: dict[str, str]
    directory: str | None
    path: tuple[str, ...]

    @classmethod
    def now(cls) -> Snapshot:
        directory = None
        with contextlib.suppress(OSError):
            directory = os.getcwd()
        return cls({name: value for name, value in os.environ.items() if name not in OWN}, directory, tuple(sys.path))

    def since(self, before: Snapshot) -> Surroundings:
        """Return the differences from an earlier snapshot."""
        changed: dict[str, str | None] = {
            name: value for name, value in self.environ.items() if before.environ.get(name) != value
        }
        changed.update(dict.fromkeys(before.environ.keys() - self.environ.keys()))
        return Surroundings(
            changed,
            self.directory if self.directory != before.directory else None,
            self.path if self.path != before.path else None,
        )
