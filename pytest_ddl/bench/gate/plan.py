"""Arguments of the gate with their checks, and the comparison of the environments of two interpreters."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from pytest_ddl.bench.gate.verdict import Rule
from pytest_ddl.bench.launching.records import BenchSpec
from pytest_ddl.bench.outcome import UsageError

_ENVIRONMENT = """import os, sys
shell = ("_", "PWD", "OLDPWD", "SHLVL")
variables = sorted(item for item in os.environ.items() if item[0] not in shell)
print([sys.version, os.path.realpath(sys.prefix), sys.path, variables])
"""


@dataclass(frozen=True)
class GatePlan:
    """Arguments of :func:`gate`.

    :raises UsageError: if a value cannot be used; the message names it.
    """

    base: str
    head: str
    """Branch, tag or hash of a commit, or ``WORKTREE`` for the working tree as it is."""
    targets: tuple[str, ...]
    """Training functions: ``module:function`` or ``path/to/file.py:function``."""
    strategies: tuple[str, ...] = ("one_device",)
    """Variants. Each target is measured under each variant."""
    bench: BenchSpec = field(default_factory=BenchSpec)
    """Settings of a launch. ``blocks`` and ``seconds`` are not used, because the gate decides when blocks run."""
    margin: float = Rule.margin
    false_alarms: float = Rule.false_alarms
    launches: int = Rule.looks[-1]
    """Maximum number of launches for each cell."""
    budget: float = 180.0
    """Seconds for each cell."""
    counters_only: bool = False
    accept: Mapping[str, str] = field(default_factory=dict)
    """Counter -> reason why its change is intended."""
    base_python: str = sys.executable
    head_python: str = sys.executable
    """Interpreters of the two sides. Two different ones compare, for example, two releases of TensorFlow."""
    a_a: bool = False
    """True if BASE and HEAD may be the same version, to measure the gate itself."""
    instrument: str = "auto"
    """Origin of the pytest-ddl that measures: ``gate`` (the running one), ``version`` (the one in each version's
    folder), or ``auto``. ``auto`` means ``version`` if both versions hold a usable one, as in pytest-ddl itself."""
    paths: tuple[str, ...] = ()
    """Folders from which modules are imported, relative to the repository's root. By default they are the root, the
    folder where the gate was called, and the ``src`` in each."""
    repository: Path = Path()

    def __post_init__(self) -> None:
        if not self.targets:
            raise UsageError("no --target was given: without one there is nothing to measure")
        if not self.strategies:
            raise UsageError("no --strategy was given: without one there is nothing to measure")
        if not self.budget > 0:
            raise UsageError(f"--budget={self.budget!r} must be a positive number of seconds for each cell")
        for side, python in (("base", self.base_python), ("head", self.head_python)):
            if shutil.which(python) is None:
                raise UsageError(f"--{side}-python={python!r} is not a program that can be run")
        if self.instrument not in ("auto", "gate", "version"):
            raise UsageError(f"--instrument={self.instrument!r}; valid: auto, gate, version")
        if self.launches < Rule.looks[0]:
            raise UsageError(
                f"--max-launches={self.launches!r} must be at least {Rule.looks[0]}, to estimate their spread"
            )


def is_same_environment(one: str, other: str) -> bool:
    """Return whether both interpreters run the same code: one environment, with the same paths and variables.

    ``python``, ``python3`` and a full path can all be the same interpreter. A script that sets ``LD_LIBRARY_PATH``
    and then starts the same Python counts as another one.
    """
    if one == other:
        return True
    environment = _environment(one)
    return environment is not None and environment == _environment(other)


def _environment(python: str) -> str | None:
    """Return a description of an interpreter's environment, or ``None`` if it fails. Its side reports the failure."""
    try:
        done = subprocess.run(
            [python, "-c", _ENVIRONMENT],
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
            stdin=subprocess.DEVNULL,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout
