"""The list of fires is complete, and its page in the docs is current."""

from __future__ import annotations

import pytest

from tests.fire.page import PAGE, page
from tests.fire.registry import CASES, PHASES


def test_the_page_is_current() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "run python -m tests.fire.page"


def test_no_case_is_listed_twice() -> None:
    names = [(fire.target, fire.signal, phase) for fire, phase in CASES]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("number", ["SIGKILL", "SIGSTOP"])
@pytest.mark.parametrize("target", ["pytest process", "zygote", "rank"])
def test_every_phase_is_struck(target: str, number: str) -> None:
    # Before a cluster starts, there are no ranks.
    expected = set(PHASES) - ({"start of the zygote"} if target == "rank" else set())
    assert {phase for fire, phase in CASES if (fire.target, fire.signal) == (target, number)} == expected
