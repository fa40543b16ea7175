"""``pytest-ddl try`` as users call it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.trying import scripts


def call(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pytest_ddl.cli", "try", *arguments]
    return subprocess.run(command, cwd=folder, text=True, capture_output=True, timeout=500)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["none.py"], "there is no file 'none.py'"),
        (["."], ". is a folder: give a script (.py) or a notebook (.ipynb)"),
        (["script.txt"], "neither a Python script"),
        (["script.py", "--data=none"], "--data=none does not exist"),
    ],
)
def test_a_wrong_file_is_one_line(arguments: list[str], message: str, tmp_path: Path) -> None:
    for name in ("script.txt", "script.py"):
        (tmp_path / name).touch()
    result = call(tmp_path, *arguments)
    assert (result.returncode, message in result.stderr, len(result.stderr.splitlines())) == (4, True, 1)


@pytest.mark.slow
@pytest.mark.usefixtures("warm_sessions")
def test_a_script_is_compared_and_described(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text("import sys\nassert sys.argv[1:] == ['--lr', '1']\n" + scripts.NO_STRATEGY)
    result = call(tmp_path, "script.py", "--strategy=mirrored", "--steps=2", "--args=--lr 1")
    assert result.returncode == 0, result.stdout + result.stderr
    assert "found in the script (mirrored)" in result.stdout
    assert "strategies:   none in the script: it runs in strategy.scope()" in result.stdout
    assert "models:       Sequential 'sequential'\n" in result.stdout
    assert sorted(path.name for path in tmp_path.iterdir() if not path.name.startswith(".")) == ["script.py"]


@pytest.mark.slow
def test_a_script_whose_ranks_do_not_start_is_undecided(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(scripts.NO_STRATEGY)
    result = call(tmp_path, "script.py", "--strategy=mirrored", "--", "--ddl-start-timeout=0.001")
    assert result.returncode == 1
    reason = "\nundecided: importing TensorFlow took more than 0.001 s; if it is only slow, give more seconds"
    assert reason in result.stdout
    assert "1 undecided in" in result.stdout
    assert "--full-trace" not in result.stdout


@pytest.mark.nightly
@pytest.mark.slow
def test_a_run_that_decides_nothing_does_not_succeed(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text("print('no training here')\n")
    result = call(tmp_path, "script.py", "--strategy=mirrored")
    assert result.returncode == 1
    assert "undecided: no training step was seen" in result.stdout
    assert "1 undecided" in result.stdout
    assert "site-packages" not in result.stdout
    assert "trying/plugin.py" not in result.stdout


@pytest.mark.nightly
@pytest.mark.slow
def test_constant_data_decides_nothing_though_another_strategy_ends_by_a_known_behavior(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(scripts.CONSTANT_DATA)
    result = call(tmp_path, "script.py", "--strategy=mirrored,multi_worker_mirrored")
    assert result.returncode == 1, result.stdout
    assert "1 xfailed, 1 undecided" in result.stdout
    assert "undecided: fit at script.py:" in result.stdout
    assert ": DATA-COVER: all replicas consumed equal examples" in result.stdout


@pytest.mark.nightly
@pytest.mark.slow
def test_rows_for_validation_stay_those_that_the_script_has(tmp_path: Path) -> None:
    """The script is cut to 4 batches, of which a tenth are 15 rows, and no two replicas can share these evenly."""
    (tmp_path / "script.py").write_text(scripts.DROPOUT_AND_SPLIT)
    result = call(tmp_path, "script.py", "--strategy=mirrored")
    assert result.returncode == 0, result.stdout
    assert "keras-seed-generator" in result.stdout
    assert "keras-fit-unequal-parts" not in result.stdout


@pytest.mark.nightly
@pytest.mark.slow
def test_a_strategy_that_cannot_run_here_is_undecided_with_its_reason(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text("print('no training here')\n")
    result = call(tmp_path, "script.py", "--strategy=tpu")
    assert result.returncode == 1, result.stdout
    assert "undecided: script.py: " in result.stdout
    assert "trying/plugin.py" not in result.stdout


@pytest.mark.slow
@pytest.mark.usefixtures("warm_sessions")
def test_a_script_of_a_folder_beside_this_one_is_run(tmp_path: Path) -> None:
    (tmp_path / "here").mkdir()
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "script.py").write_text("open('written', 'w').close()\n")
    result = call(tmp_path / "here", "../there/script.py", "--strategy=mirrored")
    assert "undecided: no training step was seen" in result.stdout, result.stdout
    assert not [*tmp_path.glob("*/written")]


@pytest.mark.nightly
@pytest.mark.slow
def test_a_script_that_fails_with_keras_3_runs_with_tf_keras(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(scripts.KERAS_2)
    result = call(tmp_path, "script.py", "--strategy=mirrored", "--steps=2")
    assert result.returncode == 0, result.stdout + result.stderr
    assert "keras:        tf_keras, because the script fails with Keras 3; see --keras" in result.stdout


@pytest.mark.slow
def test_a_difference_with_tf_keras_alone_is_no_failure(tmp_path: Path) -> None:
    wrong = "\nassert 'tf_keras' not in tf.keras.__name__ or not strategy.extended.worker_devices[1:]\n"
    (tmp_path / "script.py").write_text(scripts.FIT + wrong + "model.save('/tmp/saved_model')\n")
    result = call(tmp_path, "script.py", "--strategy=mirrored", "--steps=2")
    assert result.returncode == 1
    assert "--keras=tf_keras shows how" in " ".join(result.stdout.split())
