"""The work of one check is counted. It may rise only together with the numbers in ``counted_work.json``.

Seconds differ from machine to machine and from hour to hour. Counts do not, so a rise of a few percent is seen in one
run. Whoever must raise a number says in the commit what the users get for it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

KNOWN: Mapping[str, Mapping[str, int]] = json.loads(Path(__file__).with_name("counted_work.json").read_text())
SLACK = 1.25
"""Maximum ratio of a known number to the counted one. Bytes depend a little on the lengths of paths."""


@pytest.fixture(scope="module")
def counts() -> Mapping[str, Mapping[str, int]]:
    script = Path(__file__).with_name("counted_work.py")
    # A file that each rank compiles anew is no work of a check.
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    done = subprocess.run([sys.executable, script, *KNOWN], capture_output=True, text=True, timeout=200, env=environ)
    assert done.returncode == 0, done.stderr
    found: Mapping[str, Mapping[str, int]] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.slow
@pytest.mark.parametrize("strategy", KNOWN)
def test_a_check_does_no_more_than_is_known(strategy: str, counts: Mapping[str, Mapping[str, int]]) -> None:
    assert differing(counts[strategy], KNOWN[strategy]) == {}


def differing(counts: Mapping[str, int], known: Mapping[str, int]) -> dict[str, str]:
    """Return what to do about each count that is larger than the known one, or much smaller."""
    more = {name: f"{count} is more than {known[name]}" for name, count in counts.items() if count > known[name]}
    less = {name: f"lower it to {count}" for name, count in counts.items() if known[name] > SLACK * count}
    return more | less


def test_more_work_and_much_less_work_are_reported() -> None:
    known = {"runs": 2, "bytes sent": 3000, "processes started": 0}
    assert differing({"runs": 2, "bytes sent": 2900, "processes started": 0}, known) == {}
    assert set(differing({"runs": 3, "bytes sent": 2000, "processes started": 1}, known)) == set(known)
