"""``--ddl-report`` in whole runs of pytest, with comparisons of hand-made records in place of training."""

from __future__ import annotations

import json
import subprocess
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from pytest_ddl.pages.facts import PROPERTIES
from tests.pages.made import Project

CONFTEST = """
    import pytest
    from pytest_ddl.equivalence.runs.comparer import Comparer
    from pytest_ddl.equivalence.verdict.judge import judge
    from tests.checks.simulated_training import Program, pair

    def compare(self, question):
        sins = question.train
        return judge(*pair(Program(**sins.pop("program", {})), **{"replicas": 2, **sins}), strict=question.strict)

    Comparer.compare = compare

"""
TESTS = """
    import os
    import pytest
    import pytest_ddl

    pytestmark = pytest.mark.ddl(strategies="mirrored", device="cpu")

    def test_right(ddl_equivalence):
        ddl_equivalence({})

    def test_scaled(ddl_equivalence, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        ddl_equivalence(dict(scale=2.0))

    def test_duplicated(ddl_equivalence):
        ddl_equivalence({})
        ddl_equivalence(dict(duplicate=True))

    def test_program_fails(ddl_equivalence):
        ddl_equivalence(dict(program={"nan_at": 1}))

    def test_that_wants_a_failure(ddl_equivalence):
        with pytest.raises(pytest_ddl.DivergenceError):
            ddl_equivalence(dict(drop=True))

    @pytest.fixture
    def trained(ddl_equivalence):
        ddl_equivalence(dict(initial_shift=0.5))

    def test_with_a_fixture_that_fails(trained):
        pass
"""
RIGHT = """
    import sys
    import pytest

    @pytest.mark.ddl(strategies="mirrored", device="cpu")
    def test_right(ddl_equivalence):
        ddl_equivalence({})

    def test_nothing_heavy_is_loaded():
        assert not {"tensorflow", "keras"} & set(sys.modules)
"""
NO_CLUSTER = "--ddl-in-process"


def project_of(folder: Path, tests: str) -> Project:
    """Make a project whose tests compare hand-made records."""
    return Project(folder, {"conftest.py": CONFTEST, "pytest.ini": "[pytest]\n", "test_it.py": tests})


@pytest.fixture(scope="module", params=["one process", pytest.param("xdist", marks=pytest.mark.slow)])
def ran(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Project, subprocess.CompletedProcess[str]]:
    workers: list[str] = []
    if request.param == "xdist":
        pytest.importorskip("xdist")
        workers = ["-n", "2"]
    project = project_of(tmp_path_factory.mktemp("project"), TESTS)
    done = project.run(NO_CLUSTER, *workers, "--ddl-report=some/pages", "--junitxml=junit.xml", GITHUB_ACTIONS="true")
    assert done.returncode == 1, done.stdout + done.stderr
    return project, done


def test_each_failed_comparison_has_a_page_and_the_index_links_to_it(
    ran: tuple[Project, subprocess.CompletedProcess[str]],
) -> None:
    project, done = ran
    index = project.page("some/pages/index.html")
    assert index.one("h1").text == "Comparisons with one device 5 failed, 2 passed"
    cards = index.one("ul", kind="changes").find("li")
    titles = {card.one("code").text: card.one("a") for card in cards}
    assert {test.partition("::")[2]: link.text for test, link in titles.items()} == {
        "test_scaled[mirrored]": "gradient-scaled-by-replica-count",
        "test_duplicated[mirrored]": "examples-duplicated",
        "test_program_fails[mirrored]": "inconclusive",
        "test_that_wants_a_failure[mirrored]": "global-batch-wrong",
        "test_with_a_fixture_that_fails[mirrored]": "initial-weights-differ",
    }
    for test, link in titles.items():
        page = project.page(f"some/pages/{link.attributes['href']}")
        assert page.one("p", kind="test").text == test
    assert len(list((project.folder / "some/pages").iterdir())) == 11
    assert "ddl report: 5 failed comparisons, see some/pages/index.html" in done.stdout.splitlines()


def test_junit_has_the_facts_of_each_comparison(ran: tuple[Project, subprocess.CompletedProcess[str]]) -> None:
    project, _done = ran
    found = {
        case.get("name"): [(one.get("name"), one.get("value")) for one in case.iter("property")]
        for case in ElementTree.parse(project.folder / "junit.xml").iter("testcase")
    }
    right = [("ddl_strategy", "mirrored[replicas=2]"), ("ddl_verdict", "pass")]
    assert found["test_right[mirrored]"] == right
    assert found["test_duplicated[mirrored]"][:2] == right
    scaled = dict(found["test_scaled[mirrored]"])
    assert (project.folder / "some/pages" / str(scaled.pop("ddl_page"))).is_file()
    assert scaled == {
        "ddl_strategy": "mirrored[replicas=2]",
        "ddl_verdict": "fail",
        "ddl_cause": "gradient-scaled-by-replica-count",
        "ddl_step": "1",
        "ddl_variable": "dense/bias",
    }
    assert dict(found["test_program_fails[mirrored]"])["ddl_verdict"] == "inconclusive"


def test_github_gets_an_annotation_for_each_failed_comparison(
    ran: tuple[Project, subprocess.CompletedProcess[str]],
) -> None:
    _project, done = ran
    lines = [line for line in done.stdout.splitlines() if line.startswith("::error ")]
    assert len(lines) == 4, lines
    scaled = next(line for line in lines if "gradient-scaled" in line)
    assert scaled.startswith(
        "::error file=test_it.py,line=10,title=gradient-scaled-by-replica-count%3A mirrored[replicas=2]::"
    )
    assert scaled.endswith("%0Atest_it.py::test_scaled[mirrored]")


@pytest.fixture(scope="module")
def right(tmp_path_factory: pytest.TempPathFactory) -> Project:
    return project_of(tmp_path_factory.mktemp("right"), RIGHT)


def test_a_run_without_failures_writes_only_an_index(right: Project) -> None:
    stale = right.folder / "pages" / "old.json"
    stale.parent.mkdir()
    stale.write_text(json.dumps({"written_by": "pytest-ddl --ddl-report"}))
    (right.folder / "pytest.ini").write_text("[pytest]\nddl_report = pages\n")
    done = right.run(NO_CLUSTER, GITHUB_ACTIONS="true")
    assert done.returncode == 0, done.stdout + done.stderr
    assert [path.name for path in (right.folder / "pages").iterdir()] == ["index.html"]
    assert right.page("pages/index.html").one("h1").text == "Comparisons with one device the only one passed"
    assert "ddl report: none of 1 comparison(s) failed, see pages/index.html" in done.stdout.splitlines()
    assert "::error" not in done.stdout


def test_without_the_option_nothing_is_written_and_github_still_gets_annotations(tmp_path: Path) -> None:
    project = project_of(tmp_path, TESTS)
    summary = tmp_path / "summary.md"
    done = project.run(NO_CLUSTER, "-k", "scaled", GITHUB_ACTIONS="true", GITHUB_STEP_SUMMARY=str(summary))
    assert done.returncode == 1, done.stdout + done.stderr
    head, _line, row = summary.read_text().splitlines()
    assert head == "| test | what differs | fix |"
    assert "gradient-scaled-by-replica-count" in row
    assert not list(tmp_path.glob("**/*.html"))
    assert done.stdout.count("::error ") == 1
    assert "ddl report" not in done.stdout


def test_a_folder_that_cannot_be_written_is_one_line_before_any_test_runs(right: Project) -> None:
    done = right.run(NO_CLUSTER, "--ddl-report=test_it.py/pages")
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    assert done.stderr.strip().splitlines() == [
        "ERROR: --ddl-report='test_it.py/pages' (from command line): cannot write pages there: Not a directory"
    ]
    assert "test_right" not in done.stdout


GIVEN = """
    import pytest
    from hypothesis import HealthCheck, given, settings, strategies

    @pytest.mark.ddl(strategies="mirrored", device="cpu")
    @settings(deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(scale=strategies.sampled_from([1.0, 2.0, 4.0]))
    def test_any(ddl_equivalence, scale):
        ddl_equivalence(dict(scale=scale))
"""


def test_hypothesis_leaves_one_page_of_the_smallest_example(tmp_path: Path) -> None:
    pytest.importorskip("hypothesis")
    project = project_of(tmp_path, GIVEN)
    done = project.run(NO_CLUSTER, "--ddl-report=pages", "--junitxml=junit.xml")
    assert done.returncode == 1, done.stdout + done.stderr
    (page,) = (tmp_path / "pages").glob("test-*.html")
    assert "2 x the update of one device" in project.page(f"pages/{page.name}").one("dl", kind="facts").text
    names = [one.get("name") for one in ElementTree.parse(tmp_path / "junit.xml").iter("property")]
    assert sorted(name for name in names if name in PROPERTIES) == sorted(PROPERTIES)
