"""Runs guarded programs in the ranks of warm clusters."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.training.conftest import in_rank as in_rank

# Ranks import the programs by name; under importmode=importlib no test folder is on the path by itself.
sys.path.insert(0, str(Path(__file__).parent))
