"""Lets the tests of the checks share their simulator: ``--import-mode=importlib`` adds no path of its own."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
