"""Every test of the suite can be collected: the main job, at the end of CI, is the first run that imports them all."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_all_of_the_suite_is_collected(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "pytest", "suites", "--collect-only", "-q", "-p", "no:cacheprovider"]
    options = ["--ddl-strategy=all", "--ddl-tier=full", f"--basetemp={tmp_path / 'base'}"]
    result = subprocess.run([*command, *options], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stdout[-4000:] + result.stderr[-4000:]
