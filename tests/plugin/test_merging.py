"""One report out of the reports of all ranks, with reports that are made by hand."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_ddl.cluster.cluster import Answer, Fate
from pytest_ddl.cluster.protocol import UNEXPECTED_PASS, PhaseResult
from pytest_ddl.items.long_output import LONGEST, shortened
from pytest_ddl.items.merge import collection_differs, is_unexpected_pass, merge_phase, session_exit

SKIPPED = ("test_x.py", 3, "Skipped: alone")


@pytest.fixture
def item(request: pytest.FixtureRequest) -> Any:
    return request.node


def _report(item: pytest.Item, outcome: Any, longrepr: Any = None, **extra: Any) -> dict[str, Any]:
    report = pytest.TestReport(
        nodeid=item.nodeid,
        location=item.location,
        keywords={},
        outcome=outcome,
        longrepr=longrepr,
        when="call",
        **extra,
    )
    data: dict[str, Any] = item.config.hook.pytest_report_to_serializable(config=item.config, report=report)
    return data


def _subtest(item: pytest.Item, outcome: Any, longrepr: Any = None, **extra: Any) -> dict[str, Any]:
    return _report(item, outcome, longrepr, context=SimpleNamespace(msg="a", kwargs={"i": "1"}), **extra)


def _answer(item: pytest.Item, rank: int, *subtests: dict[str, Any], main: Any = None) -> Answer:
    body = PhaseResult((*subtests, main or _report(item, "passed")), False, entered=1, finished=1)
    return Answer(rank, f"worker:{rank}", Fate.REPLIED, body)


def _merge(item: pytest.Item, *by_rank: dict[str, Any]) -> list[pytest.TestReport]:
    return merge_phase(item, "call", [_answer(item, rank, subtest) for rank, subtest in enumerate(by_rank)])


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize(
    ("outcome", "longrepr", "extra", "words"),
    [
        ("skipped", SKIPPED, {}, "skipped (Skipped: alone)"),
        ("skipped", "known", {"wasxfail": "known"}, "xfailed (known)"),
    ],
    ids=["skip", "xfail"],
)
def test_a_subtest_that_one_rank_leaves_fails(
    item: Any, rank: int, outcome: str, longrepr: Any, extra: dict[str, Any], words: str
) -> None:
    left, passed = _subtest(item, outcome, longrepr, **extra), _subtest(item, "passed")
    subtest, main = _merge(item, *((left, passed) if rank == 0 else (passed, left)))
    assert (subtest.outcome, main.outcome) == ("failed", "failed")
    assert not hasattr(subtest, "wasxfail")
    assert "in subtest [a] (i=1) the ranks disagree: " in subtest.longreprtext
    assert f"rank {rank} of 2 {words}" in subtest.longreprtext
    assert f"rank {1 - rank} of 2 passed" in subtest.longreprtext
    assert "contains 1 failed subtest" in main.longreprtext


@pytest.mark.parametrize("longrepr", [SKIPPED, "known"])
def test_a_subtest_that_all_ranks_leave_alike_is_skipped(item: Any, longrepr: Any) -> None:
    extra = {} if longrepr is SKIPPED else {"wasxfail": "known"}
    subtest, main = _merge(item, *[_subtest(item, "skipped", longrepr, **extra)] * 2)
    assert (subtest.outcome, main.outcome) == ("skipped", "passed")


def test_a_subtest_that_fails_on_one_rank_names_it(item: Any) -> None:
    subtest, main = _merge(item, _subtest(item, "skipped", SKIPPED), _subtest(item, "failed", "wrong"))
    assert (subtest.outcome, main.outcome) == ("failed", "failed")
    assert "wrong" in subtest.longreprtext
    assert "this happened on rank 1 of 2" in subtest.longreprtext
    assert "rank 0 of 2 skipped (Skipped: alone)" in subtest.longreprtext


def test_failures_that_differ_only_in_addresses_are_one(item: Any) -> None:
    failures = [_report(item, "failed", f"assert <Strategy object at 0x7f0{rank}> is None") for rank in range(2)]
    (main,) = merge_phase(item, "call", [_answer(item, rank, main=failures[rank]) for rank in range(2)])
    assert "this happened on all 2 ranks" in main.longreprtext
    assert "failed differently" not in main.longreprtext


@pytest.mark.parametrize("outcome", ["passed", "skipped"])
def test_a_subtest_that_a_rank_lacks_fails(item: Any, outcome: str) -> None:
    extra = {"wasxfail": "known"} if outcome == "skipped" else {}
    answers = [_answer(item, 0, _subtest(item, outcome, **extra)), _answer(item, 1)]
    subtest, main = merge_phase(item, "call", answers)
    assert (subtest.outcome, main.outcome) == ("failed", "failed")
    assert not hasattr(subtest, "wasxfail")
    assert subtest.longreprtext == "subtest [a] (i=1) did not run on rank 1 of 2"


def test_a_subtest_of_a_test_that_is_expected_to_fail_may_fail_on_one_rank(
    item: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    marked = [pytest.mark.xfail(strict=False).mark]
    with monkeypatch.context() as patch:
        patch.setattr(item, "iter_markers", lambda name: iter(marked if name == "xfail" else ()))
        subtest, _main = _merge(item, _subtest(item, "passed"), _subtest(item, "skipped", "known", wasxfail="known"))
    assert (subtest.outcome, subtest.wasxfail) == ("skipped", "known")


def test_a_subtest_of_a_strict_expectation_fails_on_all_ranks(item: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    marked = [pytest.mark.xfail(strict=True).mark]
    failed, passed = _subtest(item, "skipped", "known", wasxfail="known"), _subtest(item, "passed")
    with monkeypatch.context() as patch:
        patch.setattr(item, "iter_markers", lambda name: iter(marked if name == "xfail" else ()))
        (alike, _main), (apart, main) = _merge(item, failed, failed), _merge(item, passed, failed)
    assert (alike.outcome, apart.outcome, main.outcome) == ("skipped", "failed", "failed")
    assert "rank 0 of 2 passed; rank 1 of 2 xfailed" in apart.longreprtext


def test_a_rank_that_failed_as_expected_is_said_to_have(item: Any) -> None:
    failed = _answer(item, 0, main=_report(item, "failed", "TypeError"))
    expected = _answer(item, 1, main=_report(item, "skipped", "ValueError: no", wasxfail=""))
    (report,) = merge_phase(item, "call", [failed, expected])
    assert report.failed
    assert "rank 1 of 2 xfailed (ValueError: no)" in report.longreprtext
    assert "did not fail" not in report.longreprtext


def test_a_rank_that_has_not_set_up_the_item_tears_down_nothing(item: Any) -> None:
    nothing = Answer(0, "worker:0", Fate.REPLIED, PhaseResult((), False))
    (report,) = merge_phase(item, "teardown", [nothing, nothing])
    assert report.passed
    (report,) = merge_phase(item, "teardown", [nothing, _answer(item, 1, main=_report(item, "failed", "wrong"))])
    assert (report.outcome, "wrong" in report.longreprtext) == ("failed", True)


def test_a_rank_without_a_report_has_not_run_the_body(item: Any) -> None:
    nothing = Answer(0, "worker:0", Fate.REPLIED, PhaseResult((), False))
    (report,) = merge_phase(item, "call", [nothing, _answer(item, 1)])
    assert report.longreprtext.startswith("rank 0 of 2 reported a pass without having run")


def test_ranks_that_have_not_collected_the_item_say_why(item: Any) -> None:
    def answer(rank: int, reason: str) -> Answer:
        return Answer(rank, f"worker:{rank}", Fate.REPLIED, PhaseResult((), bool(reason), not_collected=reason))

    assert collection_differs(item, [answer(0, ""), answer(1, "")]) is None
    report = collection_differs(item, [answer(0, ""), answer(1, "test_x.py:4 skipped test_x.py: not here")])
    assert report is not None
    assert report.failed
    assert "rank 1 of 2 did not collect it: test_x.py:4 skipped test_x.py: not here" in report.longreprtext


LEFT = PhaseResult((), True, entered=1, exit=("enough", 7))
PASSED = PhaseResult((), False, entered=1, finished=1)
FAILED = PhaseResult((), True, entered=1)


@pytest.mark.parametrize(
    ("bodies", "reason"),
    [
        ((LEFT, LEFT), "enough"),
        ((PASSED, LEFT), "enough (rank 1 of 2)"),
        ((LEFT, Fate.STOPPED), "enough (rank 0 of 2)"),
        ((LEFT, FAILED), None),
        ((LEFT, Fate.DIED), None),
        ((PASSED, PASSED), None),
        ((FAILED, Fate.DIED), None),
    ],
)
def test_a_rank_ends_the_session_unless_another_one_failed(bodies: Any, reason: str | None) -> None:
    """The report of the other one is shown first: ``returncode=0`` would hide it."""
    answers = [
        Answer(rank, f"worker:{rank}", body if isinstance(body, Fate) else Fate.REPLIED, body)
        for rank, body in enumerate(bodies)
    ]
    item: Any = SimpleNamespace(session=SimpleNamespace(shouldstop=False))
    ended: Any = session_exit(item, answers)
    assert (ended and (ended.msg, ended.returncode)) == (reason and (reason, 7))
    assert item.session.shouldstop == (False if LEFT not in bodies or reason else "enough (rank 0 of 2)")


@pytest.mark.parametrize(
    ("statuses", "expected"),
    [((0, 0), 0), ((None, None), None), ((0, "passed"), 1), ((None, "passed"), None), ((7, "passed"), 7), ((0, 7), 7)],
)
def test_a_status_of_zero_counts_only_if_all_ranks_give_it(statuses: Any, expected: int | None) -> None:
    """A rank that ends early is no pass."""
    answers = [
        Answer(
            rank,
            f"worker:{rank}",
            Fate.REPLIED,
            PASSED if one == "passed" else PhaseResult((), True, entered=1, exit=(f"enough on {rank}", one)),
        )
        for rank, one in enumerate(statuses)
    ]
    item: Any = SimpleNamespace(session=SimpleNamespace())
    ended: Any = session_exit(item, answers)
    assert ended.returncode == expected


def test_an_unexpected_pass_is_known_by_its_mark_and_not_by_its_text(item: Any) -> None:
    text = "[XPASS(strict)] soon"
    passed = _answer(item, 0, main=_report(item, "failed", text, **{UNEXPECTED_PASS: True}))
    alike = _answer(item, 1, main=_report(item, "failed", text))
    (report,) = merge_phase(item, "call", [passed, passed])
    assert is_unexpected_pass(report)
    (report,) = merge_phase(item, "call", [passed, alike])
    assert not is_unexpected_pass(report)
    assert "rank 0 of 2 xpassed" in report.longreprtext


def test_long_output_is_shown_whole_if_no_file_can_have_it() -> None:
    def full(_name: str) -> Any:
        raise OSError("no space")

    section = "Captured stdout call", "a" * (LONGEST + 1)
    for config in (SimpleNamespace(), SimpleNamespace(_tmp_path_factory=SimpleNamespace(mktemp=full))):
        assert shortened(config, *section) == section  # type: ignore[arg-type]


def test_long_output_keeps_its_two_ends(tmp_path: Path) -> None:
    config: Any = SimpleNamespace(_tmp_path_factory=SimpleNamespace(mktemp=lambda _name: tmp_path))
    text = "a" * LONGEST + "b" * LONGEST
    _title, shown = shortened(config, "Captured stdout call [rank 1]", text)
    path = tmp_path / "Captured-stdout-call-rank-1.txt"
    assert path.read_text() == text
    first, note, last = shown.split("\n\n")
    assert (first, last) == ("a" * (LONGEST // 2), "b" * (LONGEST // 2))
    assert note == f"… 20,000 characters are not shown. All 40,000 are in {path} …"
