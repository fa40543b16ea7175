"""Output of a result (exit status, table, JSON, GitHub), and the command line."""

from __future__ import annotations

import json
from dataclasses import replace
from importlib import import_module
from pathlib import Path

import pytest

from pytest_ddl import github
from pytest_ddl.bench.gate import GatePlan
from pytest_ddl.bench.gate.cell import measure_cell
from pytest_ddl.bench.gate.gating import name_of
from pytest_ddl.bench.gate.result import EXIT_STATUS, CellResult, GateResult
from pytest_ddl.bench.gate.verdict import Verdict
from pytest_ddl.bench.gate.worktrees import Version
from pytest_ddl.bench.outcome import UsageError
from pytest_ddl.cli import main
from tests.bench.gate.made import COUNTERS, cell, launch, paired


def bare(verdict: Verdict) -> CellResult:
    return CellResult("training:train", "one_device", verdict, "because | of\n50% more")


def whole(*cells: CellResult) -> GateResult:
    return GateResult(Version("main", "a" * 40, "t"), Version("topic", "b" * 40, "u"), cells, 0.025)


def measured(percent: float) -> CellResult:
    given = iter([paired(percent + noise) for noise in (0.1, -0.1, 0.2, -0.2)])
    return measure_cell(cell(), launch=lambda _number: next(given))


@pytest.mark.parametrize(
    ("verdicts", "status"),
    [
        ([Verdict.PASS], 0),
        ([Verdict.IMPROVEMENT, Verdict.PASS], 0),
        ([Verdict.PASS, Verdict.INCONCLUSIVE], 3),
        ([Verdict.INCONCLUSIVE, Verdict.ERROR], 4),
        ([Verdict.ERROR, Verdict.REGRESSION, Verdict.PASS], 1),
    ],
)
def test_the_worst_cell_decides(verdicts: list[Verdict], status: int) -> None:
    result = whole(*map(bare, verdicts))
    assert result.exit_status == status
    assert result.passed is (status == 0)


def test_every_verdict_has_a_status() -> None:
    assert set(EXIT_STATUS) == set(Verdict)


def test_a_gate_in_which_nothing_ran_cannot_be_made() -> None:
    with pytest.raises(ValueError, match="measured nothing"):
        whole()


def test_the_table_shows_estimate_interval_and_both_versions() -> None:
    text = str(whole(measured(5)))
    assert "REGRESSION  +5.0 % (" in text
    assert "-4.8 %" in text
    assert "BASE  main (aaaaaaaaaa); /v/BASE/train.py; tensorflow 2.21.0" in text
    assert "HEAD  topic (bbbbbbbbbb); /v/HEAD/train.py" in text
    assert text.endswith("REGRESSION (1 cell, margin 2.5 %; exit status 1)\n")


def test_what_was_not_measured_is_said() -> None:
    text = str(whole(bare(Verdict.INCONCLUSIVE)))
    assert "not measured" in text
    assert "it was not shown that HEAD is as fast as BASE; exit status 3" in text


def test_what_was_measured_is_never_called_not_measured() -> None:
    text = str(whole(replace(bare(Verdict.INCONCLUSIVE), launches=(paired(9), paired(11)))))
    assert "+10.0 % (no bounds)" in text
    assert "not measured" not in text


def test_a_worse_counter_is_explained_once() -> None:
    worse = replace(COUNTERS, collectives={"all_reduce": 2})
    found = measure_cell(cell(), launch=lambda _number: paired(0, head=worse))
    message = found.changes[0].message
    assert str(whole(found)).count(message) == 1
    assert str(whole(found)).count("worse: collectives.all_reduce 1 -> 2\n") == 1


def test_what_launches_had_to_say_is_shown_once_with_its_versions() -> None:
    both, alone = "copies were not counted", "only loop 1 | of 2 was measured"
    launches = tuple(
        replace(
            paired(0),
            base=launch(replace(COUNTERS, notes=(both,))),
            head=launch(replace(COUNTERS, notes=(both, alone))),
        )
        for _ in range(2)
    )
    result = whole(replace(bare(Verdict.PASS), launches=launches))
    told = str(result)
    assert told.count(f"  note: BASE and HEAD: {both}\n") == told.count(f"  note: HEAD: {alone}\n") == 1
    assert told.count("note:") == 2
    assert "  * note: HEAD: only loop 1 \\| of 2 was measured\n" in result.step_summary()


def test_json_has_everything_and_no_nan(tmp_path: Path) -> None:
    whole(measured(-10), bare(Verdict.ERROR)).save(tmp_path / "gate.json")
    data = json.loads((tmp_path / "gate.json").read_text())
    assert (data["schema"], data["verdict"], data["exit_status"]) == (1, "could not measure", 4)
    first, second = data["cells"]
    assert first["decision"]["throughput_ratio"] == pytest.approx(1 / 0.9, rel=1e-2)
    assert first["launches"][0]["provenance"]["HEAD"]["program"] == "/v/HEAD/train.py"
    assert first["counters"]["base"]["collectives"] == {"all_reduce": 1}
    assert second["decision"] is None


def test_annotations_are_escaped() -> None:
    text = whole(bare(Verdict.REGRESSION), bare(Verdict.INCONCLUSIVE), bare(Verdict.PASS)).annotations()
    error, warning = text.splitlines()
    assert error == "::error title=regression%3A training%3Atrain one_device::because | of%0A50%25 more"
    assert warning.startswith("::warning title=inconclusive")


def test_the_step_summary_is_appended(tmp_path: Path) -> None:
    path = tmp_path / "summary.md"
    path.write_text("before\n")
    assert github.append_summary(
        whole(measured(5), bare(Verdict.ERROR)).step_summary(), {"GITHUB_STEP_SUMMARY": str(path)}
    )
    text = path.read_text()
    assert text.startswith("before\n## Performance gate: regression")
    assert "| REGRESSION | +5.0 % (" in text
    assert "because \\| of 50% more" in text
    assert not github.append_summary("text", {})


def command(*arguments: str) -> int:
    return main(["gate", *arguments, "--target", "training:train"])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["HEAD", "HEAD"], "so there is nothing to compare"),
        (["nonsense", "HEAD"], "'nonsense' is no commit"),
        (["HEAD~1", "HEAD", "--max-launches", "2"], "--max-launches=2 must be at least"),
        (["HEAD~1", "HEAD", "--accept", "nodes"], "--accept='nodes' must be COUNTER=REASON"),
        (["HEAD~1", "HEAD", "--strategy", "mirorred"], "--strategy='mirorred'"),
        (["HEAD~1", "HEAD", "--json", "/no/such/folder/gate.json"], "there is no folder"),
        (["HEAD~1", "HEAD", "--path", "no/such"], "--path='no/such' is no folder of BASE"),
        (["HEAD~1", "HEAD", "--target", "train"], "must be MODULE:FUNCTION"),
        (["HEAD~1", "HEAD", "--accept", "nods=because"], "'nods' is not a counter"),
        (["HEAD~1", "HEAD", "--head-python", "/no/such/python"], "--head-python='/no/such/python'"),
    ],
)
def test_what_cannot_be_gated_is_a_wrong_command_line(
    arguments: list[str], words: str, project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command(*arguments, "--repository", str(project)) == 2
    assert words in capsys.readouterr().err


@pytest.mark.parametrize(
    ("option", "text", "words"),
    [
        *(("--margin", text, "for example 0.025") for text in ("0", "3", "2.5", "much")),
        ("--budget", "0", "argument --budget: '0' is not a positive number of seconds"),
        ("--batch-per-replica", "0", "argument --batch-per-replica: '0' is not a whole number, at least 1"),
    ],
)
def test_a_number_out_of_its_range_is_refused(
    option: str, text: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        command("HEAD~1", "HEAD", option, text)
    assert ended.value.code == 2
    assert words in capsys.readouterr().err


def test_a_target_that_a_version_lacks_could_not_be_measured(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command("HEAD~1", "HEAD", "--repository", str(project), "--quiet") == 4
    out = capsys.readouterr().out
    assert "COULD NOT MEASURE: BASE (" in out
    assert "have no training, so there is nothing to compare" in out


def test_plans_without_anything_to_measure_are_refused() -> None:
    with pytest.raises(UsageError, match="no --target"):
        GatePlan("a", "b", ())
    with pytest.raises(UsageError, match="no --strategy"):
        GatePlan("a", "b", ("m:f",), ())


def test_a_function_is_named_by_its_module_or_its_file(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = project
    (root / "gate_named").mkdir()
    (root / "gate_named" / "training.py").write_text("def train(run): ...\n")
    monkeypatch.syspath_prepend(str(root))
    assert name_of(import_module("gate_named.training").train, root) == "gate_named.training:train"
    monkeypatch.syspath_prepend(str(root / "gate_named"))
    assert name_of(import_module("training").train, root) == "gate_named/training.py:train"
    with pytest.raises(UsageError, match="cannot be found by its name"):
        name_of(lambda run: None, root)
    with pytest.raises(UsageError, match="which is not in the repository"):
        name_of(json.dumps, root)
