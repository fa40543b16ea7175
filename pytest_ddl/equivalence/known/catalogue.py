"""Catalogue of known behaviors of TensorFlow and Keras, and the search in it."""

from __future__ import annotations

from collections.abc import Mapping

from pytest_ddl.equivalence.findings import Finding
from pytest_ddl.equivalence.known.behavior import KnownBehavior
from pytest_ddl.equivalence.known.random_streams import is_seed_generator
from pytest_ddl.records import TrainingRecord

_KERAS_3 = ">=3.0,<3.16"
"""Versions in which a recomputation shows the behavior. A newer Keras is not assumed to behave alike."""

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
        ("mirrored", "multi_worker_mirrored", "central_storage"),
    ),
)

KNOWN: Mapping[str, KnownBehavior] = {entry.id: entry for entry in _ENTRIES}
"""All known behaviors by id, in the order of the documentation."""


def recognized(finding: Finding, reference: TrainingRecord, distributed: TrainingRecord) -> str | None:
    """Return the id of the known behavior that explains a finding by itself, or ``None``."""
    strategy = distributed.strategy.partition("[")[0]
    versions = next((rank.versions for rank in distributed.ranks if rank.versions), {})
    for entry in KNOWN.values():
        fits = finding.cause in entry.causes and entry.applies(strategy, versions)
        if fits and entry.recognize(finding, reference, distributed):
            return entry.id
    return None
