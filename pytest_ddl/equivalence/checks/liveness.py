"""LIVENESS: every step, save, evaluation and exit ends. If ranks wait for each other, the check reports why."""

from __future__ import annotations

import re
from dataclasses import replace

from pytest_ddl.equivalence.checks.collective_log import CONDITIONAL, SHAPE, Mismatch, finding, mismatch
from pytest_ddl.equivalence.evidence.comparison import Comparison
from pytest_ddl.equivalence.findings import CheckResult, Finding, Symptom
from pytest_ddl.equivalence.outcomes import failed, not_applicable, passed
from pytest_ddl.records import ErrorRecord, TrainingRecord

CHECK = "LIVENESS"

UNENDED = ("deadline", "stuck")
"""Types of errors of ranks that gave no answer."""

_OUT_OF_STEP = re.compile(
    r"Collective ops is aborted|Collective instance \S+ expected|"
    r"[Ss]hape mismatch in the collective|mismatch.{0,60}collective|collective.{0,60}mismatch",
    re.DOTALL,
)
"""Messages that TensorFlow gives if ranks execute different collectives at the same position."""

_PEER_GONE = re.compile(r"peer|heartbeat|health|connection|socket|restarted|unavailable", re.IGNORECASE)

_SHAPES_DIFFER = re.compile(r"shape mismatch in the collective", re.IGNORECASE)

_REPLICAS_DIFFER = re.compile(r"Some replicas made a different number of replica_context\(\)\.merge_call")


def check_liveness(comparison: Comparison) -> CheckResult:
    """Check that all ranks ended. If a rank raised an error, RUN reports it."""
    reference, distributed = comparison.records
    if reference.errors:
        return not_applicable(CHECK, "the program fails on one device too")
    unended = [rank for rank, error in distributed.errors if error.type in UNENDED]
    if unended:
        error = unended[0].error
        assert error is not None
        finding = blocked_by_collectives(reference, distributed, error) or _not_in_time(unended[0].rank, error)
        return failed(CHECK, [replace(finding, check=CHECK)])
    if distributed.errors:
        return not_applicable(CHECK, "the run ended with an error; see RUN")
    if not distributed.ranks:
        return not_applicable(CHECK, "no rank ran")
    return passed(CHECK, f"{len(distributed.ranks)} rank(s) finished")


def _not_in_time(rank: int, error: ErrorRecord) -> Finding:
    return Finding(
        check=CHECK,
        message=f"rank {rank} did not finish {error.phase} in time, after step {error.step}",
        cause="deadline-exceeded",
        symptom=Symptom.HANG.value,
        step=error.step + 1,
        worker=rank,
    )


def _is_of_shapes(error: ErrorRecord) -> bool:
    """Return whether TensorFlow refused a collective because of its shapes, and not because a peer has ended.

    If a rank learns of the refusal from another rank, its message also names that peer.
    """
    if _SHAPES_DIFFER.search(error.message):
        return True
    text = f"{error.type} {error.message}"
    return bool(re.search("shape", text, re.IGNORECASE)) and not _PEER_GONE.search(error.message)


def blocked_by_collectives(
    reference: TrainingRecord, distributed: TrainingRecord, error: ErrorRecord
) -> Finding | None:
    """Return the finding for mismatched collectives behind an error, or ``None`` if they are not the reason."""
    text = f"{error.type} {error.message}"
    if error.type not in UNENDED and _REPLICAS_DIFFER.search(text):
        message = "the replicas of one process call all_reduce or merge_call a different number of times"
        different: Mismatch | None = Mismatch(CONDITIONAL, message, error.step + 1, 0)
    elif error.type in UNENDED:
        running = [rank.rank for rank, theirs in distributed.errors if theirs.type == "deadline"]
        different = mismatch(distributed, reference, running) or _waits_for_a_finished_rank(distributed)
    elif _OUT_OF_STEP.search(text):
        different = mismatch(distributed, reference)
        if different is None and _is_of_shapes(error):
            different = Mismatch(SHAPE, f"TensorFlow refuses a collective: {_first_line(error)}", error.step + 1, 0)
    else:
        different = None
    if different is None:
        return None
    symptom = Symptom.HANG if error.type in UNENDED else Symptom.CRASH
    return replace(finding("RUN", different), symptom=symptom.value, observed=_first_line(error))


def _waits_for_a_finished_rank(distributed: TrainingRecord) -> Mismatch | None:
    """Find a collective in a ``tf.cond`` or a loop: all ranks enter its function, but not all execute it."""
    finished = [rank for rank in distributed.ranks if rank.error is None]
    waiting = [rank for rank in distributed.ranks if rank.error is not None and rank.error.type in UNENDED]
    for rank in waiting:
        assert rank.error is not None
        if finished and rank.collectives and _IN_TENSORFLOW.search(rank.error.traceback):
            last = rank.collectives[-1]
            message = (
                f"rank {rank.rank} waits in TensorFlow, in or after the collective of {last.called or last.where}, "
                f"and rank {finished[0].rank} has ended: a tf.cond or a loop executes a collective on some ranks only"
            )
            return Mismatch(CONDITIONAL, message, last.step + 1, rank.rank)
    return None


_IN_TENSORFLOW = re.compile(r"most recent call first\):\n  File \"[^\"]*tensorflow[^\"]*execute\.py\"")
"""Stack of a thread that waits in the runtime of TensorFlow."""


def _first_line(error: ErrorRecord) -> str:
    lines = [line.strip() for line in error.message.strip().splitlines() if line.strip()]
    relevant = [line for line in lines if _OUT_OF_STEP.search(line)] or lines
    name = error.type.rsplit(".", 1)[-1]
    return f"{name}: {relevant[0][:300]}" if relevant else name
