"""Two ranks that save to one path are reported as such, after any exception of their race, and also without one."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace

import pytest
from simulated_training import Program, simulate

from pytest_ddl import check_training
from pytest_ddl.faults.judging import with_clashes
from pytest_ddl.faults.report import FaultReport
from pytest_ddl.records import RankRecord, WriteRecord
from pytest_ddl.training import write_log

UNSAFE = "unsafe-checkpoint-path"
FORMS = ("write", "save", "manager", "keras", "h5", "weights", "saved_model", "export")
FAULT = "kill worker:1 before step 6"


def test_the_log_of_written_files_is_read_without_a_torn_line(tmp_path):
    path = write_log.path_of(str(tmp_path), 1, 0)
    assert write_log.read(path) == ()
    records = (WriteRecord("w", "open", 0), WriteRecord("saved/ckpt-1", "tf.train.Checkpoint.save", 2))
    for record in records:
        write_log.append(path, record)
    with path.open("ab") as file:
        file.write(b'{"path": "x"')
    assert write_log.read(path) == records
    assert write_log.read(path, lambda text: text.replace("saved/", "there/"))[1].path == "there/ckpt-1"


def attempt_of(*written):
    ranks = [
        RankRecord(rank, f"worker:{rank}", (), writes=tuple(WriteRecord(path, "open", 2) for path in paths))
        for rank, paths in enumerate(written)
    ]
    return SimpleNamespace(attempt=SimpleNamespace(ranks=ranks))


def test_only_ranks_that_write_one_path_in_one_attempt_clash():
    baseline = simulate(Program(replicas=2, workers=2))
    first, second = attempt_of(["a", "both"], ["rank-1/a", "both"]), attempt_of(["rank-0/a"], ["a"])
    ranks = with_clashes(SimpleNamespace(attempts=(first, second)), second.attempt.ranks, baseline)
    assert [[write.path for write in rank.writes] for rank in ranks] == [["rank-0/a", "both"], ["a", "both"]]


def checked(how, where, **given):
    import writer_programs as programs

    program = partial(programs.saves, how=how, where=where)
    return check_training(program, "multi_worker_mirrored", global_batch_size=12, timeout=120, **given)


# One form of saving of TensorFlow and one of Keras run for each commit.
@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.parametrize("how", FORMS)
def test_two_writers_of_one_path_are_named(how):
    report = checked(how, "one path", faults=FAULT)
    assert [finding.cause for finding in report.findings] == [UNSAFE], str(report)


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.parametrize("how", FORMS)
@pytest.mark.parametrize("late", ["", "; stop worker:0 before save 1 of attempt 2 for 1 s"])
def test_two_writers_after_a_restart_are_named(how, late):
    faults = f"kill worker:1 before step 4{late}".split("; ")
    report = checked(how, "one path after a restart", faults=faults)
    assert isinstance(report, FaultReport)
    assert [finding.cause for finding in report.findings] == [UNSAFE], str(report)


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.parametrize(("how", "where"), [("save", "chief"), ("weights", "own paths"), ("saved_model", "chief")])
def test_paths_of_their_own_are_no_finding(how, where):
    report = checked(how, where, faults=FAULT, exact=True)
    assert report.passed, str(report)
