"""Rules of communication: collectives that are too many, too large or not needed."""

from __future__ import annotations

from pytest_ddl.bench.advice.facts.evidence import AdviceEvidence
from pytest_ddl.bench.advice.facts.gains import Gain
from pytest_ddl.bench.advice.rules.registry import RuleFinding, rule
from pytest_ddl.bench.launching.counting import reduction_ratio
from pytest_ddl.web.units import size

LIMIT = "communication"
_GUIDE = "https://www.tensorflow.org/api_docs/python/tf/distribute/ReplicaContext#all_reduce"


def _communicates(evidence: AdviceEvidence) -> Gain | None:
    """Return the gain without communication, if it is above the noise and collectives were counted."""
    counted = evidence.replicas > 1 and not evidence.counters.eager and any(evidence.counters.collectives.values())
    return evidence.helps("alone") if counted else None


def _saving(evidence: AdviceEvidence, gain: Gain, before: float, after: float) -> Gain | None:
    """Return the gain if collectives took ``after`` and not ``before``, both timed with nothing else running."""
    return evidence.beyond_noise(gain.partly(max(0.0, 1 - after / before))) if before > 0 else None


@rule(
    "pack-options",
    LIMIT,
    looks_at="number of all-reduces (count), and the step time without options= of all_reduce",
    applies_if="there are several, and the gain without options= is above the noise",
    expected="measured: step time / step time without options=",
    change=(
        "remove bytes_per_pack from tf.distribute.experimental.CommunicationOptions, or make it as large as all "
        "gradients together"
    ),
    source="https://www.tensorflow.org/api_docs/python/tf/distribute/experimental/CommunicationOptions",
    knob="packs",
)
def pack_options(evidence: AdviceEvidence) -> RuleFinding | None:
    if evidence.reductions < 3 or not _communicates(evidence):
        return None
    gain = evidence.helps("packs")
    if gain is None:
        return None
    return RuleFinding(
        f"a step has {evidence.reductions} reductions; without options= of all_reduce it is {gain}", gain
    )


@rule(
    "one-reduction-each",
    LIMIT,
    looks_at="reductions and their bytes (count), replayed together and one by one",
    applies_if="there are three packs or three single tensors, and the gain of one reduction is above the noise",
    expected="1 / (1 - share of communication x (1 - time of one all-reduce / time of all))",
    change=(
        "give all gradients to one call as a list: context.all_reduce(SUM, gradients), or optimizer.apply_gradients "
        "with all pairs; TensorFlow packs them"
    ),
    source=_GUIDE,
)
def one_reduction_each(evidence: AdviceEvidence) -> RuleFinding | None:
    counters, count = evidence.counters, evidence.reductions
    # A pack of all gradients beside a loss and a metric is how it should be.
    if max(counters.packs, counters.unpacked) < 3:
        return None
    waits = _communicates(evidence)
    if not waits or evidence.helps("packs"):
        return None
    single = evidence.seconds_of("all_reduce", counters.reduced_bytes // count)
    together = evidence.seconds_of("all_reduce", counters.reduced_bytes)
    gain = _saving(evidence, waits, single * count, together)
    if gain is None:
        return None
    return RuleFinding(
        f"a step has {count} reductions, {counters.unpacked} of them of a single tensor, "
        f"{size(counters.reduced_bytes)} in all. "
        f"With nothing else running, these take {single * count * 1e3:.2f} ms, and one of all bytes "
        f"{together * 1e3:.2f} ms",
        gain,
    )


@rule(
    "wide-gradients",
    LIMIT,
    looks_at="dtypes and bytes of reductions and of the parameters (count)",
    applies_if="more than half of the reduced bytes are float64, and the gain of float32 is above the noise",
    expected="measured: step time / step time with float32 reductions",
    change="cast gradients to float32 before they are reduced; find the operation that makes them float64",
    source="Micikevicius et al. 2018, Mixed Precision Training, arXiv 1710.03740",
    knob="narrow",
)
def wide_gradients(evidence: AdviceEvidence) -> RuleFinding | None:
    counters = evidence.counters
    if 2 * counters.reduced_dtypes.get("float64", 0) <= counters.reduced_bytes or not _communicates(evidence):
        return None
    gain = evidence.helps("narrow")
    ratio = reduction_ratio(counters)
    of = f", {ratio:.3g} times the parameters" if ratio else ""
    if gain is None:
        return None
    return RuleFinding(f"{size(counters.reduced_bytes)} are reduced in float64{of}; in float32 a step is {gain}", gain)


@rule(
    "gathers",
    LIMIT,
    looks_at="all-gathers (count), and the step time with copies of a replica's own value in their place",
    applies_if="there are any all-gathers, and the gain without them is above the noise",
    expected="measured: step time / step time without all-gathers",
    change=(
        "do not gather values in each step: reduce what you need (a sum, a count), gather only when it is shown, or "
        "keep it in a metric of the replica"
    ),
    source="Thakur et al. 2005, Optimization of Collective Communication Operations in MPICH",
    knob="ungathered",
)
def gathers(evidence: AdviceEvidence) -> RuleFinding | None:
    count = evidence.counters.collectives.get("all_gather", 0)
    # Sparse gradients are gathered, too, by the reduction of the optimizer, which the knob does not change.
    gain = evidence.helps("ungathered") if count and _communicates(evidence) else None
    if gain is None:
        return None
    gathered = evidence.counters.gathered_bytes
    of = f" of {size(gathered)}" if gathered else ""
    return RuleFinding(f"a step has {count} all-gather(s){of}; without them it is {gain}", gain)


@rule(
    "dense-embedding",
    LIMIT,
    looks_at="rows of each matrix that a step changes, and the bytes that are reduced (counts)",
    applies_if="a step changes fewer than half of the rows of a matrix whose gradient is reduced as a whole, and the "
    "gain of sending the changed rows is above the noise",
    expected="1 / (1 - share of communication x (1 - time of sending the rows / time of the reductions)), at least",
    change=(
        "look rows up with tf.nn.embedding_lookup or keras.layers.Embedding, so that the gradient has only the rows "
        "of the batch (tf.IndexedSlices), and not by a product with one-hot vectors or after a copy of the table"
    ),
    source="Kim et al. 2019, Parallax, arXiv 1808.02621",
)
def dense_embedding(evidence: AdviceEvidence) -> RuleFinding | None:
    counters = evidence.counters
    tables = evidence.notes[0].tables if evidence.notes else []
    sparse = [
        (name, changed, rows, row_bytes)
        for name, changed, rows, row_bytes in tables
        if 0 < changed < rows / 2 and rows * row_bytes <= counters.reduced_bytes
    ]
    waits = _communicates(evidence) if sparse else None
    if not waits:
        return None
    name, changed, rows, row_bytes = max(sparse, key=lambda one: (one[2] - one[1]) * one[3])
    # Sending rows needs twice the bytes per row, at most: each replica receives the rows of all.
    left = max(4, counters.reduced_bytes - rows * row_bytes)
    after = evidence.seconds_of("all_reduce", left) + evidence.seconds_of("all_gather", max(4, changed * row_bytes))
    before = evidence.seconds_of("all_reduce", counters.reduced_bytes)
    gain = _saving(evidence, waits, before, after)
    if gain is None:
        return None
    return RuleFinding(
        f"a step changes {changed} of {rows} rows of {name}, and reduces its whole gradient: "
        f"{size(rows * row_bytes)} of {size(counters.reduced_bytes)}",
        gain,
    )


@rule(
    "half-gradients",
    LIMIT,
    looks_at="step time with gradients that are reduced as float16",
    applies_if="most reduced bytes are float32, and the gain of float16 is above the noise",
    expected="measured: step time / step time with float16 reductions",
    change=(
        "reduce gradients in half precision: cast them to float16 (with a scaled loss) or bfloat16 before all_reduce, "
        "and back after it; then compare the loss over epochs"
    ),
    source="Micikevicius et al. 2018, arXiv 1710.03740; Sergeev and Del Balso 2018, Horovod, arXiv 1802.05799",
    knob="half",
    rank=2,
)
def half_gradients(evidence: AdviceEvidence) -> RuleFinding | None:
    counters = evidence.counters
    if 2 * counters.reduced_dtypes.get("float32", 0) <= counters.reduced_bytes or not _communicates(evidence):
        return None
    gain = evidence.helps("half")
    if gain is None:
        return None
    return RuleFinding(
        f"{size(counters.reduced_bytes)} are reduced in float32 in a step; in float16 a step is {gain}", gain
    )
