"""The command: from launches to a forecast, its picture, its comparison with later launches, and its score."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from pytest_ddl.bench import Counters, Matrix
from pytest_ddl.bench.forecasting import sources
from pytest_ddl.bench.forecasting.sources import NoEvidenceError, Stated, evidence_of
from pytest_ddl.bench.outcome import FAILED, INCOMPLETE, OK, USAGE, WRONG
from pytest_ddl.cli import main
from tests.bench.made import launch

pytest.importorskip("scipy")
COUNTERS = Counters(collectives={"all_reduce": 2, "broadcast": 1}, reduced_bytes=4_000_000)


def matrix(times: dict[str, float], *, batch: int = 32, pinned: bool = True) -> Matrix:
    """Launches of ``strategy[workers=N]`` by the seconds of a step, with the batch of a replica."""
    found = []
    for variant, seconds in times.items():
        count = 1 if variant == "one_device" else int(variant.partition("=")[2].rstrip("]"))
        counters = COUNTERS if count > 1 else Counters()
        found.append(launch(variant, seconds, count, batch * count, pinned=pinned, counters=counters))
    return Matrix(tuple(found), {}, "weak")


NOW = {"one_device": 0.100, "multi_worker_mirrored[workers=2]": 0.110}


@pytest.fixture
def measured(tmp_path: Path) -> Path:
    path = tmp_path / "now.json"
    matrix(NOW).save(path)
    return path


def test_launches_become_evidence() -> None:
    found = evidence_of([matrix(NOW), matrix({"one_device": 0.055}, batch=16)], stated=Stated(nodes=2))
    assert [(one.size.replicas, one.size.nodes, one.size.batch_per_replica) for one in found.observations] == [
        (1, 1, 32),
        (2, 2, 32),
        (1, 1, 16),
    ]
    assert (found.per_node, found.gradient_bytes, found.collectives) == (1, 4e6, 3)
    assert found.shares_cores == ""
    assert found.jitter == 0.0


def test_launches_that_shared_cores_are_no_evidence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "loose.json"
    matrix(NOW, pinned=False).save(path)
    assert main(["forecast", str(path), "--replicas=2"]) == INCOMPLETE
    out = " ".join(capsys.readouterr().out.split())
    assert "were not pinned and shared cores when they were measured" in out


def test_launches_with_their_own_cores_are_used_alone() -> None:
    crowded = matrix({"multi_worker_mirrored[workers=4]": 0.25}, pinned=False)
    found = evidence_of([matrix(NOW), crowded])
    assert [one.size.replicas for one in found.observations] == [1, 2]
    assert found.shares_cores == ""


@pytest.mark.parametrize(
    ("times", "strategy", "words"),
    [
        ({"one_device": 0.1}, "mirrored", "no launch of mirrored was measured; there are one_device"),
        ({"parameter_server[workers=2]": 0.1}, None, "no launch has replicas that step together"),
        ({"parameter_server[workers=2]": 0.1}, "parameter_server", "its workers do not step together"),
    ],
)
def test_launches_that_say_nothing_are_named(times: dict[str, float], strategy: str | None, words: str) -> None:
    with pytest.raises(NoEvidenceError, match=words):
        evidence_of([matrix(times)], strategy)


def test_a_forecast_is_printed_saved_and_drawn(
    measured: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    saved, picture = tmp_path / "forecast.json", tmp_path / "forecast.svg"
    options = ["--replicas=4,8,64", "--nodes=2", f"--output={saved}", f"--picture={picture}"]
    pytest.importorskip("matplotlib")
    assert main(["forecast", str(measured), *options]) == OK
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines()[1:])) <= 100
    text = " ".join(out.split())
    assert "4 MB of gradients in 3 collectives" in text
    assert "refused [1]" in text
    assert "64 replicas are more than 16 times the 2 that were measured" in text
    assert [point["size"]["replicas"] for point in json.loads(saved.read_text())["points"]] == [4, 8, 64]
    assert "<svg" in picture.read_text()


def test_a_forecast_is_compared_with_later_launches_and_the_score_is_kept(
    measured: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    saved, later, score = (tmp_path / f"{name}.json" for name in ("forecast", "later", "score"))
    assert main(["forecast", str(measured), "--replicas=4,8", "--nodes=2", f"--output={saved}"]) == OK
    for seconds, status, word in ((0.115, OK, "holds"), (0.300, WRONG, "missed")):
        matrix({"multi_worker_mirrored[workers=4]": seconds}).save(later)
        capsys.readouterr()
        assert main(["forecast", str(saved), f"--check={later}", "--nodes=4", f"--score={score}"]) == status
        out = capsys.readouterr().out
        assert word in out
        # A later comparison of the same size takes the place of the one before.
        assert "score of all 1 comparisons" in out
    assert "across nodes: 1 forecast" in out


def test_published_series_are_checked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    head, *rows = Path(__file__).with_name("published_scaling.csv").read_text().splitlines(keepends=True)
    path = tmp_path / "some.csv"
    path.write_text("".join([head, *(row for row in rows if row.startswith(("ebug-", "mxnet-", "nv-mxnet-")))]))
    assert main(["forecast", str(path), "--check"]) == OK
    out = capsys.readouterr().out
    assert "in one node: 4 forecast, median error" in out
    assert "ebug-p2.xlarge-inception3-real" in out


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--replicas=a"], "--replicas=a must be whole numbers"),
        (["--replicas=0,2"], "--replicas=0,2 must be whole numbers, at least 1"),
        (["--link=fast"], "--link: 'fast' must be a bandwidth"),
        (["--link-within=string"], "--link-within: 'string' must be a bandwidth"),
        (["--nodes=3"], "nodes=3 does not divide the 2 replicas"),
        (["--per-node=1"], "per_node=1, but multi_worker_mirrored[workers=2] had 2 replicas on a node"),
        (["--servers=2"], "--servers=2 is for series of a CSV file"),
        (["--score=x.json"], "--score=x.json needs --check"),
        (["--strategy=mirrored"], "no launch of mirrored was measured"),
        (["--check=missing.json"], "missing.json cannot be read"),
        (["--picture=x.unknown"], "--picture=x.unknown"),
    ],
)
def test_wrong_options_are_named(
    measured: Path, capsys: pytest.CaptureFixture[str], options: list[str], words: str
) -> None:
    assert main(["forecast", str(measured), *options]) == USAGE
    error = capsys.readouterr().err
    assert words in error
    assert error.count("\n") == 1


def test_another_strategy_is_not_compared(measured: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    saved, later = (tmp_path / f"{name}.json" for name in ("forecast", "later"))
    assert main(["forecast", str(measured), "--replicas=4", "--nodes=2", f"--output={saved}"]) == OK
    matrix({"mirrored[replicas=4]": 0.1}).save(later)
    assert main(["forecast", str(saved), f"--check={later}", "--nodes=4"]) == USAGE
    assert "no launch of multi_worker_mirrored was measured" in capsys.readouterr().err
    matrix({"multi_worker_mirrored[workers=4]": 0.1}, pinned=False).save(later)
    assert main(["forecast", str(saved), f"--check={later}", "--nodes=4"]) == USAGE
    assert "were not pinned and shared cores" in capsys.readouterr().err


def test_options_that_a_table_has_in_its_rows_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    path = str(Path(__file__).with_name("published_scaling.csv"))
    for option, words in (("--nodes=2", "is for launches"), ("--check=x.json", "are in the file itself")):
        assert main(["forecast", path, option]) == USAGE
        assert words in capsys.readouterr().err
    assert main(["forecast", path, "--check", "--output=x.json"]) == USAGE
    assert "--output=x.json writes a new forecast" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"program": "a", "evidence": {}, "points": [{}]}', "is no forecast of this version"),
        ("[]", "holds no object: give a file of pytest-ddl evaluate"),
        ("{}", "has no launches"),
        ("{", "is not JSON"),
    ],
)
def test_wrong_files_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, words: str) -> None:
    path = tmp_path / "own.json"
    path.write_text(text)
    assert main(["forecast", str(path)]) == USAGE
    assert f"{path} {words}" in capsys.readouterr().err


def test_a_loop_with_batches_of_its_own_is_refused_before_smaller_batches_are_measured(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    launch = SimpleNamespace(strategy="one_device", batch_problem="16 examples were counted")
    measured: list[object] = []

    def measure(*_given: object, **settings: object) -> object:
        measured.append(settings["batch_per_replica"])
        return SimpleNamespace(skipped={}, launches=[launch])

    monkeypatch.setattr(sources, "measure", measure)
    with pytest.raises(sources.NoEvidenceError, match=r"^one_device: 16 examples were counted$"):
        sources.measured_program(print, "mirrored", 32, launches=1, device="cpu", timeout=9.0, tell=lambda _line: None)
    assert measured == [32]


@pytest.mark.slow
def test_a_training_function_is_measured_and_forecast(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("sklearn")
    monkeypatch.chdir(tmp_path)
    options = ["--batch-per-replica=8", "--launches=1", "--replicas=2,64"]
    status = main(["forecast", "asv_bench.studies.medical:train_mlp", *options])
    out, told = capsys.readouterr()
    text = " ".join(out.split())
    # Three batches on one device, and two workers. The times depend on the machine. On a busy one they can contradict
    # each other, or one device can be slower than two workers, so that no row is forecast.
    slow_baseline = "times as fast as ideal" in text
    refused = slow_baseline or "the measured times contradict each other" in text
    assert status == (INCOMPLETE if refused else OK)
    assert slow_baseline or "64 replicas are more than 16 times the 2 that were measured" in text
    assert "from 4 measured sizes (1 x batch 8, 2 x batch 8, 1 x batch 4, 1 x batch 2)" in text
    assert "link between nodes" not in out
    assert told.count("measuring") == 3


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ([], "give launches (JSON), series (CSV) or a training function to measure"),
        (["nowhere:train"], "there is no module 'nowhere'"),
        (["nowhere:train", "x.json"], "nowhere:train: give one training function, and no other files"),
        # Before anything is measured.
        (["asv_bench.studies.medical:train_mlp", "--replicas=x"], "--replicas=x must be whole numbers"),
        (["asv_bench.studies.medical:train_mlp", "--check"], "--check needs a file of later launches"),
    ],
)
def test_a_wrong_training_function_is_named(capsys: pytest.CaptureFixture[str], source: list[str], words: str) -> None:
    assert main(["forecast", *source]) == USAGE
    assert words in capsys.readouterr().err


def test_messages_of_the_import_of_tensorflow_are_hidden(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "noisy.py").write_text(
        "import os\nos.write(2, b'I0000 00:00 port.cc:153] oneDNN\\nmine\\n')\ntrain = 3\n"
    )
    monkeypatch.chdir(tmp_path)
    assert main(["forecast", "noisy.py:train"]) != 0
    error = capfd.readouterr().err
    assert "oneDNN" not in error
    assert error.startswith("mine\n")
    assert "train is int, not a function" in error


@pytest.mark.slow
def test_a_rank_that_exits_with_zero_is_a_failure(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "leaves.py").write_text("import os\n\n\ndef train(run):\n    os._exit(0)\n")
    assert main(["forecast", "leaves.py:train", "--launches=1"]) == FAILED
    assert "leaves.py:train could not be measured" in capsys.readouterr().err
