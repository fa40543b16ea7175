"""The way of a comparison: how many files the judge visits until a program passes. The budget may only shrink."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import pytest

import pytest_ddl.equivalence
from tests.lab import golden

ROOM = Path(pytest_ddl.equivalence.__file__).parent
MOST = 33
"""Files besides those of single checks. More than this makes the verdict of an ordinary program hard to follow."""


def visited(call: Callable[[], object]) -> set[str]:
    """Return the files of the room in which a call runs a function, without those of single checks."""
    files: set[str] = set()
    before = sys.getprofile()

    def note(frame: FrameType, event: str, _arg: object) -> None:
        if event == "call" and frame.f_code.co_name != "<module>":
            files.add(frame.f_code.co_filename)

    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(before)
    inside = (Path(file).relative_to(ROOM).as_posix() for file in files if file.startswith(f"{ROOM}/"))
    return {file for file in inside if not file.startswith("checks/")}


@pytest.mark.parametrize("name", ["mlp_loop_even@mirrored#0"])
def test_few_files_lead_to_a_pass(name: str) -> None:
    pair = golden.load(golden.RECORDS / f"{name}{golden.SUFFIX}")
    assert pair.judged().passed
    files = visited(pair.judged)
    assert len(files) <= MOST, "\n".join(sorted(files))
