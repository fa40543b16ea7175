"""The programs that are mutated are those of ``suites/``, which is next to ``tests/``."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = str(Path(__file__).parents[2])
if ROOT not in sys.path:
    # Last, so that an installed pytest_ddl is still the one that is tested.
    sys.path.append(ROOT)
