"""Keep the files that several ranks wrote in an attempt that was interrupted: its other records are given up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from pytest_ddl.equivalence.checks.write import shared_writes
from pytest_ddl.faults.trials import TrialRun
from pytest_ddl.records import RankRecord, TrainingRecord


def with_clashes(run: TrialRun, ranks: Sequence[RankRecord], baseline: TrainingRecord) -> list[RankRecord]:
    """Return the ranks of the last attempt, with the writes of earlier attempts to a path that two ranks wrote.

    A path that one rank wrote in one attempt, and another rank in the next, is no clash.
    """
    added = list(ranks)
    for attempt in run.attempts[:-1]:
        shared = shared_writes(replace(baseline, ranks=tuple(attempt.attempt.ranks)))
        for found in shared.values():
            for rank, write in found.items():
                if len(found) > 1 and rank < len(added):
                    added[rank] = replace(added[rank], writes=(*added[rank].writes, write))
    return added
