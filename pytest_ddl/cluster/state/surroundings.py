"""Compare the environment, the working directory and the import path of this process at two times."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field

_OWN = frozenset({"PYTEST_CURRENT_TEST", "PYTEST_VERSION", "TF_CONFIG", "TMPDIR", "CUDA_VISIBLE_DEVICES"})
"""Environment variables that each process sets for itself: those of pytest, and those set when a cluster starts."""


@dataclass(frozen=True)
class Surroundings:
    """Changes around the pytest process since the last request. The ranks apply them before this request."""

    environ: Mapping[str, str | None] = field(default_factory=dict)
    """Changed environment variables with their new values; ``None`` for those that were removed."""
    directory: str | None = None
    """New working directory, or ``None`` if it has not changed."""
    path: tuple[str, ...] | None = None
    """New ``sys.path``, or ``None`` if it has not changed."""

    def __bool__(self) -> bool:
        return bool(self.environ) or self.directory is not None or self.path is not None


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
        return cls({name: value for name, value in os.environ.items() if name not in _OWN}, directory, tuple(sys.path))

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
