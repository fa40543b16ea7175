"""CKPT: values that a program restores from its own file are complete and equal the saved values bit for bit."""

from __future__ import annotations

from pytest_ddl.equivalence.evidence.comparison import Comparison
from pytest_ddl.equivalence.findings import CheckResult, Finding
from pytest_ddl.equivalence.outcomes import failed, not_applicable, passed
from pytest_ddl.records import RankRecord, RestoreRecord

CHECK = "CKPT"


def check_checkpoint(comparison: Comparison) -> CheckResult:
    """Judge the restores after which training continues. A lost value counts even if one device loses it too."""
    distributed = comparison.distributed
    restores = [(rank, restore) for rank in distributed.ranks for restore in rank.restores]
    if not restores:
        return not_applicable(
            CHECK, "the program restores no file that it saved in the same run", "a restored checkpoint"
        )
    for rank, restore in restores:
        # A model that is loaded only for an evaluation needs no optimizer.
        goes_on = restore.step < rank.num_steps
        if goes_on and (restore.lost or restore.absent):
            return failed(CHECK, [_finding(rank, restore)])
    compared = sum(restore.compared for _rank, restore in restores)
    if not compared:
        return not_applicable(
            CHECK, "the restored variables were created after the call, so they could not be compared"
        )
    return passed(CHECK, f"{compared} restored variables have the values that were saved")


def _finding(rank: RankRecord, restore: RestoreRecord) -> Finding:
    if restore.absent:
        what = f"{', '.join(restore.absent)} is not in the file"
    else:
        what = f"{len(restore.lost)} variable(s) do not have the saved values: {', '.join(restore.lost[:4])}"
    return Finding(
        check=CHECK,
        message=f"{restore.api} restored a file, but {what}",
        cause="checkpoint-incomplete",
        step=restore.step,
        variable=restore.lost[0] if restore.lost else None,
        worker=rank.rank,
        observed=f"{len(restore.lost) + len(restore.absent)} not restored, of {restore.path}",
        expected="all that the program restores is in the file",
        evidence="the values right after the call were compared with those at the time of saving",
    )
