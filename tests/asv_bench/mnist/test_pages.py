"""Output of the study: the tables, the JSON, the plots, and a page that needs no other file."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from asv_bench.studies import report
from asv_bench.studies.mnist import command
from asv_bench.studies.mnist.results import Experiment
from pytest_ddl.bench.launching.records import EnergyReading
from tests.asv_bench.mnist.synthetic import experiment, training

ORIGIN = report.Origin("python -m asv_bench.studies mnist-scaling", "2026-01-01 00:00 UTC")


def text_of(of: Experiment) -> str:
    return report.markdown(command.report(of), ORIGIN)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a study, whose plots take most of the time. Tests only read it."""
    pytest.importorskip("matplotlib")
    path = tmp_path_factory.mktemp("study") / "a" / "b"
    report.write(command.report(experiment(notes=("a <note>",))), ORIGIN, path)
    return path


def test_published_and_measured_stand_side_by_side() -> None:
    text = text_of(experiment())
    assert "| time on 1 replica | 109.5 s | 109.5 s | 99.0 s |" in text
    assert "| time on 2 replicas | 78.6 s | 78.6 s | 70.0 s |" in text
    assert "69.66% (printed: 69.63%, from unrounded times) | 69.66% | 70.71% |" in text
    assert "| test accuracy on 2 replicas | 0.9948 | 0.9900 |" in text
    assert "one run: no interval" in text
    assert "none: no counters here" in text
    assert "global batch 64 on 1, 128 on 2; the same images, 1/2 of the steps" in text


def test_repeats_have_intervals() -> None:
    runs = [
        training(n, [seconds] * 6, [0.9] * 6, repeat=repeat)
        for repeat, (one, two) in enumerate(((10.0, 6.0), (11.0, 6.5)), 1)
        for n, seconds in ((1, one), (2, two))
    ]
    text = text_of(experiment(*runs))
    assert "2 runs of each, taking turns; intervals are t intervals at 95%" in text
    assert re.search(r"scaling efficiency .* \| 83.97% \(76.2% to 92.5%\)", text)


def test_energy_is_reported_where_it_was_read() -> None:
    from dataclasses import replace

    single = training(1, [1.0] * 2, [0.9] * 2)
    reading = EnergyReading(64.0, 2.0, "nvml: 1 GPU")
    measured = replace(single, ranks=(replace(single.ranks[0], energy=reading),))
    text = text_of(experiment(measured, training(2, [1.0] * 2, [0.9] * 2)))
    assert "| energy on 1 replica | not published | 64 J, evaluating included (20.0 examples/J; nvml: 1 GPU)" in text


def test_the_global_batch_rule_is_reported() -> None:
    assert "global batch 64 on both, split over the replicas" in text_of(experiment(batch_rule="global"))


def test_the_folder_has_everything(folder: Path) -> None:
    names = {"results.json", "table.md", "index.html", "accuracy-loss.svg", "scaling.svg"}
    assert {path.name for path in folder.iterdir()} == names


def test_the_json_has_every_epoch_and_what_follows(folder: Path) -> None:
    found = json.loads((folder / "results.json").read_text())
    assert len(found["trainings"]) == 2
    assert len(found["trainings"][1]["ranks"]) == 2
    assert len(found["trainings"][1]["ranks"][1]["epoch_seconds"]) == 30
    assert found["trainings"][0]["machine"]["cpu"] == "a <CPU>"
    assert found["derived"]["scaling"]["all epochs"]["efficiency"]["value"] == pytest.approx(0.69656, abs=1e-5)
    assert found["derived"]["agreement"]["passed"] is True


def test_the_page_needs_nothing_else(folder: Path) -> None:
    text = (folder / "index.html").read_text()
    assert text.count('src="data:image/svg+xml;base64,') == 2
    assert not re.search(r"<(script|iframe)\b", text)
    assert not re.findall(r"""(?:src|href)=["'](?!data:)""", text)
    assert "@import" not in text
    assert "a &lt;note&gt;" in text
    assert "a &lt;CPU&gt;" in text


def test_plots_are_the_same_for_the_same_numbers(folder: Path, tmp_path: Path) -> None:
    report.write(command.report(experiment(notes=("a <note>",))), ORIGIN, tmp_path / "again")
    for name in ("accuracy-loss.svg", "scaling.svg", "index.html"):
        assert (tmp_path / "again" / name).read_text() == (folder / name).read_text()
