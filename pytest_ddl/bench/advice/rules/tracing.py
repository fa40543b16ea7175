"""Rule of tracing: functions that are traced again while the program trains."""

from __future__ import annotations

from pytest_ddl.bench.advice.facts.evidence import AdviceEvidence
from pytest_ddl.bench.advice.rules.registry import RuleFinding, rule


@rule(
    "retracing",
    "tracing",
    looks_at="functions traced in steady steps (count), and the seconds of tracing",
    applies_if="there are any, and the gain without tracing is above the noise",
    expected="at least 1 / (1 - share of the step in tracing); compiling the new graph is not in it",
    change=(
        "give the tf.function tensors and not Python numbers, batches of one shape (drop_remainder=True, padding, or "
        "input_signature with None), and define it once, outside the loop"
    ),
    source="https://www.tensorflow.org/guide/function#controlling_retracing",
)
def retracing(evidence: AdviceEvidence) -> RuleFinding | None:
    counters = evidence.counters
    if not counters.retraces:
        return None
    gain = evidence.beyond_noise(evidence.share("traced"))
    if gain is None:
        return None
    return RuleFinding(
        f"{counters.retraces} function(s) were traced in {counters.steady_steps} steady steps, which took "
        f"{gain.share:.0%} of the time",
        gain,
    )
