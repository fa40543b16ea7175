"""WRITE and CKPT on records."""

from __future__ import annotations

from dataclasses import replace

import pytest
from simulated_training import Program, simulate

from pytest_ddl.equivalence.checks.checkpoint import check_checkpoint
from pytest_ddl.equivalence.checks.write import check_write
from pytest_ddl.equivalence.evidence.comparison import Comparison
from pytest_ddl.equivalence.evidence.tolerance import Tolerance
from pytest_ddl.equivalence.findings import Outcome
from pytest_ddl.equivalence.verdict.judge import judge
from pytest_ddl.records import ErrorRecord, RestoreRecord, TrainingRecord, WriteRecord

REFERENCE = simulate(Program())
TOLERANCE = Tolerance(REFERENCE)


def writing(*paths: tuple[str, ...], error: ErrorRecord | None = None) -> TrainingRecord:
    record = simulate(Program(replicas=2, workers=2))
    ranks = tuple(
        replace(rank, writes=tuple(WriteRecord(path, "open", 2) for path in written), error=error)
        for rank, written in zip(record.ranks, paths, strict=True)
    )
    return replace(record, ranks=ranks)


def test_one_path_of_two_ranks_is_unsafe() -> None:
    report = judge(REFERENCE, writing(("model.keras", "a"), ("model.keras", "b")))
    assert [finding.cause for finding in report.findings] == ["unsafe-checkpoint-path"]
    assert "model.keras" in report.findings[0].message
    assert report.findings[0].step == 2


def test_paths_of_their_own_are_safe() -> None:
    assert (
        check_write(Comparison(REFERENCE, writing(("model.keras",), ("rank-1/model.keras",)), TOLERANCE)).outcome
        is Outcome.PASS
    )


@pytest.mark.parametrize("record", [writing((), ()), simulate(Program(replicas=2))])
def test_nothing_written_is_not_a_pass(record: TrainingRecord) -> None:
    assert check_write(Comparison(REFERENCE, record, TOLERANCE)).outcome is Outcome.NOT_APPLICABLE


def test_a_file_that_a_rank_failed_over_explains_the_failure() -> None:
    error = ErrorRecord("tensorflow.errors.NotFoundError", "no such file: /x/ckpt_temp/ckpt", "", 2)
    report = judge(REFERENCE, writing(("ckpt",), ("ckpt",), error=error))
    assert [finding.cause for finding in report.findings] == ["unsafe-checkpoint-path"]


def test_any_error_that_names_the_shared_path_is_explained_by_it() -> None:
    error = ErrorRecord("tensorflow.errors.InvalidArgumentError", "/x/checkpoints/last_temp/part-0 is gone", "", 2)
    report = judge(REFERENCE, writing(("checkpoints/last",), ("checkpoints/last",), error=error))
    assert [finding.cause for finding in report.findings] == ["unsafe-checkpoint-path"]


def test_a_rank_that_failed_over_a_common_file_while_the_other_was_stopped_shared_it() -> None:
    error = ErrorRecord("tensorflow.errors.InvalidArgumentError", "/x/checkpoints/last_temp/part-0 is gone", "", 2)
    record = writing(("checkpoints/last",), (), error=error)
    stopped = replace(record.ranks[1], error=ErrorRecord("stopped", "", "", 2))
    report = judge(REFERENCE, replace(record, ranks=(record.ranks[0], stopped)))
    assert [finding.cause for finding in report.findings] == ["unsafe-checkpoint-path"]


@pytest.mark.parametrize(
    ("restore", "outcome"),
    [
        (RestoreRecord("ckpt", "read", 1, 4), Outcome.PASS),
        (RestoreRecord("ckpt", "read", 1, 4, lost=("dense/kernel",)), Outcome.FAIL),
        (RestoreRecord("ckpt", "read", 1, 4, absent=("optimizer",)), Outcome.FAIL),
        (RestoreRecord("ckpt", "read", 3, 4, absent=("optimizer",)), Outcome.PASS),
        (RestoreRecord("ckpt", "read", 1, 0), Outcome.NOT_APPLICABLE),
    ],
)
def test_what_is_read_back_is_complete(restore: RestoreRecord, outcome: Outcome) -> None:
    record = simulate(Program(replicas=2))
    record = replace(record, ranks=(replace(record.ranks[0], restores=(restore,)),))
    result = check_checkpoint(Comparison(REFERENCE, record, TOLERANCE))
    assert result.outcome is outcome
    if outcome is Outcome.FAIL:
        assert result.findings[0].cause == "checkpoint-incomplete"


def test_a_program_that_reads_nothing_back_is_not_judged() -> None:
    assert check_checkpoint(Comparison(REFERENCE, REFERENCE, TOLERANCE)).outcome is Outcome.NOT_APPLICABLE


@pytest.mark.parametrize("message", ["Unable to lock file, errno = 11", "anything"])
def test_the_error_of_a_save_to_a_shared_path_is_explained_whatever_it_says(message: str) -> None:
    error = ErrorRecord("BlockingIOError", message, "", 2)
    record = writing(("w",), ("w",), error=error)
    stopped = replace(record.ranks[1], error=ErrorRecord("stopped", "", "", 2))
    failed = replace(record.ranks[0], facts={**record.ranks[0].facts, "failed_saves": ("w",)})
    report = judge(REFERENCE, replace(record, ranks=(failed, stopped)))
    assert [finding.cause for finding in report.findings] == ["unsafe-checkpoint-path"]


def test_an_error_of_a_save_to_a_path_of_its_own_is_no_clash() -> None:
    error = ErrorRecord("OSError", "no space left on the device", "", 2)
    record = writing(("w", "w-0"), ("rank-1/w",), error=error)
    failed = replace(record.ranks[0], facts={**record.ranks[0].facts, "failed_saves": ("w-0",)})
    assert (
        check_write(Comparison(REFERENCE, replace(record, ranks=(failed, record.ranks[1])), TOLERANCE)).outcome
        is Outcome.PASS
    )
