"""Catalogue of known behaviors of TensorFlow and Keras, and the search in it."""

from __future__ import annotations

from collections.abc import Mapping

from pytest_ddl.equivalence.diagnosis import limitations as limits
from pytest_ddl.equivalence.diagnosis.limitations import Limitation
from pytest_ddl.equivalence.evidence.comparison import Comparison
from pytest_ddl.equivalence.findings import Finding
from pytest_ddl.equivalence.known.behavior import KnownBehavior
from pytest_ddl.equivalence.known.recognize import is_limit, is_of_replicas, is_seed_generator
from pytest_ddl.equivalence.known.shared_metrics import is_summed_again
from pytest_ddl.equivalence.known.sparse_squares import is_squares_of_parts
from pytest_ddl.hints import FrontEnd, Hint

_KERAS_3 = ">=3.0,<3.17"
"""Versions in which a recomputation shows the behavior. The last were seen as nightly builds, Keras 3.16.0.dev and
TensorFlow 2.23.0.dev. A newer Keras is not assumed to behave alike."""

_FIT = {"keras": _KERAS_3}
_DTENSOR = {"tensorflow": ">=2.16,<2.24", "keras": _KERAS_3}
_REPLICAS = ("mirrored", "multi_worker_mirrored", "central_storage")


def _limit(
    name: str, limitation: Limitation, versions: Mapping[str, str], workaround: str, *strategies: str
) -> KnownBehavior:
    """Return the entry for a limitation, which ends a run."""
    causes = ("unsupported-by-framework",)
    title, link = FrontEnd.TRY.render(limitation.reason), limitation.link  # the workaround names run.steps
    return KnownBehavior(name, title, causes, workaround, link, is_limit(limitation), versions, strategies)


_ENTRIES = (
    KnownBehavior(
        "keras-seed-generator",
        "Keras 3 gives every replica the same seeds, so that Dropout and all other random layers draw the same numbers "
        "on all replicas",
        ("random-stream-repeated-across-replicas",),
        "Train with it as it is: masks repeat over replicas, not over steps. For numbers of its own on each replica, "
        "use a layer that draws with tf.random.stateless_* from a seed into which it folds the replica id.",
        "https://keras.io/api/random/seed_generator/",
        is_seed_generator,
        {"keras": _KERAS_3},
        _REPLICAS,
    ),
    KnownBehavior(
        "keras-batch-normalization",
        "Keras 3 gives every replica moving statistics of its own in BatchNormalization, never combines them, and "
        "saves those of the first replica",
        ("state-not-aggregated",),
        "Use keras.layers.BatchNormalization(synchronized=True): one mean and one variance for all replicas.",
        "https://keras.io/api/layers/normalization_layers/batch_normalization/",
        is_of_replicas,
        {"keras": _KERAS_3},
        ("mirrored", "multi_worker_mirrored"),
    ),
    KnownBehavior(
        "keras-squares-of-parts",
        "Adam and other optimizers of Keras 3 square the replicas' parts of a sparse gradient one by one, so that rows "
        "that all replicas use (positional embeddings) move by another step than on one device",
        ("optimizer-state-mismatch", "sparse-gradient-mismatch"),
        "Make the gradient dense, for example by multiplying a one-hot matrix with the embeddings, or add positions by "
        "a weight of the layer (self.add_weight) instead of an Embedding of a range.",
        "",
        is_squares_of_parts,
        {"keras": _KERAS_3},
        ("mirrored", "multi_worker_mirrored"),
    ),
    KnownBehavior(
        "keras-metrics-central-storage",
        "Keras 3 lets the replicas share the state of a metric under central storage, and sums it over them again in "
        "every update",
        ("reported-loss-wrong", "metric-wrong"),
        "The weights are right. Evaluate a copy that is made and compiled outside of strategy.scope(): "
        "copy = keras.models.clone_model(model), then copy.set_weights(model.get_weights()).",
        "",
        is_summed_again,
        {"keras": ">=3.7,<3.17"},
        ("central_storage",),
    ),
    _limit(
        "keras-fit-multi-worker",
        limits.FIT_OF_WORKERS,
        _FIT,
        f"Train in a custom loop{Hint.OF_RUN_STEPS}, or with Model.fit of tf_keras.",
        "multi_worker_mirrored",
    ),
    _limit(
        "keras-fit-parameter-server",
        limits.FIT_OF_COORDINATOR,
        _FIT,
        f"Train in a ClusterCoordinator loop{Hint.OF_RUN_STEPS}, or with Model.fit of tf_keras.",
        "parameter_server",
    ),
    _limit(
        "keras-fit-model-parallel",
        limits.FIT_OF_DTENSOR,
        _DTENSOR,
        f"Train in a custom loop{Hint.OF_RUN_STEPS}.",
        "model_parallel",
    ),
    _limit(
        "dtensor-tensor-lists",
        limits.TENSOR_LISTS,
        _DTENSOR,
        "Give the recurrent layer unroll=True.",
        "model_parallel",
    ),
    _limit(
        "keras-fit-unequal-parts",
        limits.UNEQUAL_PARTS,
        _FIT,
        "Let the first batch of fit be divisible by the number of replicas: batch with drop_remainder=True, or put the "
        "whole batches first.",
        *_REPLICAS,
    ),
    _limit(
        "keras-fit-strings",
        limits.STRINGS,
        _FIT,
        "Turn strings into numbers in the dataset: dataset.map(lambda x, y: (lookup(x), y)) with the same layer.",
        *_REPLICAS,
    ),
    _limit(
        "keras-fit-averaged-indices",
        limits.AVERAGED_INDICES,
        _FIT,
        "Cast indices in the model's call(): keras.ops.cast(x, 'int32').",
        *_REPLICAS,
    ),
    _limit(
        "keras-fit-several-steps",
        limits.SEVERAL_STEPS,
        _FIT,
        "Compile with steps_per_execution=1 if there are several replicas.",
        "mirrored",
    ),
    _limit(
        "keras-average-overwrites",
        limits.AVERAGES_IN_A_BRANCH,
        _FIT,
        "Leave out ema_overwrite_frequency: the optimizer keeps the averages, and fit puts them into the weights when "
        "it ends. To do so every n steps, call optimizer.finalize_variable_values(model.trainable_variables) outside "
        "of strategy.run.",
        *_REPLICAS,
    ),
    _limit(
        "keras-accumulation-steps",
        limits.ACCUMULATION_IN_A_BRANCH,
        _FIT,
        "Leave out gradient_accumulation_steps, and use a larger batch. If it does not fit into memory, add gradients "
        "up in variables of the program.",
        *_REPLICAS,
    ),
    _limit(
        "xla-variables-of-replicas",
        limits.XLA_REPLICAS,
        {"tensorflow": ">=2.16,<2.24"},
        "Compile with jit_compile=False if there are several replicas in one process.",
        "mirrored",
        "central_storage",
    ),
)

KNOWN: Mapping[str, KnownBehavior] = {entry.id: entry for entry in _ENTRIES}
"""All known behaviors by id, in the order of the documentation."""


def recognized(finding: Finding, comparison: Comparison) -> str | None:
    """Return the id of the known behavior that explains a finding by itself, or ``None``."""
    distributed = comparison.distributed
    strategy = distributed.strategy.partition("[")[0]
    versions = next((rank.versions for rank in distributed.ranks if rank.versions), {})
    for entry in KNOWN.values():
        fits = finding.cause in entry.causes and entry.applies(strategy, versions)
        if fits and entry.recognize(finding, comparison):
            return entry.id
    return None
