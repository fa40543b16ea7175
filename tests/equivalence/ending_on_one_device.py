"""Programs whose process ends on one device."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import equivalence_programs


def once(run, file):
    """End the first process that runs this on one device."""
    if run.is_reference and not Path(file).exists():
        Path(file).touch()
        os.kill(os.getpid(), signal.SIGSEGV)
    equivalence_programs.right(run)


def always(run):
    if run.is_reference:
        os.kill(os.getpid(), signal.SIGSEGV)
    equivalence_programs.right(run)


def always_and_raises_under_a_strategy(run):
    always(run)
    raise ValueError("planted")
