"""RUN: every rank runs the training function to its end. Crashes and hangs become findings."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import replace

from pytest_ddl.equivalence.causes import fix_of
from pytest_ddl.equivalence.causes.cause import Fix
from pytest_ddl.equivalence.checks.liveness import blocked_by_collectives
from pytest_ddl.equivalence.diagnosis.limitations import SYMBOLIC_BUILD, is_of_symbolic_build, known_limitation
from pytest_ddl.equivalence.diagnosis.mistakes import known_mistake
from pytest_ddl.equivalence.evidence.comparison import Comparison
from pytest_ddl.equivalence.evidence.without_a_step import of_other_lengths, without_a_step
from pytest_ddl.equivalence.findings import CheckResult, Finding, Symptom
from pytest_ddl.equivalence.outcomes import failed, inconclusive, passed
from pytest_ddl.hints import Hint
from pytest_ddl.messages import summary
from pytest_ddl.records import ErrorRecord, RankRecord, TrainingRecord
from pytest_ddl.tracebacks import folded, package_of

CHECK = "RUN"

# Errors of a rank whose peer has ended. They are never the root cause if another rank has an error of its own.
_CONSEQUENCE = re.compile(
    r"UnavailableError|AbortedError|CancelledError|Connection (reset|refused)|Socket closed|"
    r"Collective ops is aborted|peer .{0,40}(failed|down|unavailable)|heartbeat",
    re.IGNORECASE,
)


def check_run(comparison: Comparison) -> CheckResult:
    """Report the exception, death or deadline that came first, and ranks that left no record."""
    reference, distributed = comparison.records
    if reference.errors:
        return _reference_failed(reference, distributed)
    if distributed.errors and reference.refused is not None:
        return failed(CHECK, [_refused_by_strategies(reference, distributed)])
    if distributed.errors:
        return failed(CHECK, [_error(reference, distributed)])
    absent = _absent(distributed)
    if absent:
        return failed(CHECK, [_did_not_run(absent)])
    left_out = without_a_step(reference, distributed) or of_other_lengths(reference, distributed)
    if left_out is not None:
        return inconclusive(CHECK, left_out, in_program=True)
    return passed(CHECK, f"{len(distributed.ranks)} rank(s), no exception")


def _headline(error: ErrorRecord) -> str:
    return summary(error.type, error.message)


def _reference_failed(reference: TrainingRecord, distributed: TrainingRecord) -> CheckResult:
    """Judge a program that fails on one device. Under the strategy it may fail in another way in addition."""
    rank, error = reference.errors[0]
    others = [theirs for _rank, theirs in distributed.errors]
    reason = f"the program fails on one device{' too' if others else ''}: {_headline(error)}"
    if reference.refused is not None:
        reason = f"the program fails by itself, without a strategy{' too' if others else ''}: {_headline(error)}"
    if error.type == "deadline":
        reason = f"the run on one device did not end in time: if the machine is slow, set a longer {Hint.TIMEOUT}"
    if error.type == "died":
        reason = f"the process of the run on one device ended before the function returned: it {error.message}"
    mistake = known_mistake(error)
    if others and mistake is not None and mistake.cause != "worker-raised":
        # One device is a strategy with a scope, too.
        return failed(CHECK, [_beside_one_device(_error(reference, distributed), reason, rank, error)], reason)
    own = {error.type, *([reference.refused.type] if reference.refused is not None else [])}
    if others and all(theirs.type not in own for theirs in others):
        # A failure that the program does not have on one device comes from the strategy, so report it.
        return failed(CHECK, [_beside_one_device(_error(reference, distributed), reason, rank, error)], reason)
    if mistake is not None and mistake.fix:
        reason = f"{reason}. {_at(error)}{mistake.fix}"
    place = place_of(error)
    where = "at the deadline, it was at" if error.type == "deadline" else "raised in"
    details = "\n".join(part for part in (f"{where} {place}" if place else None, _details([(rank, error)])) if part)
    return replace(inconclusive(CHECK, reason), details=details or None)


def _beside_one_device(found: Finding, reason: str, rank: RankRecord, error: ErrorRecord) -> Finding:
    """Add to the finding for a failure under the strategy how one device failed, so that the report shows both."""
    place = place_of(error)
    own = _details([(rank, error)])
    parts = [found.details, f"one device:\n{own}" if own else None]
    return replace(
        found,
        message=f"{reason}{f' ({place})' if place else ''}. Under the strategy, in another way: {found.message}",
        expected="not known, because the run on one device failed",
        details="\n".join(part for part in parts if part) or None,
    )


def _refused_by_strategies(reference: TrainingRecord, distributed: TrainingRecord) -> Finding:
    """Build the finding for a program that trains on one device only without a strategy."""
    finding = _error(reference, distributed)
    refused = reference.refused
    assert refused is not None
    theirs = {error.type for _rank, error in distributed.errors}
    expected = "the training function returns, as it does without a strategy"
    if refused.type not in theirs:
        message = f"{finding.message} (OneDeviceStrategy raises {_headline(refused)})"
        return replace(finding, message=message, expected=expected)
    everywhere = "the program trains without a strategy, and raises under every tf.distribute strategy"
    if finding.cause == "worker-raised" and known_mistake(refused) is None and is_of_symbolic_build(refused):
        return replace(
            finding,
            message=f"{everywhere}, OneDeviceStrategy included: {SYMBOLIC_BUILD.reason}",
            cause="unsupported-by-framework",
            expected=expected,
            fix=Fix(f"{fix_of('unsupported-by-framework')} See {SYMBOLIC_BUILD.link}"),
            exact=False,
        )
    return replace(finding, message=f"{everywhere}, OneDeviceStrategy included: {finding.message}", expected=expected)


def _advice(reference: TrainingRecord, rank: RankRecord, error: ErrorRecord, cause: str) -> Fix:
    """Say what to do about a failure of the program, and at which line of the program."""
    limitation, mistake = known_limitation(error, rank.optimizers), known_mistake(error)
    advice = fix_of(cause) or Fix("")
    if limitation is not None:
        advice = limitation.advice or advice
        advice = advice.between("", f" See {limitation.link}" if limitation.link else "")
    elif mistake is not None and mistake.fix and mistake.cause == cause:
        advice = mistake.fix
    elif cause == "worker-raised" and reference.refused is None:
        advice = advice.between("", " The same program ran on one device.")
    elif cause == "worker-raised" and reference.refused is not None:
        same = reference.refused.type == error.type
        ran = "Without a strategy it succeeds, under any strategy it raises."
        advice = advice.between("", f" {ran if same else 'The same program ran without a strategy.'}")
    return advice.between(_at(error))


def _at(error: ErrorRecord) -> str:
    """Return a sentence that names the line of the program to look at, or an empty text if none is known."""
    return f"Look at {_file_of(error)}:{error.line}. " if error.file else ""


def _file_of(error: ErrorRecord) -> str:
    return os.path.relpath(error.file) if error.file.startswith(os.getcwd() + os.sep) else error.file


def place_of(error: ErrorRecord) -> str | None:
    """Describe the line of the program that raised an exception."""
    if not error.file:
        return None
    place = f"{_file_of(error)}:{error.line}, in {error.function or 'a lambda'}"
    return f"{place}: {error.source}" if error.source else place


def _order(entry: tuple[RankRecord, ErrorRecord]) -> tuple[int, int, int]:
    rank, error = entry
    if error.type == "died":
        place = 0
    elif error.type in ("deadline", "stopped", "stuck"):
        place = 3
    else:
        place = 2 if _CONSEQUENCE.search(f"{error.type} {error.message}") else 1
    return place, error.step, rank.rank


def is_consequence(error: ErrorRecord) -> bool:
    """Return whether a rank failed, or was stopped, only because another one had failed."""
    stopped = error.type in ("deadline", "stopped", "stuck")
    return stopped or _CONSEQUENCE.search(f"{error.type} {error.message}") is not None


def _error(reference: TrainingRecord, distributed: TrainingRecord) -> Finding:
    ordered = sorted(distributed.errors, key=_order)
    # A death explains why its peers raise. An error that a rank raised itself explains more.
    if ordered[0][1].type == "died":
        ordered.sort(key=lambda entry: (_order(entry)[0] != 1 or entry[1].step > ordered[0][1].step, _order(entry)))
    rank, error = ordered[0]
    blocked = blocked_by_collectives(reference, distributed, error)
    if blocked is not None:
        return replace(blocked, details=_details(ordered), source=place_of(error), replica=None)
    limitation, mistake = known_limitation(error, rank.optimizers), known_mistake(error)
    if error.type == "died" and limitation is None:
        cause, symptom = "worker-died", Symptom.CRASH
        message = f"rank {rank.rank} ({rank.task}) died during {error.phase}: {error.message}".rstrip(": ")
    elif error.type in ("deadline", "stuck"):
        cause, symptom = "deadline-exceeded", Symptom.HANG
        message = f"rank {rank.rank} ({rank.task}) did not finish {error.phase} in time, after step {error.step}"
    elif limitation is not None:
        cause, symptom, message = limitation.cause, Symptom.CRASH, limitation.reason
    else:
        cause, symptom = mistake.cause if mistake else "worker-raised", Symptom.CRASH
        message = f"rank {rank.rank} ({rank.task}) raised {_headline(error)}"
    return Finding(
        check=CHECK,
        message=message,
        cause=cause,
        symptom=symptom.value,
        step=error.step + 1,
        replica=rank.replicas[0] if rank.replicas else None,
        worker=rank.rank,
        fix=_advice(reference, rank, error, cause),
        observed=_headline(error),
        expected="the training function returns, as on one device",
        source=place_of(error),
        details=_details(ordered),
    )


def _details(ordered: Sequence[tuple[RankRecord, ErrorRecord]]) -> str | None:
    """Return the traceback and output of the first rank, and a line for each other rank."""
    (_rank, error), *rest = ordered
    others = [f"rank {r.rank} ({r.task}): {_headline(e)}" for r, e in rest]
    trace = folded(error.traceback.rstrip(), package_of(error.file))
    details = "\n".join(part for part in (trace, error.output.rstrip()) if part)
    if others:
        details += "\nother ranks:\n" + "\n".join(others)
    return details or None


def _absent(record: TrainingRecord) -> list[str]:
    """Name the replicas and ranks that left no record although others trained."""
    present = {replica for rank in record.ranks for replica in rank.replicas}
    missing = [f"replica {replica}" for replica in range(record.num_replicas) if replica not in present]
    # The workers of a parameter server keep no records. The coordinator's record covers them.
    if record.capabilities.coordinator:
        missing = []
    trained = any(rank.variables or rank.steps for rank in record.ranks)
    idle = [f"rank {r.rank} ({r.task})" for r in record.ranks if trained and not (r.variables or r.steps)]
    return [*missing, *idle]


def _did_not_run(absent: list[str]) -> Finding:
    return Finding(
        check=CHECK,
        message=f"{', '.join(absent[:4])} left no record while others trained",
        cause="rank-did-not-run",
        symptom=Symptom.CRASH.value,
        step=0,
        observed=f"{len(absent)} absent",
        expected="a record of every rank",
    )
