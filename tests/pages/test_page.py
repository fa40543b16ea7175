"""A page says what the report says, in one file that asks no server for anything, and escapes what it shows."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from pytest_ddl.equivalence.causes import CAUSES
from pytest_ddl.equivalence.findings import Finding, Grounds
from pytest_ddl.equivalence.verdict.judge import judge
from pytest_ddl.equivalence.verdict.report import Report
from pytest_ddl.notes import Note, NoteKind
from pytest_ddl.pages.page import render
from pytest_ddl.records import TrainingRecord
from tests.checks.simulated_training import Program, pair
from tests.pages.made import Element, parsed, report_of

TEST = "test_train.py::test_same[mirrored]"
NASTY = "</title></script><script>alert(1)</script>&\"'<b>"


@pytest.fixture(scope="module")
def scaled() -> Report:
    return report_of(scale=2.0)


@pytest.fixture(scope="module")
def page(scaled: Report) -> Element:
    return parsed(render(scaled, TEST, index="index.html"))


def facts(page: Element) -> dict[str, str]:
    return {one.one("dt").text: one.one("dd").text for one in page.one("dl", kind="facts").find("div")}


def test_the_title_is_the_cause_with_strategy_and_test(page: Element) -> None:
    assert page.one("h1").text == "gradient-scaled-by-replica-count mirrored[replicas=2]"
    assert page.one("head").one("title").text == f"gradient-scaled-by-replica-count: {TEST}"
    assert page.one("p", kind="test").text == TEST
    assert page.one("p", kind="back").one("a").attributes["href"] == "index.html"


def test_it_says_where_how_much_why_and_how_to_fix_it(scaled: Report, page: Element) -> None:
    found = facts(page)
    worst = scaled.findings[0]
    assert (found["step"], found["variable"], found["replica"]) == ("1", str(worst.variable), "0")
    assert found["ratio"] == "2 x the update of one device"
    assert found["difference"].startswith(f"{worst.error:.3g} bound ")
    cause = CAUSES["gradient-scaled-by-replica-count"]
    assert page.one("p", kind="meaning").text == cause.title
    assert page.one("p", kind="fix").text == " ".join(f"Fix {cause.fix}".split())
    assert str(worst.evidence) in page.one("div", kind="grounds").text


def test_it_says_on_which_grounds_a_cause_is_named_and_where_to_look_without_one(scaled: Report) -> None:
    worst = replace(scaled.findings[0], grounds=Grounds.RATIO)
    page = parsed(render(replace(scaled, findings=(worst,)), TEST))
    assert "One factor between all changes and those of one device." in page.one("div", kind="grounds").text
    unknown = replace(worst, cause=None, grounds=None, look_at=("the loss", "the <batch>"))
    page = parsed(render(replace(scaled, findings=(unknown,)), TEST))
    assert "Look at: the loss; or the <batch>." in page.one("div", kind="grounds").text


def test_known_behaviors_are_among_the_other_findings(scaled: Report) -> None:
    known = replace(scaled.findings[0], cause="random-stream-repeated-across-replicas", known="keras-seed-generator")
    cards = parsed(render(replace(scaled, known=(known,)), TEST)).one("ul", kind="changes").text
    assert "known behavior keras-seed-generator" in cards


def test_the_text_report_is_folded_below(scaled: Report, page: Element) -> None:
    section = next(one for one in page.find("section") if one.attributes.get("aria-labelledby") == "text-title")
    assert section.one("details").one("pre").text == " ".join(str(scaled).split())


def test_every_check_is_listed_with_its_reason(scaled: Report, page: Element) -> None:
    rows = {row[0]: row for row in page.one("table", kind="checks").rows()[1:]}
    assert set(rows) == {result.check for result in scaled.results}
    assert rows["STEP-EQ"][1] == "✗ FAIL"
    assert rows["BATCH"][1:] == ["✓ pass", "4 global batches"]


def test_it_is_one_file_without_scripts_that_asks_no_server(scaled: Report, page: Element) -> None:
    html = render(scaled, TEST)
    assert not page.find("script")
    policy = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
    assert any(one.attributes.get("content") == policy for one in page.find("meta"))
    style = page.one("style").text
    assert "url(" not in style
    assert "@import" not in style
    assert "prefers-color-scheme: dark" in style
    assert not re.search(r"""(?:src|href)=["']?https?:""", html)
    assert not re.search(r"""\son\w+=""", html)


def test_each_picture_has_a_title_and_a_text_alternative(page: Element) -> None:
    pictures = page.find("svg")
    assert len(pictures) == 2
    for picture in pictures:
        assert picture.attributes["role"] == "img"
        assert picture.one("title").text
        assert picture.one("desc").children == [picture.attributes["aria-label"]] != [""]
    assert all(table.find("caption") or table.find("thead") for table in page.find("table"))


@pytest.mark.parametrize(
    ("sins", "first"),
    [({"scale": 2.0}, "difference"), ({"duplicate": True}, "examples"), ({"loss": "sum"}, "loss")],
)
def test_the_picture_that_shows_the_finding_comes_first(sins: dict[str, object], first: str) -> None:
    pictures = parsed(render(report_of(**sins), TEST)).one("div", kind="pictures").find("section")
    assert pictures[0].attributes["id"] == first
    assert len(pictures) == 4


def test_a_picture_without_data_is_a_sentence(page: Element) -> None:
    absent = page.one("section", kind="absent")
    assert absent.one("li", id="collectives").text == (
        "Collectives of the ranks : one process issues the collectives of all replicas, so that they cannot be in "
        "different orders."
    )


def test_a_browser_accepts_the_markup(scaled: Report) -> None:
    html5lib = pytest.importorskip("html5lib")
    html5lib.HTMLParser(strict=True).parse(render(scaled, NASTY))


def _renamed(record: TrainingRecord | None) -> TrainingRecord:
    assert record is not None
    ranks = [
        replace(rank, task=NASTY, variables=tuple(replace(one, name=NASTY) for one in rank.variables))
        for rank in record.ranks
    ]
    return replace(record, ranks=tuple(ranks))


def test_everything_from_the_program_is_escaped(scaled: Report) -> None:
    text = dict.fromkeys(
        ("message", "cause", "variable", "fix", "observed", "expected", "origin", "evidence", "details"), NASTY
    )
    worst = Finding(check=NASTY, step=1, symptom=NASTY, source=f"{NASTY}.py:3", also=(NASTY,), exact=False, **text)
    report = replace(
        scaled,
        strategy=NASTY,
        findings=[worst, worst],
        expected=((worst, NASTY),),
        approximations=(worst,),
        results=tuple(replace(result, reason=NASTY, check=NASTY) for result in scaled.results),
        reference=_renamed(scaled.reference),
        distributed=_renamed(scaled.distributed),
        notes=(Note(NoteKind.HOW, NASTY),),
    )
    html = render(report, NASTY, index=NASTY)
    assert "<script" not in html
    assert NASTY not in html
    page = parsed(html)
    assert not page.find("script")
    assert {row[0] for row in page.one("table", kind="heat").rows()[1:]} > {f"{NASTY} trainable"}


def test_other_findings_and_tolerated_ones_are_cards() -> None:
    report = report_of(duplicate=True)
    page = parsed(render(report, TEST))
    cards = [card.text for card in page.one("ul", kind="changes").find("li")]
    assert len(cards) == len(report.findings) - 1
    assert cards[0].startswith("examples-dropped step 1: 24 example(s) missing")


def test_an_inconclusive_report_says_why() -> None:
    report = judge(*pair(Program(nan_at=1), replicas=2))
    assert report.verdict == "inconclusive"
    page = parsed(render(report, TEST))
    assert page.one("h1").text == "inconclusive mirrored[replicas=2]"
    assert report.inconclusive[0] in page.one("section", kind="notice").text


def test_a_report_of_runs_that_left_no_record_has_a_page_too(scaled: Report) -> None:
    ours, theirs = (replace(record, ranks=()) for record in (scaled.reference, scaled.distributed))
    page = parsed(render(replace(scaled, reference=ours, distributed=theirs), TEST))
    assert not page.find("svg")
    assert len(page.one("section", kind="absent").find("li")) == 5
