"""The gallery of failures shows what the current code prints, and the mended programs pass."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from pytest_ddl.equivalence.causes import CAUSES
from tests.docs.failures.page import HEAD, PAGE, check, report_of, section, sections
from tests.docs.failures.programs import FAILURES, Failure

_NUMBER = re.compile(r"[-+]?\d+(\.\d+)?(e[-+]?\d+)?")


def normalized(text: str) -> list[str]:
    """Return the words of a report without its numbers. The line breaks depend on the length of the numbers."""
    return _NUMBER.sub("N", re.sub(r"digest \w+", "digest N", text)).split()


def test_the_page_has_every_failure_with_its_program() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert page.startswith(HEAD)
    found = sections(page)
    assert list(found) == [failure.title for failure in FAILURES]
    for failure in FAILURES:
        report = found[failure.title].partition(":\n\n```\n")[2].partition("```\n")[0]
        assert found[failure.title].rstrip() == section(failure, report).rstrip()
        assert report.startswith(f"{failure.cause}: {failure.strategy}")
        assert failure.cause in CAUSES


# One run of pytest with all other plugins, and one with pytest-xdist, run for each commit.
@pytest.mark.nightly(each_commit=("initial",))
@pytest.mark.slow
@pytest.mark.usefixtures("warm_sessions")
@pytest.mark.parametrize("failure", FAILURES, ids=lambda failure: failure.cause)
def test_the_report_is_what_the_code_prints_and_the_mended_program_passes(failure: Failure, tmp_path: Path) -> None:
    result = check(failure, tmp_path, mended=False)
    assert result.returncode == 1, result.stdout + result.stderr
    shown = sections(PAGE.read_text(encoding="utf-8"))[failure.title]
    assert normalized(section(failure, report_of(result.stdout))) == normalized(shown)
    result = check(failure, tmp_path, mended=True)
    assert result.returncode == 0, result.stdout + result.stderr
