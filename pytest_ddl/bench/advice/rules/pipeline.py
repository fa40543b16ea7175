"""Rules of the input pipeline: steps that wait for data."""

from __future__ import annotations

from pytest_ddl.bench.advice.facts.evidence import AdviceEvidence
from pytest_ddl.bench.advice.facts.gains import Gain
from pytest_ddl.bench.advice.rules.registry import RuleFinding, rule

_GUIDE = "https://www.tensorflow.org/guide/data_performance"


def _waits(evidence: AdviceEvidence) -> Gain | None:
    """Return the gain if data took no time, if steps wait for data."""
    if evidence.counters.retraces and evidence.beyond_noise(evidence.share("traced")):
        # Batches of other shapes are traced again, but not one that is repeated: its gain says nothing about the data.
        return None
    return evidence.helps("cached")


@rule(
    "parallel-map",
    "input",
    looks_at="step time with the first batch from memory, and with parallel calls of Dataset.map",
    applies_if="nothing is traced again, both gains are above the noise, "
    "and parallel calls gain at least as much as prefetching",
    expected="measured: step time / step time with parallel calls",
    change="give every Dataset.map (and interleave) num_parallel_calls=tf.data.AUTOTUNE",
    source=_GUIDE + "#parallelizing_data_transformation",
    knob="parallel",
)
def parallel_map(evidence: AdviceEvidence) -> RuleFinding | None:
    waits = _waits(evidence)
    gain = waits and evidence.helps("parallel")
    other = gain and evidence.helps("prefetch")
    if not waits or not gain or (other and gain.value < other.value):
        return None
    return RuleFinding(
        f"a step with the first batch from memory is {waits}; one with parallel calls of Dataset.map is {gain}", gain
    )


@rule(
    "prefetch",
    "input",
    looks_at="step time with the first batch from memory, and with Dataset.prefetch at the end",
    applies_if="nothing is traced again, both gains are above the noise, "
    "and prefetching gains more than parallel calls",
    expected="measured: step time / step time with prefetching",
    change="end the pipeline with .prefetch(tf.data.AUTOTUNE), so that it works while the step computes",
    source=_GUIDE + "#prefetching",
    knob="prefetch",
)
def prefetch(evidence: AdviceEvidence) -> RuleFinding | None:
    waits = _waits(evidence)
    gain = waits and evidence.helps("prefetch")
    other = gain and evidence.helps("parallel")
    if not waits or not gain or (other and gain.value <= other.value):
        return None
    return RuleFinding(f"a step with the first batch from memory is {waits}; one with prefetching is {gain}", gain)


@rule(
    "slow-input",
    "input",
    looks_at="step time with the first batch from memory",
    applies_if="nothing is traced again, its gain is above the noise, "
    "and neither parallel calls nor prefetching gain anything",
    expected="at most: step time / step time with the first batch from memory",
    change=(
        "make the input cheaper: .cache() after the expensive part, decode and filter once before the training, map "
        "whole batches (batch before map), or read fewer and larger files"
    ),
    source=_GUIDE + "#caching",
    at_most=True,
)
def slow_input(evidence: AdviceEvidence) -> RuleFinding | None:
    waits = _waits(evidence)
    if not waits or evidence.helps("parallel") or evidence.helps("prefetch"):
        return None
    return RuleFinding(
        f"a step with the first batch from memory is {waits}; parallel calls and prefetching do not help: the work of "
        "the pipeline itself is too large for this machine",
        waits,
    )
