"""The version matrix: results of runs that were cut, numbers and page."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from suites.items import items
from suites.matrix import __main__ as command
from suites.matrix import numbers, page, results
from suites.matrix.cells import Cell, plan
from suites.matrix.environments import Environment
from suites.matrix.recording import without
from suites.matrix.running import _pytest
from suites.matrix.running import command as pytest_command

ROOT = Path(__file__).parents[2]
CELL = Cell("2.18.1", "3.8.0")
NEW = Cell("2.21.0", "3.15.1")
KNOWN = "worker-died: an empty tensor (https://example.org/1)"


@pytest.mark.parametrize(
    ("nodeid", "label", "expected"),
    [
        ("a.py::test[mirrored[replicas=3]-eager]", "mirrored[replicas=3]", "a.py::test[eager]"),
        ("a.py::test[mirrored]", "mirrored", "a.py::test"),
        ("a.py::test[eager-mirrored]", "mirrored", "a.py::test[eager]"),
        ("a.py::test[x-mirrored-y]", "mirrored", "a.py::test[x-y]"),
        ("a.py::test", "mirrored", "a.py::test"),
    ],
)
def test_an_id_without_its_strategy(nodeid, label, expected):
    assert without(nodeid, label) == expected


def line(test: str = "a.py::test", outcome: str = "pass", strategy: str = "mirrored", **given: object) -> dict:
    named = {"test": test, "strategy": strategy, "variant": strategy, "items": [f"layer.Dense {strategy}"]}
    return {**named, "outcome": outcome, "reason": "", "phase": "call", "seconds": 1.0, **given}


@pytest.mark.parametrize(
    ("lines", "outcome", "reason"),
    [
        ([], "error", "the run did not come to its end"),
        ([{"collected": 2}, line(), line("a.py::other")], "error", "the run did not come to its end"),
        ([{"collected": 2}, line(), {"exit": 0}], "error", "1 of 2 tests did not run"),
        ([{"collected": 1}, line(), {"exit": 3}], "error", "pytest had an internal error"),
        ([{"collected": 1}, line(), {"exit": 2}], "error", "it was interrupted"),
        ([{"exit": 5}], "error", "no test ran"),
        ([{"exit": 0}], "error", "no test ran"),
        ([{"collected": 1}, line(outcome="skip"), {"exit": 0}], "error", "every test was skipped"),
        ([{"collected": 1}, line(outcome="fail"), {"exit": 1}], "fail", ""),
        ([{"collected": 1}, line(), {"exit": 1}], "fail", ""),
        ([{"collected": 2}, line(outcome="xfail"), line("b.py::b"), {"exit": 0}], "pass", ""),
    ],
)
def test_only_a_run_that_came_to_its_end_passes(lines, outcome, reason):
    found = results.judged(CELL, "smoke", lines)
    assert (found.outcome, found.reason) == (outcome, reason)


def test_a_run_that_was_ended_is_an_error_whatever_it_wrote():
    found = results.judged(CELL, "smoke", [{"collected": 1}, line(), {"exit": 0}], problem="it took longer than 9 s")
    assert (found.outcome, found.reason) == ("error", "it took longer than 9 s")


def test_a_run_with_other_versions_is_an_error():
    lines = [{"collected": 1}, line(), {"exit": 0, "versions": {"keras": "3.15.1"}}]
    assert results.judged(CELL, "smoke", lines, versions={"keras": "3.15.1"}).outcome == "pass"
    found = results.judged(CELL, "smoke", lines, versions={"keras": "3.8.0"})
    assert (found.outcome, found.reason) == ("error", "the run ended with keras 3.15.1")


def test_tests_that_did_not_run_are_counted():
    found = results.judged(CELL, "smoke", [{"collected": 5}, line(), line("b.py::b", "xfail")])
    assert found.counts == {"pass": 1, "xfail": 1, "fail": 0, "skip": 0, "not run": 3}


def test_outcomes_of_an_earlier_run_are_kept_for_the_tests_that_were_left_out():
    earlier = [results.Outcome("a.py::a", "pass"), results.Outcome("gone.py::b", "pass")]
    lines = [{"left_out": [["a.py::a", ""]]}, {"collected": 1}, line("b.py::b", "xfail"), {"exit": 0}]
    found = results.judged(CELL, "smoke", lines, earlier=earlier)
    assert [(test.test, test.outcome) for test in found.tests] == [("a.py::a", "pass"), ("b.py::b", "xfail")]
    assert (found.outcome, found.collected) == ("pass", 2)


def test_a_test_that_was_left_out_without_an_outcome_did_not_run():
    lines = [{"left_out": [["a.py::a", ""]]}, {"collected": 1}, line("b.py::b"), {"exit": 0}]
    assert results.judged(CELL, "smoke", lines).reason == "1 of 2 tests did not run"


def test_a_test_has_the_outcome_of_its_worst_phase():
    (found,) = results.merged([line(), line(outcome="fail", phase="teardown", reason="leak")])
    assert (found.outcome, found.reason, found.seconds) == ("fail", "leak", 2.0)


def test_a_line_that_was_cut_ends_the_lines(tmp_path):
    path = tmp_path / "run.jsonl"
    path.write_text(json.dumps({"collected": 2}) + "\n" + json.dumps(line())[:20])
    assert results.lines_of(path) == [{"collected": 2}]
    assert results.lines_of(tmp_path / "missing.jsonl") == []


def test_a_result_is_the_same_when_it_is_read(tmp_path):
    lines = [{"collected": 2}, line(), line("b.py::b[eager]", "fail", reason="why"), {"exit": 1}]
    found = results.judged(CELL, "smoke", lines, versions={"keras": "3.8.0"}, seconds={"run": 1.5})
    assert results.write(tmp_path, found).name == "tf-2.18.1-keras-3.8.0.json"
    assert results.read(tmp_path) == [found]
    (tmp_path / "other.json").write_text("{}")
    with pytest.raises(ValueError, match=r"other\.json: no result of a cell"):
        results.read(tmp_path)


@pytest.mark.parametrize(
    ("program", "deadline", "told"),
    [
        ("import signal; signal.pause()", 0.5, "it took longer than 0 s"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", 60, "pytest was ended by signal 9"),
        ("pass", 60, ""),
    ],
)
def test_what_ended_a_run(tmp_path, program, deadline, told):
    environment = Environment(Path(sys.executable), (), {}, has_plugin=True)
    assert _pytest([sys.executable, "-c", program], environment, tmp_path / "log", deadline) == told


def test_the_command_tests_the_subject_with_the_plugin(tmp_path):
    given = command.Settings(tmp_path, "core", processes=2)
    environment = Environment(Path("python"), (), {}, has_plugin=False)
    words = pytest_command(Cell("2.16.2", "newest", "tf_keras"), environment, given, tmp_path / "lines")
    assert {"--ddl-keras=tf_keras", "--ddl-tier=core", "pytest_ddl.plugin"} <= set(words)
    assert words[words.index("-n") + 1] == "2"


SUITE = """
import os
import pytest

def test_passes(): pass
def test_fails(): assert 1 == 2, "one is not two"
def test_is_skipped(): pytest.skip("no GPU")
@pytest.mark.xfail(reason="known (https://example.org/1)", strict=True)
def test_is_known(): raise ValueError
@pytest.fixture
def broken(): raise OSError("no file in /some/folder/data.csv")
def test_has_no_set_up(broken): pass
"""
PROFILE = "from hypothesis import settings\nsettings.register_profile('suite', max_examples=3)\n"


@pytest.fixture
def recorded(pytester, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]))
    pytester.makeconftest(PROFILE)

    def run(program: str, *arguments: str) -> list[dict]:
        pytester.makepyfile(test_it=program)
        pytester.runpytest_subprocess("-p", "suites.matrix.recording", "--matrix-results=out/lines", *arguments)
        return results.lines_of(pytester.path / "out" / "lines")

    return run


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [(), ("-n", "1")], ids=["one process", "xdist"])
def test_outcomes_are_written(recorded, arguments):
    if arguments:
        pytest.importorskip("xdist")
    lines = recorded(SUITE, *arguments)
    assert {"collected": 5} in lines
    assert (lines[-1]["exit"], set(lines[-1]["versions"])) == (1, {"tensorflow", "keras", "tf_keras"})
    found = {test.test.partition("::")[2]: (test.outcome, test.reason) for test in results.merged(lines[1:-1])}
    assert found == {
        "test_passes": ("pass", ""),
        "test_fails": ("fail", "AssertionError: one is not two"),
        "test_is_skipped": ("skip", "no GPU"),
        "test_is_known": ("xfail", "known (https://example.org/1)"),
        "test_has_no_set_up": ("fail", "OSError: no file in data.csv"),
    }


@pytest.mark.slow
def test_tests_with_an_outcome_are_left_out(recorded, pytester):
    (pytester.path / "kept.json").write_text(json.dumps([["test_it.py::test_fails", ""], ["gone.py::test", ""]]))
    lines = recorded(SUITE, "--matrix-kept=kept.json", "-k", "passes or fails")
    assert {"left_out": [["test_it.py::test_fails", ""]]} in lines
    assert {"collected": 1} in lines
    assert [test.test for test in results.merged(one for one in lines if "test" in one)] == ["test_it.py::test_passes"]


@pytest.mark.slow
def test_a_part_of_the_suite_does_not_pass_for_the_whole(run_suite, pytester, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    test = "import pytest\n@pytest.mark.ddl_item('metric.Mean')\n@pytest.mark.parametrize('x', [1, 2])\n"
    words = ("-p", "suites.matrix.recording", "--matrix-results=lines", "--ddl-strategy=one_device", "-k", "1]")
    run_suite(test + "def test_it(x): pass\n", *words).assert_outcomes(passed=1, deselected=1)
    lines = results.lines_of(pytester.path / "lines")
    assert results.judged(CELL, "core", lines).reason == "1 of 2 tests did not run"
    (other,) = next(line["left_out"] for line in lines if "left_out" in line)
    earlier = [results.Outcome(other[0], "fail", variant=other[1])]
    assert results.judged(CELL, "core", lines, earlier=earlier).counts["fail"] == 1


@pytest.mark.slow
def test_the_ranks_of_a_cluster_write_nothing(recorded):
    program = "import pytest\n@pytest.mark.ddl(strategies=['one_device'])\ndef test_it(ddl_strategy): pass\n"
    lines = recorded(program)
    assert [line.get("phase", next(iter(line))) for line in lines] == ["collected", "call", "exit"]


@pytest.mark.slow
def test_a_run_that_dies_leaves_what_it_had(recorded):
    lines = recorded("import os\ndef test_passes(): pass\ndef test_dies(): os._exit(1)\n")
    found = results.judged(CELL, "smoke", lines)
    assert (found.outcome, found.reason) == ("error", "the run did not come to its end")
    assert found.counts["pass"] == found.counts["not run"] == 1


@pytest.mark.slow
def test_a_suite_that_cannot_be_collected_is_an_error(recorded):
    found = results.judged(CELL, "smoke", recorded("import no_such_module\n"))
    assert (found.outcome, found.reason) == ("error", "it was interrupted")
    assert found.tests[0].reason == "ModuleNotFoundError: No module named 'no_such_module'"


def result(cell: Cell, *lines: dict) -> results.Result:
    versions = {"keras": cell.keras, "python": "3.11.7"}
    return results.judged(cell, "smoke", [{"collected": len(lines)}, *lines, {"exit": 0}], versions=versions)


def sample(before: list[results.Result] | None = None) -> numbers.Numbers:
    old = result(CELL, line(), line(strategy="multi_worker_mirrored", outcome="fail", reason="why"))
    new = result(NEW, line(), line(strategy="multi_worker_mirrored", outcome="xfail", reason=KNOWN))
    struck = results.Result(Cell("2.21.0", "3.8.0"), "smoke", "struck", "tensorflow 2.21.0 requires keras>=3.12.0")
    others = [CELL, NEW, struck.cell, Cell("2.16.2", "3.3.3")]
    return json.loads(json.dumps(numbers.numbers([old, new, struck], before or [], others)))


def test_the_page_shows_items_by_cell_and_strategy():
    text = page.page(sample())
    assert "| item | under | 2.18.1<br>3.8.0 | 2.21.0<br>3.15.1 |" in text
    assert "| `layer.Dense` | MW | **F**&nbsp;W | x&nbsp;W |" in text
    assert "Not run: `layer." in text


def test_the_page_has_the_line_of_the_newest_cell():
    expected = f"TF 2.21.0 + Keras 3.15.1: 0 of {len(items())} items pass, 1 expected failures (smoke tier)"
    assert page.badge(sample()) == expected
    assert f"**{expected}**" in page.page(sample())


def test_the_page_says_what_was_not_run_and_what_is_struck():
    text = page.page(sample())
    assert "* TF 2.16.2 with Keras 3.3.3" in text
    assert "* TF 2.21.0 + Keras 3.8.0: tensorflow 2.21.0 requires keras>=3.12.0" in text


def test_the_page_has_the_first_and_the_last_bad_version_of_a_failure():
    cells = [Cell("2.16.2", keras) for keras in ("3.7.0", "3.8.0", "3.10.0", "3.12.0")]
    outcomes = ["pass", "fail", "fail", "pass"]
    found = [result(cell, line(outcome=one, reason="why")) for cell, one in zip(cells, outcomes, strict=True)]
    (row,) = numbers.numbers(found)["failures"]
    assert (row["bad"], row["good"]) == ([cells[1].id, cells[2].id], [cells[0].id, cells[3].id])
    versions = "**unknown**: TF 2.16.2, Keras 3.8.0 to 3.10.0; 2 of 4 cells, passes in 2"
    assert f"| `a.py::test` | M | {versions} | `why` |" in page.page(numbers.numbers(found))


def test_a_known_failure_has_its_link():
    (row,) = (row for row in sample()["failures"] if row["kind"] == "xfail")
    assert (row["reason"], row["place"]) == ("worker-died: an empty tensor", "https://example.org/1")
    assert "<https://example.org/1>" in page.page(sample())


@pytest.mark.parametrize(
    ("message", "shown"),
    [
        (
            "Indices are not valid. [Op:DeserializeSparse] [[x]][y]",
            "`Indices are not valid. [Op:DeserializeSparse] [[x]][y]`",
        ),
        ("no `units` | ``given``", "``` no `units` \\| ``given`` ```"),
    ],
)
def test_the_message_of_an_exception_is_no_markdown(message, shown):
    assert f"| {shown} |" in page.page(numbers.numbers([result(CELL, line(outcome="fail", reason=message))]))


def test_a_cell_that_is_an_error_is_shown_as_one():
    cut = results.judged(CELL, "core", [{"collected": 2}, line()])
    text = page.page(numbers.numbers([cut]))
    assert "| **error**: the run did not come to its end |" in text
    assert "the run is an error" in page.badge(numbers.numbers([cut]))


def test_a_cell_has_the_numbers_of_its_tests_and_the_versions_of_other_packages():
    text = page.page(sample())
    assert "| TF 2.21.0 + Keras 3.15.1 | smoke | pass | 1 pass, 1 known failures |  |" in text
    assert "* TF 2.18.1, TF 2.21.0: python 3.11.7" in text


ON_A_GPU = Cell("2.21.0", "3.15.1", device="gpu")


def test_runs_that_leave_out_what_was_settled_give_one_cell():
    end = {"exit": 0, "versions": {"tensorflow": "2.21.0", "keras": "3.15.1"}}
    cut = [{"left_out": []}, {"collected": 3}, line(), line("a.py::other", outcome="fail", reason="was mended")]
    rest = [{"left_out": [["a.py::test", line()["variant"]]]}, {"collected": 2}]
    rest += [line("a.py::other"), line("a.py::third", outcome="xfail", reason=KNOWN), end]
    whole = results.of_runs(ON_A_GPU, "core", [cut, rest])
    assert (whole.outcome, whole.reason, whole.collected) == ("pass", "", 3)
    assert whole.counts == {"pass": 2, "xfail": 1, "fail": 0, "skip": 0, "not run": 0}
    assert results.of_runs(ON_A_GPU, "core", [cut]).outcome == "error"
    assert results.of_runs(ON_A_GPU, "core", [cut, rest[:-1]]).reason == "the run did not come to its end"
    other = [*rest[:-1], {**end, "versions": {"tensorflow": "2.20.0", "keras": "3.15.1"}}]
    assert results.of_runs(ON_A_GPU, "core", [cut, other]).reason == "the run ended with tensorflow 2.20.0"
    assert results.of_runs(ON_A_GPU, "core", []).outcome == "error"
    nothing = [{"left_out": [["a.py::test", line()["variant"]]]}, {**end, "exit": 5}]
    assert results.of_runs(ON_A_GPU, "core", [cut, rest, nothing]) == whole
    assert results.of_runs(ON_A_GPU, "core", [nothing]).outcome == "error"


def test_a_cell_on_a_gpu_has_a_column_and_is_not_the_newest_cell():
    on_cpus, on_gpus = result(NEW, line()), result(ON_A_GPU, line(outcome="xfail", reason=KNOWN))
    found = json.loads(json.dumps(numbers.numbers([on_cpus, on_gpus])))
    text = page.page(found)
    assert "| item | under | 2.21.0<br>3.15.1 | 2.21.0<br>3.15.1<br>GPU |" in text
    assert "| TF 2.21.0 + Keras 3.15.1, one GPU | smoke |" in text
    assert page.badge(found) == page.badge(json.loads(json.dumps(numbers.numbers([on_cpus]))))


def test_the_command_of_a_cell_on_a_gpu_has_the_strategies_that_one_gpu_can_run(tmp_path):
    environment = Environment(Path("python"), (), {}, has_plugin=True)
    words = pytest_command(ON_A_GPU, environment, command.Settings(tmp_path, "core"), tmp_path / "lines")
    assert "--ddl-device=gpu" in words
    (strategies,) = (word for word in words if word.startswith("--ddl-strategy="))
    assert "model_parallel" not in strategies


def test_lines_of_another_machine_are_read(tmp_path, capsys):
    lines = tmp_path / "core-1.jsonl"
    versions = {"tensorflow": "2.21.0", "keras": "3.15.1"}
    texts = [{"collected": 1}, line(), {"exit": 0, "versions": versions}]
    lines.write_text("\n".join(map(json.dumps, texts)) + "\n", encoding="utf-8")
    assert command.main(["read", ON_A_GPU.id, str(lines), f"--folder={tmp_path}"]) == 0
    assert "one GPU: pass; 1 pass" in capsys.readouterr().out
    (found,) = results.read(tmp_path / "results")
    assert (found.cell, found.tier) == (ON_A_GPU, "core")


def test_what_changed_since_older_results():
    before = [
        result(
            NEW,
            line(outcome="fail"),
            line(strategy="multi_worker_mirrored", outcome="xfail"),
            line("a.py::gone"),
            line("a.py::was_red", "fail"),
        )
    ]
    found = sample(before)
    assert found["compared"] == [NEW.id]
    assert [(row["test"], row["before"], row["after"], row["strategies"]) for row in found["changes"]] == [
        ("a.py::test", "fail", "pass", "M"),
        ("a.py::was_red", "fail", "not there", "M"),
    ]
    assert "| TF 2.21.0 + Keras 3.15.1 | `a.py::test` | M | 1 | fail | pass |" in page.page(found)
    assert "There are no older results." in page.page(sample())


def test_the_page_is_the_one_of_its_numbers(tmp_path):
    given = numbers.read()
    assert page.PAGE.read_text(encoding="utf-8") == page.page(given)
    numbers.write(given, tmp_path / "matrix.json")
    assert (tmp_path / "matrix.json").read_text() == numbers.FILE.read_text(encoding="utf-8")
    assert {cell["id"] for cell in given["cells"]} == {cell.id for cell in plan().cells}
    assert set(given["items"]) <= set(items())


def test_the_command_lists_cells_and_refuses_others(capsys):
    assert command.main(["list", "tf-2.18.1-keras-3.8"]) == 0
    assert capsys.readouterr().out.split() == ["tf-2.18.1-keras-3.8.0", "TF", "2.18.1", "+", "Keras", "3.8.0"]
    assert command.main(["list", "keras-9"]) == 2
    assert "no cell has 'keras-9' in its id" in capsys.readouterr().err


def test_a_page_needs_results(tmp_path, capsys):
    assert command.main(["page", "--folder", str(tmp_path)]) == 2
    assert "has no results" in capsys.readouterr().err


def of_both(**outcomes: str) -> numbers.Numbers:
    """Return numbers of cells with two items each, from ``name of the cell`` -> outcomes under two strategies."""
    cells = {
        "old": Cell("2.21.0", "3.14.1"),
        "new": NEW,
        "tf_keras": Cell("2.21.0", "newest", "tf_keras"),
        "other": Cell("2.18.1", "newest", "tf_keras"),
    }
    versions = {"keras": "3.15.1"}
    found = []
    for name, given in outcomes.items():
        pairs = zip(("mirrored", "multi_worker_mirrored"), given.split(), strict=True)
        lines = [line(strategy=strategy, outcome=outcome) for strategy, outcome in pairs]
        run = [{"collected": len(lines)}, *lines, {"exit": 0}]
        found.append(results.judged(cells[name], "core", run, versions={} if name == "old" else versions))
    return numbers.numbers(sorted(found, key=lambda one: one.cell.order))


@pytest.mark.parametrize(
    ("outcomes", "row"),
    [
        ({"new": "pass xfail", "tf_keras": "pass pass"}, "| `layer.Dense` | TF 2.21.0 + Keras 3.15.1: W |  |"),
        ({"new": "pass pass", "tf_keras": "fail pass"}, "| `layer.Dense` |  | TF 2.21.0 + tf_keras 2.21: M |"),
        (
            {"new": "fail pass", "tf_keras": "pass xfail"},
            "| `layer.Dense` | TF 2.21.0 + Keras 3.15.1: M | TF 2.21.0 + tf_keras 2.21: W |",
        ),
        ({"old": "fail fail", "new": "pass pass", "tf_keras": "pass pass"}, ""),
        ({"new": "xfail fail", "tf_keras": "fail xfail"}, ""),
        ({"new": "pass xfail", "tf_keras": "skip skip"}, ""),
    ],
)
def test_the_page_shows_items_that_only_one_package_fails(outcomes, row):
    text = page.page(of_both(**outcomes)).partition("## Keras 3 and tf_keras")[2].partition("## Changed")[0]
    assert "TF 2.21.0 + Keras 3.15.1 and TF 2.21.0 + tf_keras 2.21." in text
    assert [one for one in text.splitlines() if one.startswith("| `")] == ([row] if row else [])
    assert ("No item differs." in text) is (not row)


def test_packages_are_compared_on_one_version_of_tensorflow_only():
    text = page.page(of_both(new="fail fail", other="pass pass"))
    assert "No cell of tf_keras ran beside one of Keras 3 with the same TensorFlow." in text


@pytest.mark.parametrize(
    ("outcomes", "shown"),
    [
        ({"new": "fail pass", "tf_keras": "pass pass"}, "Keras 3.15.1"),
        ({"old": "fail pass", "new": "fail pass", "tf_keras": "fail pass"}, "Keras 3.14.1 to 3.15.1, tf_keras"),
        ({"new": "pass pass", "tf_keras": "fail pass"}, "tf_keras"),
    ],
)
def test_a_failure_names_the_package_that_has_it(outcomes, shown):
    assert f"| **unknown**: TF 2.21.0, {shown}; " in page.page(of_both(**outcomes))
