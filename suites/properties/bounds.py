"""Bound what a call does without a clock, so that an endless loop ends the same way on every machine."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any


@contextmanager
def at_most_calls(number: int) -> Iterator[None]:
    """End the body with an ``AssertionError`` when it calls more functions of Python than this.

    The number does not depend on the load of the machine, as a time limit would.
    """
    left = number

    def count(frame: FrameType, event: str, argument: Any) -> None:
        nonlocal left
        left -= event == "call"
        if left < 0:
            raise AssertionError(f"more than {number} calls: {frame.f_code.co_name} goes on for ever")

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        yield
    finally:
        sys.setprofile(before)
