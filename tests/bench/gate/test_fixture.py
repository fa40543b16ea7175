"""The fixture ``ddl_gate`` and the option ``--ddl-gate``, short of a measurement."""

from __future__ import annotations

import pytest

from pytest_ddl.config import parse_range

TEST = "def test_speed(ddl_gate):\n    {body}\n"


@pytest.fixture
def suite(pytester: pytest.Pytester) -> pytest.Pytester:
    pytester.makepyfile(test_speed=TEST.format(body="ddl_gate('training:train')"), test_other="def test_other(): ...")
    return pytester


def test_without_versions_it_is_skipped(suite: pytest.Pytester) -> None:
    result = suite.runpytest_subprocess("-rs", "-p", "no:xdist", "test_speed.py")
    result.assert_outcomes(skipped=1)
    result.stdout.fnmatch_lines(["*--ddl-gate=BASE..HEAD was not given*"])


def test_an_option_that_measures_nothing_is_an_error(suite: pytest.Pytester) -> None:
    result = suite.runpytest_subprocess("--ddl-gate=main..topic", "-p", "no:xdist", "test_other.py")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*no selected test has the fixture ddl_gate, so nothing is measured*"])


def test_a_test_that_never_calls_it_fails(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(TEST.format(body="pass"))
    result = pytester.runpytest_subprocess("--ddl-gate=main..topic", "-p", "no:xdist")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*never called it, so nothing was measured*"])


def test_what_cannot_be_gated_fails_with_the_reason(suite: pytest.Pytester) -> None:
    suite.run("git", "init", "-q", ".")
    result = suite.runpytest_subprocess("--ddl-gate=main..topic", "-p", "no:xdist", "test_speed.py")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*ddl_gate: 'main' is no commit of*"])


def test_ranges() -> None:
    assert parse_range("main..WORKTREE") == "main..WORKTREE"
    for text in ("main", "..main", "main..", "main...topic", " .. "):
        with pytest.raises(ValueError, match=r"BASE\.\.HEAD"):
            parse_range(text)
