"""What the gate is asked for."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from pytest_ddl.bench.gate.verdict import Rule
from pytest_ddl.bench.gate.worktrees import GateUsageError
from pytest_ddl.bench.spec import BenchSpec


@dataclass(frozen=True)
class GatePlan:
    """What :func:`gate` is asked for.

    :raises GateUsageError: for a value that cannot be used, naming it.
    """

    base: str
    """Branch, tag or hash of a commit."""
    head: str
    """Likewise, or ``WORKTREE`` for the working tree as it is."""
    targets: tuple[str, ...]
    """Training functions: ``module:function`` or ``path/to/file.py:function``."""
    strategies: tuple[str, ...] = ("one_device",)
    """Variants; each target is measured under each."""
    bench: BenchSpec = field(default_factory=BenchSpec)
    """How a launch is measured; ``blocks`` and ``seconds`` are the gate's own affair."""
    margin: float = Rule.margin
    false_alarms: float = Rule.false_alarms
    launches: int = Rule.looks[-1]
    """At most so many for a cell."""
    budget: float = 180.0
    """Seconds for a cell."""
    counters_only: bool = False
    accept: Mapping[str, str] = field(default_factory=dict)
    """Counter -> why its change is wanted."""
    base_python: str = sys.executable
    head_python: str = sys.executable
    """Interpreters of the sides: two releases of TensorFlow are compared by giving two."""
    a_a: bool = False
    """BASE and HEAD may be the same: the gate itself is measured."""
    instrument: str = "auto"
    """Whose pytest-ddl measures: ``gate`` (the one that is running), ``version`` (the one in each version's
    folder), or ``auto``: the latter in the project pytest-ddl itself."""
    paths: tuple[str, ...] = ()
    """Folders, relative to the repository's root, that modules are imported from; by default the root, the
    folder where the gate was called, and the ``src`` in each."""
    repository: Path = Path()

    def __post_init__(self) -> None:
        if not self.targets:
            raise GateUsageError("no --target was given: without one there is nothing to measure")
        if not self.strategies:
            raise GateUsageError("no --strategy was given: without one there is nothing to measure")
        if not self.budget > 0:
            raise GateUsageError(f"--budget={self.budget!r} must be a positive number of seconds for each cell")
        for side, python in (("base", self.base_python), ("head", self.head_python)):
            if shutil.which(python) is None:
                raise GateUsageError(f"--{side}-python={python!r} is no program that can be run")
        if self.instrument not in ("auto", "gate", "version"):
            raise GateUsageError(f"--instrument={self.instrument!r}; valid: auto, gate, version")
        if self.launches < Rule.looks[0]:
            raise GateUsageError(
                f"--max-launches={self.launches!r} must be at least {Rule.looks[0]}: fewer do not tell their own spread"
            )
