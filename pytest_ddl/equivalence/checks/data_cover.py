"""DATA-COVER: the replicas together consume the examples that one device consumes, each of them once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

from pytest_ddl.equivalence.causes import fix_of
from pytest_ddl.equivalence.causes.special import SPECIAL
from pytest_ddl.equivalence.evidence.comparison import Comparison
from pytest_ddl.equivalence.evidence.coverage import (
    Coverage,
    Examples,
    Order,
    altered_tensors,
    coverage,
    step_of_batch,
    unread_parts,
    unseen_examples,
)  # fmt: skip
from pytest_ddl.equivalence.evidence.observe import is_asynchronous, shared_steps
from pytest_ddl.equivalence.evidence.one_sided import lone_ids
from pytest_ddl.equivalence.findings import CheckResult, Finding
from pytest_ddl.equivalence.outcomes import failed, inconclusive, no_steps, not_applicable, not_observed, passed
from pytest_ddl.messages import listed
from pytest_ddl.notes import NoteKind
from pytest_ddl.records import TrainingRecord

CHECK = "DATA-COVER"


def check_data_cover(comparison: Comparison) -> CheckResult:
    """Compare the examples of every step, and of one pass over the data, by id if known, otherwise by content."""
    reference, distributed = comparison.records
    if shared_steps(reference, distributed) == 0:
        return no_steps(CHECK, distributed, reference)
    covered = coverage(reference, distributed)
    unseen = unseen_examples(reference, distributed) if covered is None else None
    if unseen is not None:
        reason = f"the examples of step {unseen} were observed on one side only, and those of other steps on both"
        return inconclusive(CHECK, reason)
    if covered is None:
        one_sided = lone_ids(reference, distributed)
        if one_sided is not None:
            return inconclusive(
                CHECK, f"example ids were reported on one side only ({one_sided}): report them in every run"
            )
        return not_applicable(CHECK, not_observed(distributed, "examples were", NoteKind.BATCHES))
    if covered.order is Order.SAME:
        return passed(CHECK, f"{covered.by} of {sum(covered.ours.values())} examples in {covered.steps} steps")
    tensors = altered_tensors(reference, distributed, covered.steps) if covered.by == "contents" else None
    if tensors is not None and not is_asynchronous(distributed):
        return failed(CHECK, [_altered(covered, *tensors)])
    if covered.order is Order.OTHER:
        if is_asynchronous(distributed):
            return not_applicable(CHECK, "steps ran concurrently, so which examples a step consumes is random")
        finding = _other_order(reference, distributed, covered)
        if (unread := unread_parts(reference, distributed)) is not None:
            return failed(CHECK, [_of_unread_parts(finding, *unread)])
        return failed(CHECK, [_of_shares(finding, len(distributed.ranks)) if _is_sharded(distributed) else finding])
    findings = _wrong(covered, len(distributed.ranks))
    if workers := _readers_of_whole_data(covered, distributed):
        findings = [_of_whole_data(finding, workers) for finding in findings]
    return failed(CHECK, findings)


def _readers_of_whole_data(found: Coverage, distributed: TrainingRecord) -> int:
    """Return the number of workers if each reads all of the data, and examples repeat as they then must; else 0.

    No worker then repeats an example in a pass over the data, and no example is new.
    """
    workers = max((int(rank.facts.get("workers", 0)) for rank in distributed.ranks), default=0)
    each = any(rank.facts.get("data_of_workers") for rank in distributed.ranks)
    known = not found.theirs.keys() - found.ours.keys()
    tolerated = is_asynchronous(distributed) and each and known
    return workers if tolerated and max(found.theirs.values(), default=0) <= workers else 0


def _of_whole_data(finding: Finding, workers: int) -> Finding:
    """Tolerate what follows from a function that makes the data on each worker.

    ``ClusterCoordinator.create_per_worker_dataset`` and ``ParameterServerStrategy`` of TensorFlow document it.
    """
    evidence = (
        f"each of the {workers} workers of the coordinator reads all of the data by itself, because a function makes "
        f"it: in as many steps as one pass has, an example is used up to {workers} times, and others are not used; the "
        "input context has one pipeline, so that it cannot shard; TensorFlow assumes the same data on all workers, and "
        "advises to shuffle it without a seed, to repeat it, and to schedule a finite number of steps"
    )
    return replace(finding, approximation=True, fix=SPECIAL["data-of-workers"], evidence=evidence)


def _altered(found: Coverage, shared: list[int], other: list[int]) -> Finding:
    """Report examples of which some tensors are those of one device and some are not, or are combined otherwise."""
    cause = "examples-altered"
    same = f"tensor {', '.join(map(str, shared))} of the examples is that of one device in every step"
    if other:
        evidence = f"{same}, and tensor {', '.join(map(str, other))} is not"
    else:
        evidence = "each tensor has the values of one device in every step, but they are combined to other examples"
    return Finding(
        check=CHECK,
        message=f"the examples have other values than on one device, from step {found.step} on",
        cause=cause,
        step=found.step,
        evidence=evidence,
    )


def _other_order(reference: TrainingRecord, distributed: TrainingRecord, found: Coverage) -> Finding:
    """Report global batches that group the same data differently: no defect, but weights cannot be compared."""
    elsewhere = step_of_batch(reference, distributed, found.step)
    message = f"global batches are composed differently from step {found.step} on"
    if elsewhere is not None:
        message = f"step {found.step} consumes the global batch of step {elsewhere} on one device"
    return Finding(
        check=CHECK,
        message=message,
        step=found.step,
        observed=_some(found.theirs - found.ours) if found.theirs != found.ours else None,
        expected=_some(found.ours - found.theirs) if found.theirs != found.ours else None,
        evidence="weights can be compared only if global batches hold the same examples",
        look_at=tuple(_places(distributed, found)),
    )


def _places(distributed: TrainingRecord, found: Coverage) -> Iterator[str]:
    """Yield what may explain examples that one device did not consume, if only some replicas have such examples."""
    unknown: dict[int, list[bool]] = {}
    for step in range(1, found.steps + 1):
        for batch in distributed.batches(step):
            names = batch.names(found.by)
            unknown.setdefault(batch.replica, []).extend(name not in found.ours for name in names or ())
    strange = [replica for replica, names in sorted(unknown.items()) if names and all(names)]
    if strange and not any(any(names) for replica, names in unknown.items() if replica not in strange):
        replicas = ", ".join(map(str, strange))
        yield f"how examples are split: one device consumes none of those of replica {replicas} in these steps"
        if found.by == "contents":
            yield "augmentation that depends on the worker or the replica: it gives the same examples other contents"


def _wrong(found: Coverage, workers: int) -> list[Finding]:
    extra, missing = found.theirs - found.ours, found.ours - found.theirs
    repeated: Examples = Counter({n: count for n, count in extra.items() if n in found.ours or found.theirs[n] > 1})
    unknown = sum((extra - repeated).values())
    others = f"; {unknown} example(s) were not consumed on one device" if unknown else ""
    findings = []
    if repeated:
        what = f"{sum(repeated.values())} example(s) counted more often than on one device"
        findings.append(_finding(found, "examples-duplicated", repeated, what))
    if missing:
        what = f"{sum(missing.values())} example(s) missing compared with one device"
        dropped = _finding(found, "examples-dropped", missing, what + others)
        if repeated and found.order is Order.REPEATED:
            dropped = replace(dropped, fix=fix_of("examples-duplicated"))  # it follows from the same line
        findings.append(_sharded_twice(dropped, workers) if _is_one_share(found, workers) else dropped)
    if repeated and missing and found.order is not Order.REPEATED:
        findings = [replace(finding, fix=SPECIAL["other-orders"]) for finding in findings]
    if not findings:
        findings.append(_finding(found, None, extra, f"{unknown} example(s) were not consumed on one device"))
    return findings


def _is_one_share(found: Coverage, workers: int) -> bool:
    """Return whether all workers together consumed as many examples, each once, as one of them should."""
    seen, wanted = sum(found.theirs.values()), sum(found.ours.values())
    return workers > 1 and len(found.theirs) == seen and not found.theirs - found.ours and seen * workers == wanted


def _is_sharded(distributed: TrainingRecord) -> bool:
    """Return whether every worker distributes another shard of one dataset, which the strategy shards once more."""
    workers = len(distributed.ranks)
    shards = [rank.facts.get("shards", ()) for rank in distributed.ranks]
    if workers < 2 or len({len(found) for found in shards}) > 1:
        return False
    every = {(workers, index) for index in range(workers)}
    return any(set(places) == every for places in zip(*shards, strict=True))


def _of_shares(finding: Finding, workers: int) -> Finding:
    """Name what follows from two shards, before the data has ended: each worker drops the other shares of its own."""
    return replace(
        finding,
        message=f"{finding.message}: the data is sharded twice",
        cause="examples-dropped",
        fix=SPECIAL["sharded-twice"],
        evidence=f"every worker distributes another of {workers} shards of a dataset, and the strategy gives it only "
        f"1/{workers} of this shard",
        look_at=(),
    )


def _of_unread_parts(finding: Finding, number: int, read: tuple[int, ...]) -> Finding:
    """Name shards that no rank reads, which shows before the data has ended."""
    which = f"shard {read[0]}" if len(read) == 1 else f"shards {', '.join(map(str, read))}"
    return replace(
        finding,
        message=f"the program distributes only {which} of {number} of its data",
        cause="examples-dropped",
        evidence=f"no rank distributes another of the {number} shards, and one device does not shard its data so",
        look_at=(),
    )


def _sharded_twice(finding: Finding, workers: int) -> Finding:
    return replace(
        finding,
        message=f"{finding.message}: {workers} workers together consume 1/{workers} of the examples, as if the data "
        "was sharded twice",
        fix=SPECIAL["sharded-twice"],
    )


def _finding(found: Coverage, cause: str | None, which: Examples, what: str) -> Finding:
    alike = "; all replicas consume the same examples" if found.order is Order.REPEATED else ""
    return Finding(
        check=CHECK,
        message=f"{what}, from step {found.step} on{alike}",
        cause=cause,
        step=found.step,
        error=float(sum(which.values())),
        observed=f"{sum(found.theirs.values())} examples, {len(found.theirs)} distinct",
        expected=f"{sum(found.ours.values())} examples, {len(found.ours)} distinct",
        evidence=_some(which),
    )


def _some(which: Examples) -> str:
    return f"examples {listed(sorted(which.elements(), key=str), 6)}"
