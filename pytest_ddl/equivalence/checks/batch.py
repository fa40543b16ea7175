"""BATCH: in each step the replicas' batches add up to the global batch."""

from __future__ import annotations

from dataclasses import replace

from pytest_ddl.equivalence.evidence.comparison import Comparison
from pytest_ddl.equivalence.evidence.coverage import step_of_batch
from pytest_ddl.equivalence.evidence.gradients import calls, observed
from pytest_ddl.equivalence.evidence.observe import observed_together, shared_steps, sizes
from pytest_ddl.equivalence.findings import CheckResult, Finding
from pytest_ddl.equivalence.outcomes import failed, inconclusive, no_steps, not_applicable, not_observed, passed
from pytest_ddl.notes import NoteKind
from pytest_ddl.records import GradientStage, TrainingRecord

CHECK = "BATCH"
_SPLIT = (
    "Let the strategy split each batch: iterate over strategy.experimental_distribute_dataset(dataset), and give its "
    "batches to strategy.run. An argument of strategy.run that is a plain tensor goes to every replica as a whole."
)


def check_batch(comparison: Comparison) -> CheckResult:
    """Compare the number of examples per step with one device, or else with the declared global batch size."""
    reference, distributed = comparison.records
    steps = shared_steps(reference, distributed)
    if steps == 0:
        return no_steps(CHECK, distributed, reference)
    compared, unseen, some_seen = 0, 0, False
    for together in observed_together(distributed, steps):
        step = together[-1]
        found = sizes(distributed, step)
        expected = sum(sum(sizes(reference, one).values()) for one in together)
        if not expected and not any(found.values()):
            continue  # the step makes its own data
        declared = distributed.global_batch_size
        if not expected and declared and not (step == steps and sum(found.values()) < declared):
            expected = declared * len(together)
        # A step without a batch of its own, if no other step of its group has one more, was not observed.
        partly = len(distributed.batches(step)) < len(together)
        if not found or not expected or partly:
            unseen, some_seen = unseen or (step if expected else 0), some_seen or bool(found and partly)
            continue
        compared += len(together)
        if len(together) > 1:
            if sum(found.values()) != expected:
                return failed(CHECK, [_finding(together, found, expected, trains=_trains(reference, step))])
            continue
        # The whole batch of another step has the right size. DATA-COVER reports the order.
        if sum(found.values()) != expected and step_of_batch(reference, distributed, step) is None:
            ended = _ended(distributed, step, found)
            finding = _finding(together, found, expected, trains=_trains(reference, step))
            if _is_given_whole(distributed, step, expected):
                finding = replace(finding, evidence=f"{finding.evidence}: each replica gets all of them", fix=_SPLIT)
            return failed(CHECK, [_without_data(finding, ended) if ended else finding])
    if compared == 0 and not some_seen:
        return not_applicable(CHECK, not_observed(distributed, "batch sizes were", NoteKind.BATCHES))
    if unseen:
        return inconclusive(CHECK, f"the batches of step {unseen} were not observed, those of other steps were")
    return passed(CHECK, f"{compared} global batches")


def _is_given_whole(distributed: TrainingRecord, step: int, expected: int) -> bool:
    """Return whether each of several replicas of one process has consumed the same examples, as many as one device.

    Replicas of several processes also do if each process reads all of the data.
    """
    batches = distributed.batches(step)
    contents = {batch.fingerprints or batch.example_ids for batch in batches}
    whole = len(contents) == 1 and None not in contents and all(batch.size == expected for batch in batches)
    return whole and len(distributed.ranks) == 1 and len({batch.replica for batch in batches}) > 1


def _ended(distributed: TrainingRecord, step: int, found: dict[int, int]) -> list[int]:
    """Return the replicas that got examples before and get none now, if all others get as many as before."""
    before = sizes(distributed, step - 1) if step > 1 else {}
    empty = [replica for replica, size in found.items() if not size and before.get(replica)]
    others = {replica: size for replica, size in found.items() if size}
    return empty if others and all(before.get(replica) == size for replica, size in others.items()) else []


def _without_data(finding: Finding, replicas: list[int]) -> Finding:
    cause = "unequal-steps"
    listed = ", ".join(map(str, replicas))
    return replace(
        finding,
        message=f"{finding.message}: the data of replica {listed} has ended",
        cause=cause,
        evidence="the other replicas get as many examples as in the step before",
    )


def _trains(reference: TrainingRecord, step: int) -> bool:
    """Return whether one device computes gradients in a step, if it does so in any. Otherwise the step evaluates."""
    return not observed(reference) or any(calls(reference, step, stage) for stage in GradientStage)


def _finding(together: range, found: dict[int, int], expected: int, *, trains: bool) -> Finding:
    step, concurrent = together[-1], len(together) > 1
    total = sum(found.values())
    parts = ", ".join(f"replica {replica}: {size}" for replica, size in sorted(found.items()))
    cause = "global-batch-wrong" if trains else "examples-duplicated" if total > expected else "examples-dropped"
    what = f"the global batch of step {step}" if trains else f"the evaluation recorded as step {step}"
    if concurrent:
        what = f"the global batches of steps {together[0]} to {step}, which ran concurrently,"
    return Finding(
        check=CHECK,
        message=f"{what} {'have' if concurrent else 'has'} {total} examples instead of {expected}",
        cause=cause,
        step=step,
        error=float(abs(total - expected)),
        fix=None if trains else "Count the examples of the last batch: neither drop it nor pad it with others.",
        observed=f"{total} ({parts})",
        expected=str(expected),
        evidence=f"{total / expected:.4g} x the expected number of examples",
    )
