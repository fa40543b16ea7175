"""The fixture ``ddl_gate`` and the option ``--ddl-gate``, short of a measurement."""

from __future__ import annotations

import pytest

from pytest_ddl.bench.gate import gating
from pytest_ddl.option_values import parse_range

pytestmark = pytest.mark.slow

NOTHING = "*no test called ddl_gate and came to a verdict, so nothing was compared*"
STANDS_IN = """
import pytest
from pytest_ddl.bench.gate import gating
from pytest_ddl.bench.gate.verdict import Verdict

def gate_in_test(versions, root, target, strategies, **options):
    verdict = Verdict(target)
    if verdict in (Verdict.PASS, Verdict.IMPROVEMENT):
        return type("Result", (), {"verdict": verdict})
    raise gating.GateFailedError("the report", verdict)

gating.gate_in_test = gate_in_test
"""
"""Code of a conftest with a gate that returns a given verdict at once."""
TEST = "def test_speed(ddl_gate):\n    {body}\n"


@pytest.fixture(autouse=True)
def own_gate(monkeypatch: pytest.MonkeyPatch) -> None:
    """Put the gate back that a conftest has replaced in this process."""
    monkeypatch.setattr(gating, "gate_in_test", gating.gate_in_test)


def run(pytester: pytest.Pytester, *arguments: str) -> pytest.RunResult:
    """Run pytest in this process, or over processes of pytest-xdist. Hypothesis is imported at the end of each run."""
    if "-n" in arguments:
        return pytester.runpytest_subprocess("-p", "no:hypothesispytest", *arguments)
    return pytester.runpytest_inprocess("-p", "no:hypothesispytest", "-p", "no:xdist", *arguments)


@pytest.fixture
def suite(pytester: pytest.Pytester) -> pytest.Pytester:
    pytester.makepyfile(test_speed=TEST.format(body="ddl_gate('training:train')"), test_other="def test_other(): ...")
    return pytester


def test_without_versions_it_is_skipped(suite: pytest.Pytester) -> None:
    result = run(suite, "-rs", "test_speed.py")
    result.assert_outcomes(skipped=1)
    result.stdout.fnmatch_lines(["*--ddl-gate=BASE..HEAD was not given*"])


def test_an_option_that_measures_nothing_is_an_error(suite: pytest.Pytester) -> None:
    result = run(suite, "--ddl-gate=main..topic", "test_other.py")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*no selected test has the fixture ddl_gate, so nothing is measured*"])


def test_a_test_that_never_calls_it_fails(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(TEST.format(body="pass"))
    result = run(pytester, "--ddl-gate=main..topic")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*never called it, so nothing was measured*"])


def test_what_cannot_be_gated_fails_with_the_reason(suite: pytest.Pytester) -> None:
    suite.run("git", "init", "-q", ".")
    result = run(suite, "--ddl-gate=main..topic", "test_speed.py")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*ddl_gate: 'main' is no commit of*"])


PROCESSES = pytest.mark.parametrize("processes", [pytest.param([], id="one"), pytest.param(["-n", "2"], id="xdist")])
"""Number of processes: under xdist the workers measure, and the controller gives the exit status."""


# What is a verdict is decided where the test runs. Under xdist, the controller learns that there was none.
@pytest.mark.parametrize(
    ("processes", "mark", "body"),
    [
        *(
            pytest.param([], mark, body)
            for mark, body in [
                ("skipif(True, reason='not here')", "ddl_gate('pass')"),
                ("xfail(run=False)", "ddl_gate('pass')"),
                ("xfail", "raise ValueError"),
                ("xfail", "ddl_gate('inconclusive')"),
                ("xfail", "ddl_gate('could not measure')"),
                ("filterwarnings", "pytest.skip('not now')"),
            ]
        ),
        (["-n", "2"], "xfail(run=False)", "ddl_gate('pass')"),
        (["-n", "2"], "xfail", "ddl_gate('inconclusive')"),
    ],
)
def test_a_run_whose_tests_came_to_no_verdict_fails(
    pytester: pytest.Pytester, processes: list[str], mark: str, body: str
) -> None:
    pytester.makeconftest(STANDS_IN)
    test = TEST.format(body=body)
    pytester.makepyfile(test_speed=f"import pytest\n@pytest.mark.{mark}\n{test}", test_other="def test_other(): ...")
    result = run(pytester, "--ddl-gate=main..topic", *processes)
    assert result.parseoutcomes()["passed"] == 1
    assert "failed" not in result.parseoutcomes()
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([NOTHING])


@PROCESSES
@pytest.mark.parametrize("verdict", ["pass", "improvement"])
def test_a_run_with_one_verdict_passes(pytester: pytest.Pytester, processes: list[str], verdict: str) -> None:
    pytester.makeconftest(STANDS_IN)
    skipped = "import pytest\n@pytest.mark.skip\ndef test_skipped(ddl_gate): ...\n"
    pytester.makepyfile(test_speed=skipped + TEST.format(body=f"assert ddl_gate({verdict!r}).verdict == {verdict!r}"))
    result = run(pytester, "--ddl-gate=main..topic", *processes)
    result.assert_outcomes(passed=1, skipped=1)
    assert result.ret == pytest.ExitCode.OK
    result.stderr.no_fnmatch_line(NOTHING)


@PROCESSES
def test_a_regression_fails_and_is_reported_alone(pytester: pytest.Pytester, processes: list[str]) -> None:
    pytester.makeconftest(STANDS_IN)
    pytester.makepyfile(TEST.format(body="ddl_gate('regression')"))
    result = run(pytester, "--ddl-gate=main..topic", *processes)
    result.assert_outcomes(failed=1)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stderr.no_fnmatch_line(NOTHING)


def test_without_a_gated_test_xdist_says_so_too(suite: pytest.Pytester) -> None:
    result = run(suite, "--ddl-gate=main..topic", "-n", "1", "test_other.py")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([NOTHING])
    assert "INTERNALERROR" not in result.stdout.str() + result.stderr.str()


def test_what_a_conftest_deselects_last_was_not_measured(suite: pytest.Pytester) -> None:
    suite.makeconftest(
        """
        import pytest

        @pytest.hookimpl(wrapper=True)
        def pytest_collection_modifyitems(items):
            yield
            items[:] = [item for item in items if "ddl_gate" not in item.fixturenames]
        """
    )
    result = run(suite, "--ddl-gate=main..topic")
    result.assert_outcomes(passed=1)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([NOTHING])


def test_a_plan_measures_nothing(suite: pytest.Pytester) -> None:
    result = run(suite, "--ddl-gate=main..topic", "--setup-plan", "test_speed.py")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([NOTHING])


@pytest.mark.parametrize("show", [["--collect-only"], ["--collect-only", "-n", "2"], ["--fixtures"], ["--markers"]])
def test_showing_what_there_is_needs_no_verdict(suite: pytest.Pytester, show: list[str]) -> None:
    result = run(suite, "--ddl-gate=main..topic", *show)
    assert result.ret == pytest.ExitCode.OK
    result.stderr.no_fnmatch_line(NOTHING)


def test_collecting_alone_may_find_no_gated_test(suite: pytest.Pytester) -> None:
    result = run(suite, "--ddl-gate=main..topic", "--collect-only", "test_other.py")
    assert result.ret == pytest.ExitCode.OK


def test_ranges() -> None:
    assert parse_range("main..WORKTREE") == "main..WORKTREE"
    for text in ("main", "..main", "main..", "main...topic", " .. "):
        with pytest.raises(ValueError, match=r"BASE\.\.HEAD"):
            parse_range(text)
