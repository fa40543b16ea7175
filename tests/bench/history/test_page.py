"""The page: valid, complete without scripts, asks no server for anything, escapes what it shows."""

from __future__ import annotations

import itertools
import json
import math
import re
from pathlib import Path
from typing import Any
from xml.etree.ElementTree import Element

import pytest

from pytest_ddl.bench.history.confirm import Confirmations, confirm_all
from pytest_ddl.bench.history.detect import ChangeVerdict, changes
from pytest_ddl.bench.history.meaning import variant
from pytest_ddl.bench.history.model import Commit, Series, dates
from pytest_ddl.bench.history.page import as_script, render, views_of, write_page
from pytest_ddl.bench.history.read import read_results
from pytest_ddl.bench.history.report import HistoryReport, explain
from pytest_ddl.web.units import labels, number, percent, quantity, scale, size, ticks
from tests.bench.history.synthetic import Bench, commit_hashes, training, write_results

URL = "https://github.com/example/project/commit/"
NASTY = "</script><script>alert(1)</script>&\"'<b>"


def confirm(_before: str, _after: str, series: Series) -> ChangeVerdict:
    found = variant(series)
    return ChangeVerdict(
        "confirmed" if found and found.strategy == "mirrored" else "refuted", "re-run: 6 launches", 0.05
    )


def made(folder: Path, *, asked: bool = True, **more: Any) -> HistoryReport:
    commits = commit_hashes(40)
    benches = training("Cnn", 30, 0.012, 0.02, 3) + training("Mlp", 99, 0.02, 0.004, 4)
    write_results(folder, benches, commits, machine="gpu-runner", facts={"gpu": "H100"})
    history = read_results(write_results(folder, benches, commits[-25:], machine="laptop"), commit_url=URL, **more)
    found = explain([change for one in history.series for change in changes(one)], history.series)
    places = {commit.hash: commit.position for commit in history.commits}
    done = confirm_all(found, confirm if asked else None, Confirmations(None, []), places)
    return HistoryReport(history, tuple(done))


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> HistoryReport:
    return made(tmp_path_factory.mktemp("results"))


@pytest.fixture(scope="module")
def html(report: HistoryReport) -> str:
    return render(report)


@pytest.fixture(scope="module")
def tree(html: str) -> Element:
    """Parsed as a browser does; the first error of the markup is raised."""
    html5lib = pytest.importorskip("html5lib")
    parser = html5lib.HTMLParser(strict=True, namespaceHTMLElements=False)
    parsed: Element = parser.parse(html)
    return parsed


def text(element: Element) -> str:
    return " ".join("".join(element.itertext()).split())


def test_it_is_one_file_that_asks_no_server_for_anything(html: str, tree: Element) -> None:
    for element in tree.iter():
        if not isinstance(element.tag, str):
            continue
        for name in ("src", "srcset", "poster", "data", "action", "xlink:href"):
            assert name not in element.attrib, (element.tag, element.attrib)
        if element.tag == "link":
            assert element.attrib["href"] == "data:,"
    style = "".join(text(one) for one in tree.iter("style"))
    assert "url(" not in style
    assert "@import" not in style
    script = next(one for one in tree.iter("script") if "type" not in one.attrib)
    assert not re.search(r"fetch\(|XMLHttpRequest|import\(|https?:", text(script))
    assert "default-src 'none'" in html


def test_other_addresses_are_links_to_commits_alone(tree: Element) -> None:
    links = [one.attrib["href"] for one in tree.iter("a")]
    assert links
    assert all(link.startswith((URL, "#")) for link in links)


def test_every_metric_is_there_for_every_variant(tree: Element, report: HistoryReport) -> None:
    view = next(one for one in tree.iter("section") if "view" in one.attrib.get("class", "").split())
    titles = [text(one) for one in view.iter("h3")]
    for title in ("Throughput", "Scaling efficiency", "Step time", "Communication", "Memory", "Energy", "Counters"):
        assert title in titles
    assert any(title.startswith("Scaling at ") for title in titles)
    names = {text(one) for one in view.iter("span") if one.attrib.get("class") == "name"}
    assert {
        "one_device",
        "mirrored \N{MULTIPLICATION SIGN} 2",
        "mirrored \N{MULTIPLICATION SIGN} 4",
        "multi_worker_mirrored \N{MULTIPLICATION SIGN} 4",
    } <= names
    assert len(views_of(report)) == 4


def test_it_says_which_machine_points_are_from(tree: Element, report: HistoryReport) -> None:
    where = [text(one) for one in tree.iter("p") if one.attrib.get("class") == "where"]
    assert len(where) == 4
    assert sum("gpu-runner" in one and "H100" in one for one in where) == 2
    data = json.loads(text(next(one for one in tree.iter("script") if one.attrib.get("id") == "data")))
    assert {one["machine"] for one in data["series"].values()} == {"gpu-runner", "laptop"}


def test_bands_show_uncertainty(tree: Element) -> None:
    figures = [one for one in tree.iter("figure") if "data-series" in one.attrib]
    banded = [one for one in figures if any("band" in part.attrib.get("class", "") for part in one.iter())]
    assert len(banded) > 0.9 * len(figures)
    data = json.loads(text(next(one for one in tree.iter("script") if one.attrib.get("id") == "data")))
    one = next(one for one in data["series"].values() if one["benchmark"].endswith("track_throughput"))
    _position, value, low, high, meaning = one["points"][0]
    assert low < value < high
    assert "between commits" in meaning


def test_regressions_are_marked_with_commits_and_size(tree: Element, report: HistoryReport) -> None:
    section = next(one for one in tree.iter("section") if "findings" in one.attrib.get("class", ""))
    first = next(one for one in section.iter("li") if one.attrib.get("class") == "confirmed")
    change = next(one for one in report.regressions if one.series.benchmark.name.endswith("step_time"))
    assert "step time" in text(first)
    assert "confirmed by a re-run" in text(first)
    assert change.before.short in text(first)
    assert change.after.short in text(first)
    assert re.search(r"\+[456]\.\d ±", text(first))
    marks = [text(one) for one in tree.iter("span") if one.attrib.get("class") == "mark confirmed"]
    assert marks
    assert all(mark.startswith("▲") for mark in marks)


def test_candidates_look_different_and_are_no_regressions(tmp_path: Path) -> None:
    report = made(tmp_path, asked=False)
    assert report.candidates
    assert all(one.verdict.status == "exact" for one in report.regressions)
    page = render(report)
    assert "mark candidate" in page
    assert "not confirmed yet" in page
    assert "confirmed by a re-run" not in page


def test_the_same_numbers_are_in_tables(tree: Element, report: HistoryReport) -> None:
    tables = [one for one in tree.iter("table") if one.find("caption") is not None]
    one = next(one for one in tables if "track_throughput" in text(one) and "gpu-runner" in text(one))
    assert len(list(one.iter("tr"))) == 41
    series = next(
        one for one in report.history.series
        if one.benchmark.name == "training.DashCnn.track_throughput" and one.machine == "gpu-runner"
        and dict(one.parameters)["strategy"] == "one_device" and one.points
    )  # fmt: skip
    assert " ".join(number(series.points[-1].value, 4).split()) in text(one)


def test_it_can_be_read_without_seeing_it(tree: Element) -> None:
    html = tree if tree.tag == "html" else next(tree.iter("html"))
    assert html.attrib["lang"] == "en"
    plots = [one for one in tree.iter("div") if one.attrib.get("class") == "plot"]
    assert plots
    assert all(one.attrib.get("role") == "img" and one.attrib.get("aria-label") for one in plots)
    ids = [one.attrib["id"] for one in tree.iter() if "id" in one.attrib]
    assert len(ids) == len(set(ids))
    label = next(one for one in tree.iter("label"))
    assert label.attrib["for"] in ids
    for element in tree.iter():
        if "aria-labelledby" in element.attrib:
            assert element.attrib["aria-labelledby"] in ids
    headings = [int(one.tag[1]) for one in tree.iter() if isinstance(one.tag, str) and re.fullmatch(r"h[1-6]", one.tag)]
    assert headings[0] == 1
    assert headings.count(1) == 1
    assert all(after - before <= 1 for before, after in itertools.pairwise(headings))


def test_names_are_escaped(tmp_path: Path) -> None:
    html5lib = pytest.importorskip("html5lib")
    parameters = {"strategy": [NASTY], "replicas": [2], "model": [NASTY]}
    bench = Bench(f"training.Dash.track_throughput{NASTY}", NASTY, parameters, lambda n, _c: 100.0 + n)
    folder = write_results(tmp_path, [bench], commit_hashes(9), facts={"cpu": NASTY}, environment="env")
    history = read_results(folder, commit_url=URL, project=NASTY)
    page = render(HistoryReport(history, (), notes=(NASTY,)))
    assert "<script>alert" not in page
    parsed = html5lib.HTMLParser(strict=True, namespaceHTMLElements=False).parse(page)
    assert len(list(parsed.iter("script"))) == 2
    data = json.loads(text(next(one for one in parsed.iter("script") if one.attrib.get("id") == "data")))
    (one,) = data["series"].values()
    assert NASTY in one["benchmark"]


def test_a_link_that_is_no_web_address_is_no_link(tmp_path: Path) -> None:
    folder = write_results(tmp_path, [Bench("t.track_step_time", "s", {}, lambda _n, _c: 1.0)], commit_hashes(3))
    page = render(HistoryReport(read_results(folder, commit_url="javascript:alert(1)//"), ()))
    assert 'href="javascript' not in page


def test_json_cannot_end_its_element() -> None:
    assert json.loads(as_script({"a": NASTY})) == {"a": NASTY}
    assert "<" not in as_script({"a": NASTY})


def test_a_gap_in_the_history_is_at_the_top(tmp_path: Path) -> None:
    bench = Bench("t.Gate.track_step_time", "seconds", {}, lambda _n, _c: 0.1, lambda n: "old" if n < 6 else "new")
    page = render(HistoryReport(read_results(write_results(tmp_path, [bench], commit_hashes(9))), ()))
    assert page.index("This history is incomplete") < page.index("No confirmed regression")
    # The older points are drawn, apart from the others.
    assert 'class="line old"' in page


@pytest.mark.parametrize("count", [1, 2])
def test_a_history_that_has_just_begun_has_a_page(tmp_path: Path, count: int) -> None:
    benches = training("Cnn", 99, 0.01, 0.02, 1)
    report = HistoryReport(read_results(write_results(tmp_path, benches, commit_hashes(count))), ())
    assert "Throughput" in render(report)


def test_constant_zero_and_negative_values_have_a_chart(tmp_path: Path) -> None:
    values = {"zero": lambda _n, _c: 0.0, "below": lambda n, _c: -1.0 - n, "one": lambda _n, _c: 5.0}
    benches = [Bench(f"t.track_{name}", "", {}, value) for name, value in values.items()]
    page = render(HistoryReport(read_results(write_results(tmp_path, benches, commit_hashes(12))), ()))
    assert page.count("data-series=") == 3
    assert "nan" not in page.split("<body>")[1].split('<script type="application/json"')[0].lower()


def test_it_lies_beside_what_asv_publishes(tmp_path: Path, report: HistoryReport) -> None:
    path = write_page(report, tmp_path)
    assert path == tmp_path / "scaling" / "index.html"
    assert "../index.html" not in path.read_text(encoding="utf-8")
    (tmp_path / "index.html").write_text("asv")
    assert "../index.html" in write_page(report, tmp_path).read_text(encoding="utf-8")


def test_commits_of_one_day_have_times() -> None:
    noon = 1_789_905_600_000
    commits = [Commit(n, f"{n:040x}", noon + minutes * 60_000) for n, minutes in enumerate((0, 63, 24 * 60))]
    assert dates(commits) == ["2026-09-20 12:00", "2026-09-20 13:03", "2026-09-21"]
    assert dates(commits[:1] * 2) == ["2026-09-20"] * 2


@pytest.mark.parametrize(
    ("value", "unit", "said"),
    [(0.0124, "seconds", "12.4 ms"), (421642, "bytes", "412 KiB"), (12345.6, "examples/s", "12\u202f346 examples/s")],
)
def test_quantities_are_scaled(value: float, unit: str, said: str) -> None:
    assert quantity(value, unit) == said


@pytest.mark.parametrize(
    ("number_of_bytes", "said"),
    [(0, "0 B"), (1000, "1000 B"), (1536, "1.5 KiB"), (3 * 2**20, "3 MiB"), (2**31, "2 GiB")],
)
def test_sizes_are_plain_text_without_powers_of_ten(number_of_bytes: int, said: str) -> None:
    assert size(number_of_bytes) == said


def test_numbers_are_short_and_ticks_round() -> None:
    said = [number(value) for value in (0, 1234567, 0.012345, -2.5)]
    assert said == [
        "0",
        "1\u202f234\u202f567",
        "0.0123",
        "\N{MINUS SIGN}2.50",
    ]
    assert number(math.inf) == "∞"
    assert percent(0.052) == "+5.2\u202f%"
    assert percent(-0.052) == "\N{MINUS SIGN}5.2\u202f%"
    assert percent(math.inf) == "from 0"
    assert ticks(0.93, 1.12) == pytest.approx([0.95, 1.0, 1.05, 1.1])
    assert ticks(0, 10, 4) == pytest.approx([0, 2.5, 5, 7.5, 10])
    assert labels([1.0, 1.5, 2.0]) == ["1.0", "1.5", "2.0"]
    assert labels([0.0, 0.25, 0.5]) == ["0.00", "0.25", "0.50"]
    assert labels([0.0, 2500.0, 5000.0]) == ["0", "2\u202f500", "5\u202f000"]
    assert scale("", 0.5, share=True) == (0.01, "%")
