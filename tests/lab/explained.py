"""Parts of a record that are not quantities of training, and changes of a quantity after which it is still right.

Each entry has its reason. Whatever is not listed here is mutated, and its mutants must not pass.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

_NOT_QUANTITIES: Mapping[str, Sequence[str]] = {
    "the driver sets it before the run, and both runs get the same": (
        "TrainingRecord.strategy",
        "TrainingRecord.num_replicas",
        "TrainingRecord.global_batch_size",
        "TrainingRecord.precision",
        "TrainingRecord.seed",
        "TrainingRecord.perturbation",
        "TrainingRecord.neutralized",
        "TrainingRecord.taken_over",
        "TrainingRecord.capabilities",
        "TrainingRecord.refused",
        "Capabilities.coordinator",
        "Capabilities.global_view",
        "Capabilities.reduces_by_copies",
        "CallSite.method",
        "CallSite.trains",
        "CallSite.frames",
        "CallSite.limit",
        "RankRecord.facts[call_sites]",
        "RankRecord.facts[expected_replicas]",
        "RankRecord.facts[workers]",
        "RankRecord.facts[limit]",
        "RankRecord.facts[restorable]",
    ),
    "a time": ("TrainingRecord.seconds",),
    "a version of a package": ("RankRecord.versions",),
    "it names the place of a quantity; swapping two replicas exchanges the quantities": (
        "RankRecord.rank",
        "RankRecord.task",
        "RankRecord.replicas",
        "BatchRecord.replica",
        "GradientRecord.replica",
        "GradientRecord.call",
        "GradientRecord.stage",
        "DrawRecord.replica",
        "DrawRecord.position",
        "ReductionRecord.replica",
        "ReductionRecord.position",
        "StepRecord.index",
        "VariableRecord.index",
        "VariableRecord.slot_of",
        "VariableRecord.since",
        "RankRecord.result_steps",
    ),
    "a name or a line of the program, for texts": (
        "VariableRecord.name",
        "VariableRecord.of_keras",
        "DrawRecord.name",
        "DrawRecord.op",
        "DrawRecord.generator",
        "DrawRecord.seeds",
        "LayerRecord.name",
        "GraphRecord.function",
        "CollectiveRecord.where",
        "CollectiveRecord.called",
        "CollectiveRecord.names",
        "RankRecord.facts[lines]",
        "WriteRecord.api",
        "RestoreRecord.api",
        "RestoreRecord.path",
    ),
    "it describes the program, from which bounds, causes and advice follow; values are compared without it": (
        "VariableRecord.kind",
        "VariableRecord.dtype",
        "VariableRecord.aggregation",
        "VariableRecord.synchronization",
        "VariableRecord.distributed",
        "LayerRecord.type",
        "LayerRecord.settings",
        "RankRecord.layers",
        "OptimizerRecord.type",
        "OptimizerRecord.settings",
        "RankRecord.optimizers",
        "RankRecord.casts",
        "RankRecord.casts_around",
        "RankRecord.facts[widened]",
        "RankRecord.facts[fitted]",
        "RankRecord.facts[epochs_as_steps]",
        "RankRecord.facts[trained_before]",
        "ReductionRecord.op",
        "ReductionRecord.dtype",
        "GradientRecord.sparse",
        "GradientRecord.summed",
        "BatchRecord.origin",
        "BatchRecord.numbers",
        "DrawRecord.dtype",
        "DrawRecord.shape",
        "DrawRecord.distinct",
        "DrawRecord.seeded",
        "DrawRecord.nested",
        "DrawRecord.size",
    ),
    "what the recorder could see and what it says about it": (
        "RankRecord.asynchronous",
        "RankRecord.draws_observed",
        "RankRecord.notes",
        "RankRecord.cut_off",
    ),
    "a fact about the speed of a graph": (
        "RankRecord.graphs",
        "GraphRecord.step",
        "GraphRecord.nodes",
        "GraphRecord.signature",
        "GraphRecord.collectives",
        "GraphRecord.asked",
        "GraphRecord.reduced_bytes",
        "GraphRecord.operations",
        "GraphRecord.half",
        "StepRecord.traces",
        "StepRecord.eager",
    ),
    "a layout is judged by its shards; the name of an axis is none": (
        "LayoutRecord.actual",
        "LayoutRecord.mesh",
        "RankRecord.facts[layout_rules]",
    ),
    "it only says which further run answers a question that this one leaves open": (
        "RankRecord.facts[unseeded]",
        "RankRecord.facts[drew_unseen]",
    ),
}
NOT_QUANTITIES: Mapping[str, str] = {name: why for why, names in _NOT_QUANTITIES.items() for name in names}
"""Class and field -> why it is no quantity of training."""

_OF_REPLICAS = "a sum or mean over the replicas does not depend on which replica has which part"
_RANDOM = "a new random number is as right as the recorded one; only repeated numbers are wrong"
_COVERED = "the fingerprints of whole examples are compared; those of single tensors only name the tensor that is wrong"
_RETURNED = "what a replica function returns is in a unit of the program; what the program reports is compared"
_NO_LOG = "one device executes no collective; ranks that differ from each other are found"
_FILES = "one device may write other files; two ranks that write one file are found"
_SAME = "the same number is the loss of the step, which is compared"
_LATER = "what was restored is judged by the next steps: a program may restore late"
_ONE_RANK = "one rank may record for all; the others are compared"
_SETUP = "it only explains another finding: without it, nothing was observed that could be wrong"
_SAME_BATCH = "a program may take the same batch in each step: the examples of the steps are then the same"
_OF_PARTS = "components that are added up or averaged when they are read do not depend on their order"

EXPLAINED: Mapping[tuple[str, str], str] = {
    ("StepRecord.batches", "swap replicas"): _OF_REPLICAS,
    ("StepRecord.gradients", "swap replicas"): _OF_REPLICAS,
    ("StepRecord.reductions", "swap replicas"): _OF_REPLICAS,
    ("StepRecord.draws", "swap replicas"): _OF_REPLICAS,
    ("StepRecord.snapshot[metric]", "swap replicas"): _OF_PARTS,
    ("StepRecord.snapshot[state]", "swap replicas"): _OF_PARTS,
    ("RankRecord.final[metric]", "swap replicas"): _OF_PARTS,
    ("DrawRecord.digest", "change"): _RANDOM,
    ("DrawRecord.digest", "change everywhere"): _RANDOM,
    ("BatchRecord.columns", ""): _COVERED,
    ("BatchRecord.loss", ""): _RETURNED,
    ("StepRecord.values[loss (running mean)]", ""): _SAME,
    ("CollectiveRecord.kind", "change everywhere"): _NO_LOG,
    ("CollectiveRecord.op", ""): "which reduction a kernel computes is no part of its name in every kernel",
    ("CollectiveRecord.dtype", "change everywhere"): _NO_LOG,
    ("CollectiveRecord.shape", ""): _NO_LOG,
    ("CollectiveRecord.parts", "change everywhere"): _NO_LOG,
    ("CollectiveRecord.parts", "drop everywhere"): _NO_LOG,
    ("CollectiveRecord.group", "change everywhere"): _NO_LOG,
    ("CollectiveRecord.step", ""): "the order of a log is judged, not the step at which a collective was logged",
    ("RankRecord.collectives", "drop everywhere"): _NO_LOG,
    ("RankRecord.writes", ""): _FILES,
    ("WriteRecord.path", ""): _FILES,
    ("WriteRecord.step", ""): _FILES,
    ("RankRecord.restores", ""): _SETUP,
    ("RankRecord.resumed", "drop everywhere"): "no rank then says that it was interrupted, and RESUME does not apply",
    ("RestoreRecord.step", ""): _SETUP,
    ("RestoreRecord.compared", ""): _SETUP,
    ("RankRecord.results", "drop"): _ONE_RANK,
    ("StepRecord.loss", "drop"): _ONE_RANK,
    ("StepRecord.batches", "repeat step"): _SAME_BATCH,
    ("StepRecord.batches", "repeat step everywhere"): _SAME_BATCH,
    ("StepRecord.values", "drop"): _ONE_RANK,
    ("RankRecord.facts[dispatched]", ""): _SETUP,
    ("RankRecord.facts[own_strategies]", "drop"): _SETUP,
    ("RankRecord.facts[own_strategies]", "drop everywhere"): _SETUP,
    ("RankRecord.facts[unmatched_layout_rules]", "drop"): _SETUP,
    **{
        (f"RankRecord.resumed[{kind}]", ""): _LATER
        for kind in ("trainable", "frozen", "state", "slot", "iterations", "learning-rate", "metric")
    },
}
"""Kind of quantity and operator (empty for all) -> why a mutant may pass."""

_SCHEDULE = "a fact about a schedule of the program's own under a parameter server is not checked"
_INPUTS = "the inputs of the program's own reductions are not compared with one device"

OPEN: Mapping[tuple[str, str], str] = {
    ("RankRecord.facts[own_schedule]", ""): _SCHEDULE,
    ("RankRecord.facts[scheduled]", ""): _SCHEDULE,
    ("RankRecord.facts[unfinished]", ""): _SCHEDULE,
    ("RankRecord.facts[replicas]", "drop"): "a strategy that does not say how many replicas it has is taken for right",
    ("RankRecord.facts[replicas]", "drop everywhere"): "the same",
    ("RankRecord.facts[thawed]", ""): "which weights became trainable is not compared with one device",
    ("StepRecord.reductions", "repeat step"): _INPUTS,
    ("StepRecord.reductions", "repeat step everywhere"): _INPUTS,
    ("ReductionRecord.received", ""): _INPUTS,
    ("ReductionRecord.given", ""): _INPUTS,
    ("BatchRecord.fingerprints", "change"): "contents are not compared if the examples have ids",
    ("BatchRecord.fingerprints", "change everywhere"): "the same",
    ("StepRecord.own", ""): "of a step that one device did not take over, only the snapshot is compared",
}
"""Reasons for mutants that pass but should not: the quantity is recorded and not compared. An entry is a known gap."""


def explanation(kind: str, operator: str) -> str | None:
    """Return why a mutant of a kind may pass, if it may."""
    return EXPLAINED.get((kind, operator)) or EXPLAINED.get((kind, ""))


def gap(kind: str, operator: str) -> str | None:
    """Return the known gap that lets a mutant pass."""
    return OPEN.get((kind, operator)) or OPEN.get((kind, ""))
