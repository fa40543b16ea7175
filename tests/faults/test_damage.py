"""A file of a save is damaged: a program that refuses it or falls back passes, one that loads it does not."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

from pytest_ddl import Sweep, check_training
from pytest_ddl.faults.damaged import named
from pytest_ddl.faults.rank.damage import _DAMAGES, Held, files_of
from pytest_ddl.faults.rank.fault import KINDS, Fault
from pytest_ddl.faults.verdict import RecoveryVerdict
from pytest_ddl.records import ErrorRecord, RankRecord

WORKERS = "multi_worker_mirrored"
DATA, INDEX, STATE = 1, 2, 3
"""Files of a checkpoint."""


def fault(kind):
    return Fault.parse(f"{kind} worker:0 in save 1, file 1")


def test_each_kind_of_a_file_has_its_damage():
    assert set(_DAMAGES) == {name for name, kind in KINDS.items() if kind.only_in == "file"}


def test_the_files_of_a_save_have_a_fixed_order_and_are_in_the_folder_of_the_run(tmp_path):
    run = tmp_path / "run"
    (run / "model").mkdir(parents=True)
    for name in (
        "ckpt-1.data-00000-of-00001",
        "ckpt-1.index",
        "ckpt-10.index",
        "checkpoint",
        "a.keras",
        "model/b.pb",
        "model/a.index",
    ):
        (run / name).write_bytes(b"12345678")
    (tmp_path / "outside.keras").write_bytes(b"1")

    def names(path):
        return [str(one.relative_to(run)) for one in files_of(str(path), str(run))]

    assert names(run / "ckpt-1") == ["ckpt-1.data-00000-of-00001", "ckpt-1.index", "checkpoint"]
    assert names(run / "a.keras") == ["a.keras"]
    assert names(run / "model") == ["model/a.index", "model/b.pb"]
    assert names(tmp_path / "outside.keras") == []


def test_a_renamed_file_is_cut_and_a_removed_one_has_no_name(tmp_path):
    path = tmp_path / "new"
    path.write_bytes(b"x" * 100)
    held = Held.open(fault("truncate"), path, str(tmp_path), [])
    path.rename(tmp_path / "old")
    assert held.name == "old"
    held.damage()
    assert (tmp_path / "old").read_bytes() == b"x" * 50
    (tmp_path / "old").unlink()
    assert held.name == ""


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_the_flipped_bit_is_the_sign_of_a_value_that_is_not_zero(tmp_path, dtype):
    value = np.array([[0.0, 0.0], [1.5, -2.0]], dtype)
    path = tmp_path / "saved"
    path.write_bytes(b"head" + np.zeros(2, dtype).tobytes() + value.tobytes() + b"tail")
    Held.open(fault("flip-bit"), path, str(tmp_path), [np.zeros(2, dtype), value]).damage()
    value[1, 0] = -1.5
    assert path.read_bytes() == b"head" + np.zeros(2, dtype).tobytes() + value.tobytes() + b"tail"


def test_a_file_without_a_value_has_a_bit_in_its_middle_flipped(tmp_path):
    path = tmp_path / "saved"
    path.write_bytes(b"abcd")
    Held.open(fault("flip-bit"), path, str(tmp_path), [np.ones(3)]).damage()
    assert path.read_bytes() == b"absd"


@pytest.mark.parametrize(
    ("file", "message", "is_named"),
    [
        ("saved/step-2.weights.h5", "/tmp/run/saved/step-2.weights.h5 is damaged", True),
        ("saved/step-2.weights.h5", "step-2.weights.h5 is damaged", True),
        ("saved/step-2.weights.h5", "/tmp/run/saved/step-2.weights.h5x is damaged", False),
        ("saved/step-2.weights.h5", "truncated file: eof = 9152", False),
        ("saved/ckpt-2.index", "TensorBundle at /tmp/run/saved/ckpt-2 shard 0: Checksum does not match", True),
        ("saved/ckpt-2.index", "TensorBundle at /tmp/run/saved/ckpt-20 shard 0: Checksum does not match", False),
        ("saved/ckpt-2.data-00000-of-00001", "Unable to read file (/tmp/run/saved/ckpt-2.index)", True),
    ],
)
def test_an_error_names_a_file_or_its_checkpoint(file, message, is_named):
    rank = RankRecord(0, "worker:0", (), error=ErrorRecord("ValueError", message, "trace", 0))
    assert bool(named([file], [rank])) is is_named


def only(program, strategy, faults, **given):
    report = check_training(program, strategy, faults=faults, global_batch_size=12, timeout=120, **given)
    (trial,) = report.trials
    return report, trial


def of_file(kind, number, save=2):
    return f"{kind} worker:0 in save {save}, file {number}"


# Each strikes at many points. Each commit runs one sweep.
# The test of the command strikes at every point, too.
@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["mirrored", WORKERS])
def test_a_flipped_bit_that_is_loaded_fails_and_one_that_is_refused_passes(strategy):
    import damage_programs as programs

    report, trial = only(programs.weights, strategy, of_file("flip-bit", 1))
    assert trial.verdict is RecoveryVerdict.DAMAGED, str(report)
    assert trial.message.startswith("damaged save loaded, saved/step-4.weights.h5: attempt 2 continued with a value of")
    assert not report.passed
    report, trial = only(partial(programs.weights, then="refuses"), strategy, of_file("flip-bit", 1), exact=True)
    assert trial.verdict is RecoveryVerdict.REFUSED, str(report)
    assert report.passed
    report, trial = only(
        partial(programs.weights, then="falls back"),
        strategy,
        of_file("flip-bit", 1),
        exact=True,
        always_loadable=True,
    )
    assert report.passed, str(report)
    assert (trial.resumed_at, trial.complete_save) == (2, 2)


@pytest.mark.nightly(each_commit=("1-flip",))
@pytest.mark.slow
@pytest.mark.parametrize("kind", ["truncate", "flip-bit"])
@pytest.mark.parametrize("file", [DATA, INDEX])
def test_a_program_restores_an_older_checkpoint_if_a_file_is_damaged(kind, file):
    import damage_programs as programs

    program = partial(programs.checkpointed, then="falls back")
    report, trial = only(program, "mirrored", of_file(kind, file), exact=True, always_loadable=True)
    assert report.passed, str(report)
    assert trial.resumed_at == 2


@pytest.mark.nightly(each_commit=("flip-bit-2",))
@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "file", "then", "verdict"),
    [
        ("flip-bit", DATA, "", RecoveryVerdict.REFUSED),
        ("flip-bit", INDEX, "", RecoveryVerdict.REFUSED),
        # TensorFlow's own message names no file: suites/repros/cut_checkpoint_without_name.py
        ("truncate", DATA, "", RecoveryVerdict.CANNOT_RESUME),
        ("truncate", DATA, "names", RecoveryVerdict.REFUSED),
    ],
)
def test_a_refusal_must_name_the_file(kind, file, then, verdict):
    import damage_programs as programs

    report, trial = only(partial(programs.checkpointed, then=then), "mirrored", of_file(kind, file))
    assert trial.verdict is verdict, str(report)
    assert report.passed is (verdict is RecoveryVerdict.REFUSED)
    if verdict is RecoveryVerdict.CANNOT_RESUME:
        assert "the error does not name the damaged file saved/ckpt-2.data-00000-of-00001" in trial.message


@pytest.mark.nightly
@pytest.mark.slow
def test_a_sweep_damages_each_file_of_each_save():
    import damage_programs as programs

    program = partial(programs.checkpointed, then="falls back")
    report = check_training(
        program, "mirrored", faults=Sweep("truncate"), global_batch_size=12, timeout=120, exact=True
    )
    assert report.passed, str(report)
    assert [str(trial.schedule[0].point) for trial in report.trials] == [
        f"in save {save}, file {file}" for save in (1, 2, 3) for file in (DATA, INDEX, STATE)
    ]
