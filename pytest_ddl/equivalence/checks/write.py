"""WRITE: no two ranks write the same file."""

from __future__ import annotations

import re

from pytest_ddl.equivalence.evidence.comparison import Comparison
from pytest_ddl.equivalence.findings import CheckResult, Finding, Symptom
from pytest_ddl.equivalence.outcomes import failed, not_applicable, passed
from pytest_ddl.records import TrainingRecord, WriteRecord

CHECK = "WRITE"
_INCOMPLETE = ("stopped", "stuck", "died", "deadline")
"""Types of errors of ranks whose records are incomplete."""
_FILES = re.compile(r"NotFound|DataLoss|FileExists|BadZipFile|OSError|BlockingIOError|FailedPrecondition|Unknown")


def check_write(comparison: Comparison) -> CheckResult:
    """Compare the paths that the ranks wrote. Appending to one log counts, because lines and positions mix."""
    distributed = comparison.distributed
    ranks = distributed.ranks
    if len(ranks) < 2:
        return not_applicable(CHECK, "one process writes all files")
    paths = {write.path for rank in ranks for write in rank.writes}
    if not paths:
        return not_applicable(CHECK, "no rank wrote a file through Python, TensorFlow or Keras")
    shared = shared_writes(distributed)
    if not shared:
        return passed(CHECK, f"{len(paths)} file(s), each written by only one rank")
    return failed(CHECK, [_finding(shared, distributed)])


def shared_writes(distributed: TrainingRecord) -> dict[str, dict[int, WriteRecord]]:
    """Return the paths that several ranks wrote, each with the first write of each rank."""
    by_path: dict[str, dict[int, WriteRecord]] = {}
    for rank in distributed.ranks:
        for write in rank.writes:
            by_path.setdefault(write.path, {}).setdefault(rank.rank, write)
    return {
        path: writes for path, writes in by_path.items() if len(writes) > 1 or _failed_over(path, writes, distributed)
    }


def _failed_over(path: str, found: dict[int, WriteRecord], distributed: TrainingRecord) -> bool:
    """Return whether a rank failed on a file in the common folder, while others were stopped before they reported."""
    rank = next(iter(found))
    private = path.startswith(("/", "rank"))
    errors = {other.rank: error for other, error in distributed.errors}
    silent = any(error.type in _INCOMPLETE for other, error in errors.items() if other != rank)
    return not private and silent and rank in errors and "/" in path and path in errors[rank].message


def _finding(shared: dict[str, dict[int, WriteRecord]], distributed: TrainingRecord) -> Finding:
    path, writes = min(shared.items(), key=lambda item: min(write.step for write in item[1].values()))
    failed_alone = "" if len(writes) > 1 else "; the other ranks were stopped before they reported what they wrote"
    calls = ", ".join(f"rank {rank}: {write.api}" for rank, write in sorted(writes.items()))
    more = f" and {len(shared) - 1} other path(s)" if len(shared) > 1 else ""
    # If a rank failed on one of these files, the shared path is the reason.
    names = [part.rsplit("/", 1)[-1] for part in shared]
    crashed = any(rank.failed and shared.keys() & set(rank.facts.get("failed_saves", ())) for rank in distributed.ranks)
    crashed = crashed or any(
        (_FILES.search(error.type) and any(name in f"{error.message}{error.traceback}" for name in names))
        or any(len(path) > len(name) and path in error.message for path, name in zip(shared, names, strict=True))
        for _rank, error in distributed.errors
    )
    return Finding(
        check=CHECK,
        message=f"{len(writes) if len(writes) > 1 else len(distributed.ranks)} ranks write {path}{more}",
        paths=(path,),
        cause="unsafe-checkpoint-path",
        symptom=(Symptom.CRASH if crashed else Symptom.SILENT).value,
        step=min(write.step for write in writes.values()),
        worker=max(writes),
        observed=calls + failed_alone,
        expected="each path is written by one rank",
        evidence="ranks that write one path replace each other's files, or leave a mixture of both",
    )
