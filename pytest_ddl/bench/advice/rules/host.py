"""Rules of Python and the host: work between the steps, and steps that leave their graph."""

from __future__ import annotations

from pytest_ddl.bench.advice.facts.evidence import AdviceEvidence
from pytest_ddl.bench.advice.facts.knobs import EVERY, LOOP
from pytest_ddl.bench.advice.rules.registry import RuleFinding, rule

LIMIT = "Python and host"


@rule(
    "eager-step",
    LIMIT,
    looks_at="whether the graph of the step is known (count), and the step time in a tf.function",
    applies_if="steps call strategy.run outside any graph, and the gain of a tf.function is above the noise",
    expected="measured: step time / step time in a tf.function",
    change="decorate the function that calls strategy.run with @tf.function; with fit, remove run_eagerly=True",
    source="https://www.tensorflow.org/guide/function",
    knob="graph",
)
def eager_step(evidence: AdviceEvidence) -> RuleFinding | None:
    gain = evidence.helps("graph") if evidence.counters.eager else None
    if gain is None:
        return None
    return RuleFinding(f"steps run eagerly, operation by operation; in a tf.function a step is {gain}", gain)


@rule(
    "host-calls",
    LIMIT,
    looks_at="Python functions that the graph of a step calls (count), and their seconds",
    applies_if="there are any, and the gain without them is above the noise",
    expected="1 / (1 - share of the step in these functions)",
    change=(
        "write what tf.py_function or tf.numpy_function does in TensorFlow, move it into Dataset.map, or call it "
        "outside the step and rarely; the devices wait for each call"
    ),
    source="https://www.tensorflow.org/api_docs/python/tf/py_function",
)
def host_calls(evidence: AdviceEvidence) -> RuleFinding | None:
    count = evidence.counters.host_calls
    if not count or evidence.counters.eager:
        return None
    gain = evidence.beyond_noise(evidence.share("host"))
    if gain is None:
        return None
    return RuleFinding(
        f"the graph of a step calls {count} Python function(s), prints or summaries, which take {gain.share:.0%} of it",
        gain,
    )


@rule(
    "loop-body",
    LIMIT,
    looks_at="seconds of the body of the loop over run.steps, or of callbacks of fit",
    applies_if=f"the gain with the body in one of {EVERY} steps is above the noise",
    expected=f"1 / (1 - {EVERY - 1}/{EVERY} x share of the time in the body)",
    change=(
        f"do less between two steps: read the loss, evaluate, log and save only every n-th step (measured: every "
        f"{EVERY}th), and keep metrics on the devices (tf.keras.metrics) until they are shown"
    ),
    source="https://www.tensorflow.org/guide/profiler#optimize_the_tensorflow_performance_on_the_host",
    knob="rarely",
)
def loop_body(evidence: AdviceEvidence) -> RuleFinding | None:
    whole = evidence.share("bodies")
    gain = evidence.beyond_noise(whole.partly(1 - 1 / EVERY))
    if gain is None:
        return None
    return RuleFinding(f"{whole.share:.0%} of the time is spent between the steps, in the body of the loop", gain)


@rule(
    "many-steps-in-one-call",
    LIMIT,
    looks_at=f"step time with {LOOP} steps in one call",
    applies_if="its gain is above the noise",
    expected=f"measured: step time / step time with {LOOP} steps in one call",
    change=(
        "run several steps in one call: compile(steps_per_execution=...) with fit, or a loop over tf.range within the "
        "tf.function"
    ),
    source="https://keras.io/api/models/model_training_apis/#compile-method (steps_per_execution)",
    knob="loop",
    rank=2,
)
def many_steps_in_one_call(evidence: AdviceEvidence) -> RuleFinding | None:
    gain = None if evidence.counters.eager else evidence.helps("loop")
    if gain is None:
        return None
    return RuleFinding(f"with {LOOP} steps in one call, a step is {gain}: the rest is the cost of a call", gain)
