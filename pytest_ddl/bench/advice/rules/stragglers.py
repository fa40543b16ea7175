"""Rules of stragglers: ranks for which the others wait."""

from __future__ import annotations

from pytest_ddl.bench.advice.facts.evidence import AdviceEvidence, MissingError
from pytest_ddl.bench.advice.rules.registry import RuleFinding, rule


@rule(
    "unbalanced-batches",
    "stragglers",
    looks_at="examples that each rank takes in a step (count), and the ranks' step times without communication",
    applies_if="ranks take different numbers of examples, and the gain of equal ones is above the noise",
    expected="step time / (step time - (time of the slowest rank - mean time of the ranks))",
    change=(
        "give each replica the same number of examples: batch to run.global_batch_size and let the strategy split it, "
        "or shard examples and not files of different sizes (AutoShardPolicy.DATA)"
    ),
    source="https://www.tensorflow.org/tutorials/distribute/input#sharding",
)
def unbalanced_batches(evidence: AdviceEvidence) -> RuleFinding | None:
    examples = [rank.examples for rank in evidence.launch.ranks]
    if None in examples or len(set(examples)) < 2:
        return None
    slowest = evidence.slowest_rank()
    if slowest is None:
        return None
    # The fastest rank gets more examples when the slowest gets fewer: with two ranks, half of the difference remains.
    known = [number or 0 for number in examples]
    part = (max(known) - sum(known) / len(known)) / (max(known) - min(known))
    gain = evidence.beyond_noise(slowest[1].partly(part))
    if gain is None:
        return None
    return RuleFinding(
        f"the ranks take {', '.join(map(str, known))} examples in a step, and each step waits for the largest part",
        gain,
    )


@rule(
    "slow-worker",
    "stragglers",
    looks_at="step times of the ranks, each without communication",
    applies_if="all take as many examples, and the gain if the slowest were as fast as the fastest is above the noise",
    expected="step time / (step time - (time of the slowest rank - time of the fastest))",
    change=(
        "find what is different on this worker (other programs, cores, clock, disk, extra work of its rank), or take "
        "it out; give a slower machine a smaller part of the batch"
    ),
    source="Dean et al. 2012, Large Scale Distributed Deep Networks; Chen et al. 2016, arXiv 1604.00981",
    rank=1,
)
def slow_worker(evidence: AdviceEvidence) -> RuleFinding | None:
    try:
        slowest = evidence.slowest_rank()
    except MissingError as error:
        if error.reason:
            return None
        raise
    if slowest is None or len({rank.examples for rank in evidence.launch.ranks}) > 1:
        return None
    gain = evidence.beyond_noise(slowest[1])
    if gain is None:
        return None
    return RuleFinding(
        f"without communication, {evidence.launch.ranks[slowest[0]].task} needs longer than the others, which "
        f"wait for {gain.share:.0%} of each step",
        gain,
    )
