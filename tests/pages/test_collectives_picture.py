"""The timeline of collectives marks the first one that differs, with the lines of the program."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace

import pytest

from pytest_ddl.equivalence.verdict.judge import judge
from pytest_ddl.equivalence.verdict.report import Report
from pytest_ddl.pages.collectives import BEFORE, SHOWN, collectives, described
from pytest_ddl.pages.facts import Facts
from pytest_ddl.records import CollectiveRecord, ErrorRecord
from tests.checks.simulated_training import Program, pair
from tests.pages.made import Element, parsed

TRAIN, EVALUATE = "train.py:10", "train.py:20"


def reduced(where: str = TRAIN, step: int = 0, shape: tuple[int, ...] = (41,), **more: object) -> CollectiveRecord:
    return CollectiveRecord("all_reduce", "SUM", shape, "float32", where, step=step, **more)  # type: ignore[arg-type]


def report_of(*logs: Sequence[CollectiveRecord], error: str = "") -> Report:
    """Judge two workers with these logs; all ranks end with the error."""
    reference, distributed = pair(Program(), replicas=2, workers=2)
    raised = ErrorRecord(error, error, "", 0) if error else None
    ranks = [
        replace(rank, collectives=tuple(log), error=raised) for rank, log in zip(distributed.ranks, logs, strict=True)
    ]
    return judge(reference, replace(distributed, ranks=tuple(ranks)))


def picture(report: Report) -> Element:
    found = collectives(report)
    assert not found.absent, found.absent
    return parsed(str(found))


def lanes(element: Element) -> list[str]:
    """Letters of the boxes of each lane, the marked ones in brackets."""
    height: dict[str, str] = {}
    for text in element.find("text", kind="call"):
        letter = f"[{text.text}]" if "marked" in text.attributes["class"].split() else text.text
        height[text.attributes["y"]] = height.get(text.attributes["y"], "") + letter
    return list(height.values())


STEPS = [reduced(step=step) for step in range(3)]


def test_equal_logs_have_no_mark() -> None:
    report = report_of(STEPS, STEPS)
    found = picture(report)
    assert lanes(found) == ["AAA", "AAA"]
    assert found.one("desc").text == "All 2 ranks issue the same 3 collectives in the same order."
    assert [one.text for one in found.find("text", kind="lane")] == ["rank 0 (worker:0)", "rank 1 (worker:1)"]
    assert [one.text for one in found.find("text", kind="step")] == ["step 1", "step 2", "step 3", "ends"] * 2


def test_the_first_difference_is_marked_with_its_lines() -> None:
    report = report_of([STEPS[0], reduced(EVALUATE, 1, (2,)), *STEPS[1:]], STEPS)
    assert report.findings[0].cause == "rank-conditional-collective"
    found = picture(report)
    assert lanes(found) == ["A[B]AA", "A[A]A"]
    assert found.one("desc").text == (
        "The ranks differ first at collective 2: rank 0 issues all_reduce SUM of 2 float32 at train.py:20; "
        "rank 1 issues all_reduce SUM of 41 float32 at train.py:10."
    )
    assert [one.text for one in found.one("ul", kind="calls").find("li")] == [
        "A all_reduce SUM of 41 float32 at train.py:10",
        "B all_reduce SUM of 2 float32 at train.py:20",
    ]
    facts = Facts.of(report, "test")
    assert (facts.file, facts.line) == ("train.py", 20)


def test_a_rank_that_has_ended_has_a_mark_at_its_end() -> None:
    found = picture(report_of([*STEPS, reduced(EVALUATE, 2)], STEPS))
    assert lanes(found) == ["AAA[B]", "AAA"]
    assert found.one("desc").text.endswith("at train.py:20; rank 1 ends.")
    assert len(found.find("rect", kind="differs")) == 2


def test_ranks_that_wait_say_so() -> None:
    report = report_of([*STEPS, reduced(EVALUATE, 2, (2,))], [*STEPS, reduced(step=2)], error="stuck")
    assert report.findings[0].symptom == "hang"
    found = picture(report)
    assert lanes(found) == ["AAA[B]", "AAA[A]"]
    assert [one.text for one in found.find("text", kind="step")].count("waits") == 2


def test_only_what_is_near_the_first_difference_is_shown() -> None:
    many = [reduced(step=step) for step in range(100)]
    found = picture(report_of([*many[:60], reduced(EVALUATE, 60, (2,)), *many[60:]], many))
    first, second = lanes(found)
    assert first.startswith("A" * BEFORE + "[B]")
    assert second.startswith("A" * BEFORE + "[A]")
    assert first.count("A") + 1 == SHOWN
    labels = [one.text for one in found.find("text")]
    assert f"rank 0 (worker:0), after {60 - BEFORE} equal ones" in labels
    assert f"and {101 - (60 - BEFORE) - SHOWN} more" in labels


def test_groups_are_paired_on_their_own() -> None:
    host = reduced(shape=(), group=2)
    swapped = [reduced(EVALUATE, 2, (3,)), *STEPS]
    found = picture(report_of([host, *swapped], [*STEPS[:1], host, *STEPS[1:], reduced(EVALUATE, 2, (3,))]))
    assert lanes(found)[0].startswith("A[B]")
    assert lanes(found)[1].startswith("[C]A")


def test_correct_ranks_may_use_other_lines() -> None:
    found = picture(report_of([*STEPS, reduced(EVALUATE)], [*STEPS, reduced("train.py:30")]))
    assert lanes(found) == ["AAAB", "AAAC"]
    assert found.one("desc").text == "2 ranks, one lane each, in the order in which they issue their collectives."


def test_a_line_is_named_once() -> None:
    call = reduced("train.py:3, from train.py:9", called="train.py:9")
    assert described(call) == "all_reduce SUM of 41 float32 at train.py:3, from train.py:9"


def test_files_that_are_not_of_the_program_are_left_out() -> None:
    call = reduced(f"{os.getcwd()}/train.py:3, from /tmp/__autograph_generated_file1x.py:7, from <string>:1", called="")
    assert described(call) == "all_reduce SUM of 41 float32 at train.py:3"
    packed = replace(call, parts=("3 float32", "4 float32"), where="<string>:1", called="train.py:9", op="")
    assert described(packed) == (
        "all_reduce of 2 tensors (3 float32, 4 float32) at a line that is not known, called at train.py:9"
    )


@pytest.mark.parametrize(
    ("report", "reason"),
    [
        (judge(*pair(Program(), replicas=2)), "one process issues the collectives of all replicas"),
        (report_of([], []), "the collectives of the ranks were not observed"),
        (replace(report_of([], []), distributed=replace(report_of([], []).distributed, ranks=())), "no rank ran"),
    ],
)
def test_without_logs_a_sentence_says_why(report: Report, reason: str) -> None:
    assert collectives(report).absent.startswith(reason)
