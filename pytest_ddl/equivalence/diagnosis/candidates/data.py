"""Candidates for data: the same examples with other values."""

from __future__ import annotations

from pytest_ddl.equivalence.diagnosis.case import Case, Fit
from pytest_ddl.records import TrainingRecord

CAUSE = "examples-altered"


def other_values(case: Case) -> Fit | None:
    """Test for examples whose ids are those of one device, and whose contents are not."""
    ours = {name: content for name, content, _replica in _contents(case.reference, case.step)}
    theirs = _contents(case.distributed, case.step)
    known = [(ours[name], content, replica) for name, content, replica in theirs if name in ours]
    altered = [replica for mine, content, replica in known if mine != content]
    if not altered or len(known) < len(theirs):
        return None
    replicas = ", ".join(map(str, dict.fromkeys(altered)))
    return Fit(
        CAUSE,
        f"{len(altered)} of {len(theirs)} examples have the ids of one device, but other contents: on replica "
        f"{replicas}",
    )


def _contents(record: TrainingRecord, step: int) -> list[tuple[int | str, int, int]]:
    return [
        (name, content, batch.replica)
        for batch in record.batches(step)
        if batch.example_ids and batch.fingerprints
        for name, content in zip(batch.example_ids, batch.fingerprints, strict=False)
    ]
