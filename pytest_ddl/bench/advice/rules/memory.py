"""Rules of memory: pages from a disk, and variables on a wrong device."""

from __future__ import annotations

from pytest_ddl.bench.advice.facts.evidence import AdviceEvidence, MissingError
from pytest_ddl.bench.advice.rules.registry import RuleFinding, rule


@rule(
    "swapping",
    "memory",
    looks_at="pages that the ranks read from a disk in steady steps (count)",
    applies_if="at least one page in each step: a process that fits into memory needs none after its warm-up",
    expected="none: the time of these pages is not known",
    change="use less memory: a smaller shuffle buffer or batch, .cache(FILE) in place of .cache(), or fewer ranks",
    source="getrusage(2), ru_majflt",
)
def swapping(evidence: AdviceEvidence) -> RuleFinding | None:
    if not evidence.notes:
        raise MissingError()
    worst = max(evidence.notes, key=lambda notes: notes.major_faults)
    if not worst.steps or worst.major_faults < len(worst.steps):
        return None
    return RuleFinding(
        f"rank {worst.rank} read {worst.major_faults} pages from a disk in {len(worst.steps)} steps", None
    )


@rule(
    "misplaced-variables",
    "memory",
    looks_at="devices of the watched variables (count)",
    applies_if="a variable is not on a device of its replica",
    expected="none: the copies are in the step time, but not alone",
    change="create all variables in run.strategy.scope(), without tf.device",
    source="https://www.tensorflow.org/guide/distributed_training#use_tfdistributestrategy_with_custom_training_loops",
)
def misplaced_variables(evidence: AdviceEvidence) -> RuleFinding | None:
    misplaced = evidence.counters.misplaced
    if not misplaced:
        return None
    return RuleFinding(
        f"{len(misplaced)} variable(s) are on another device than their replica: {'; '.join(misplaced[:3])}", None
    )


@rule(
    "device-copies",
    "memory",
    looks_at="tensors that one step copies from a GPU to the host (count)",
    applies_if="there is at least one in each step of a GPU program",
    expected="none: the copies are in the step time, but not alone",
    change="keep values on the device: no operation without a GPU kernel, and no tf.device('CPU') within the step",
    source="https://www.tensorflow.org/guide/gpu#logging_device_placement",
)
def device_copies(evidence: AdviceEvidence) -> RuleFinding | None:
    copies = (evidence.counters.copies or {}).get("device_to_host", 0)
    if evidence.launch.device != "gpu" or not copies or evidence.counters.host_calls:
        return None
    return RuleFinding(f"a step copies {copies} tensor(s) from a GPU to the host", None)
