"""The folder of pages: names, facts beside them, the index, and what is removed. Annotations for GitHub."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from pytest_ddl.equivalence.findings import Finding
from pytest_ddl.equivalence.verdict.report import Report
from pytest_ddl.pages.facts import Facts, place_of
from pytest_ddl.pages.folder import INDEX, prepare, write_index, write_page
from pytest_ddl.pages.watch import annotation
from tests.pages.made import Element, parsed, report_of

TEST = "tests/test_train.py::test_same[mirrored]"


@pytest.fixture(scope="module")
def scaled() -> Report:
    return report_of(scale=2.0)


def index_of(folder: Path, *passed: Facts) -> Element:
    path, _count = write_index(folder, passed)
    return parsed(path.read_text(encoding="utf-8"))


def test_a_page_has_its_facts_beside_it(scaled: Report, tmp_path: Path) -> None:
    facts = write_page(scaled, tmp_path, TEST)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        facts.page, facts.page.replace(".html", ".json")
    ]  # fmt: skip
    assert facts.page.startswith("tests-test-train-py-test-same-mirrored-")
    value = json.loads((tmp_path / facts.page.replace(".html", ".json")).read_text(encoding="utf-8"))
    assert Facts.from_json(value, other_version=True) == facts
    assert value["cause"] == "gradient-scaled-by-replica-count"
    assert (value["step"], value["variable"], value["verdict"], value["findings"]) == (1, "dense/bias", "fail", 1)


def test_names_of_pages_differ_for_different_tests(scaled: Report, tmp_path: Path) -> None:
    tests = [
        "t.py::a",
        "t.py::A",
        "t.py::a[/etc/passwd]",
        "t.py::" + "x" * 300,
        "t.py::" + "x" * 301,
        "\udcff",
        "../up",
    ]
    pages = {write_page(scaled, tmp_path, test).page.lower() for test in tests}
    pages.add(write_page(scaled, tmp_path, "t.py::a", 2).page)
    assert len(pages) == len(tests) + 1
    assert {path.name for path in tmp_path.glob("*.html")} == pages
    assert max(map(len, pages)) < 110


def test_characters_that_no_page_may_contain_are_replaced(scaled: Report, tmp_path: Path) -> None:
    worst = replace(scaled.findings[0], message="a\x00b\x1b[31mc\udc80")
    facts = write_page(replace(scaled, findings=[worst]), tmp_path, TEST)
    text = (tmp_path / facts.page).read_text(encoding="utf-8")
    assert "a\N{REPLACEMENT CHARACTER}b\N{REPLACEMENT CHARACTER}[31mc\\udc80" in text
    write_index(tmp_path, ())


def test_the_index_links_to_the_pages(scaled: Report, tmp_path: Path) -> None:
    first = write_page(scaled, tmp_path, TEST)
    second = write_page(report_of(duplicate=True), tmp_path, "t.py::<b>", 2)
    passed = Facts("t.py::fine", 1, "mirrored[replicas=2]", "pass", "matches")
    page = index_of(tmp_path, passed, replace(passed, test="t.py::dim", verdict="inconclusive"))
    assert page.one("h1").text == "Comparisons with one device 2 failed, 1 passed, 1 inconclusive"
    cards = page.one("ul", kind="changes").find("li")
    assert [card.one("a").attributes["href"] for card in cards] == [second.page, first.page]
    assert cards[0].text.startswith("examples-duplicated mirrored[replicas=2] t.py::<b> (comparison 2) step 1")
    assert "step 1, dense/bias, replica 0" in cards[1].text
    assert page.one("table").rows()[1:] == [
        ["t.py::fine", "mirrored[replicas=2]", "passed"],
        ["t.py::dim", "mirrored[replicas=2]", "inconclusive"],
    ]


@pytest.mark.parametrize(
    ("count", "title"), [(0, "no test compared anything"), (1, "the only one passed"), (3, "all 3 passed")]
)
def test_an_index_without_pages_says_what_passed(count: int, title: str, tmp_path: Path) -> None:
    passed = [Facts(f"t.py::{at}", 1, "mirrored", "pass", "matches") for at in range(count)]
    assert index_of(tmp_path, *passed).one("h1").text == f"Comparisons with one device {title}"
    assert [path.name for path in tmp_path.iterdir()] == [INDEX]


def test_only_pages_of_an_earlier_run_are_removed(scaled: Report, tmp_path: Path) -> None:
    folder = tmp_path / "new" / "folder"
    prepare(folder)
    facts = write_page(scaled, folder, TEST)
    for name, text in (("mine.html", "<p>"), ("mine.json", "{}"), ("list.json", "[]"), ("broken.json", "{")):
        (folder / name).write_text(text)
    write_index(folder, ())
    prepare(folder)
    assert not (folder / facts.page).exists()
    assert sorted(path.name for path in folder.iterdir()) == [
        "broken.json", INDEX, "list.json", "mine.html", "mine.json"
    ]  # fmt: skip


def test_a_folder_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(FileExistsError):
        prepare(tmp_path / "file")
    with pytest.raises(NotADirectoryError):
        prepare(tmp_path / "file" / "below")


def test_facts_are_plain_values_that_pytest_xdist_can_send(scaled: Report) -> None:
    facts = Facts.of(scaled, TEST).as_json()
    assert facts["fix"]
    assert {type(value) for value in facts.values()} <= {str, int, bool, type(None)}


def test_properties_are_the_known_facts(scaled: Report) -> None:
    assert list(Facts.of(scaled, TEST).properties()) == [
        ("ddl_strategy", "mirrored[replicas=2]"),
        ("ddl_verdict", "fail"),
        ("ddl_cause", "gradient-scaled-by-replica-count"),
        ("ddl_step", "1"),
        ("ddl_variable", "dense/bias"),
    ]
    unknown = replace(scaled, findings=[Finding("STEP-EQ", "differs", step=0)])
    assert dict(Facts.of(unknown, TEST).properties())["ddl_cause"] == "not known"
    assert dict(Facts.of(unknown, TEST).properties())["ddl_step"] == "0"
    passed = replace(scaled, findings=[])
    assert [name for name, _value in Facts.of(passed, TEST).properties()] == ["ddl_strategy", "ddl_verdict"]


@pytest.mark.parametrize(
    ("source", "message", "place"),
    [
        ("/a/b/train.py:7, in step: x = y", "", ("/a/b/train.py", 7)),
        (None, "rank 0 executes all_reduce of 3 float32 (sub/train.py:12, from main.py:3)", ("sub/train.py", 12)),
        (None, "dense/bias differs", ("", 0)),
        ("<string>:3, in f", "", ("", 0)),
    ],
)
def test_the_line_of_a_finding_is_found_in_its_text(source: str | None, message: str, place: tuple[str, int]) -> None:
    assert place_of(Finding("RUN", message, source=source)) == place


LOCATION = ("tests/test_train.py", 11, "test_same")


def test_an_annotation_is_one_escaped_line_at_the_line_of_the_program(tmp_path: Path) -> None:
    facts = Facts(
        TEST, 1, "mirrored[a=1,b=2]", "fail", "100 %\r\nbad", "cause", fix="do: this, now",
        file=str(tmp_path / "src, x" / "a:b.py"), line=7,
    )  # fmt: skip
    line = annotation(facts, tmp_path, LOCATION, {"GITHUB_WORKSPACE": str(tmp_path)})
    assert line == (
        "::error file=src%2C x/a%3Ab.py,line=7,title=cause%3A mirrored[a=1%2Cb=2]::"
        f"100 %25%0D%0Abad%0Afix: do: this, now%0A{TEST}"
    )


def test_an_annotation_without_a_line_is_at_the_test(tmp_path: Path) -> None:
    facts = Facts(TEST, 1, "mirrored", "fail", "bad", None, file="/elsewhere/lib.py", line=3)
    root = tmp_path / "project"
    line = annotation(facts, root, LOCATION, {"GITHUB_WORKSPACE": str(tmp_path)})
    assert line.startswith("::error file=project/tests/test_train.py,line=12,title=fail%3A mirrored::bad")
    assert annotation(facts, Path("/other"), LOCATION, {"GITHUB_WORKSPACE": str(tmp_path)}).startswith("::error title=")
