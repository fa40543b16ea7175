"""Find examples that several replicas consume in one step, by hashes of the examples.

Equal examples are not always a mistake. Data may repeat itself, and a small dataset that is repeated gives each batch
the same examples. So two conditions must hold: the batches of two replicas are mostly equal in one step, and the
batches of one replica in two steps in a row have nothing in common.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from pytest_ddl.equivalence.causes import fix_of
from pytest_ddl.equivalence.findings import Finding
from pytest_ddl.guarding.copies import Rows
from pytest_ddl.guarding.judging import CHECK, Moment
from pytest_ddl.training import fingerprint

NUMBER = 64
"""Number of hashes of a batch: the smallest ones, so that equal batches in another order have the same."""
_COLUMNS = 1024
"""Number of elements of an example that are hashed, evenly spaced, so that images need not leave the device."""
_FEWEST = 2
"""Smallest number of different examples of a batch that is judged. A single one may be equal by chance."""
NOTHING = np.zeros(NUMBER, np.int64)
"""Row of a batch that is not known. A hash is never 0."""


def hashes(strategy: Any, batch: Any, local: int) -> list[Rows]:
    """Return a row of hashes for each replica of this process."""
    import tensorflow as tf

    parts: list[list[Any]] = [[] for _replica in range(local)]
    for leaf in tf.nest.flatten(batch):
        found = strategy.experimental_local_results(leaf)
        if len(found) != local:
            return [NOTHING] * local  # a batch that is not split over the replicas yet
        for replica, value in enumerate(found):
            parts[replica].append(value)
    return [_of_replica(tensors) for tensors in parts]


def _of_replica(tensors: list[Any]) -> Rows:
    import tensorflow as tf

    dense = [one for one in tensors if isinstance(one, tf.Tensor | np.ndarray) and len(one.shape) and one.shape[0]]
    if not dense or any(one.shape[0] != dense[0].shape[0] for one in dense):
        return NOTHING
    examples = fingerprint.combine(
        [fingerprint.hash_rows(_narrowed(one), position) for position, one in enumerate(dense)]
    )
    row = np.array(NOTHING)
    smallest = sorted(set(examples) - {0})[:NUMBER]
    row[: len(smallest)] = np.array(smallest, np.uint64).view(np.int64)
    return row


def _narrowed(tensor: Any) -> Any:
    """Return some elements of each example."""
    import tensorflow as tf

    flat = tf.reshape(tensor, [tensor.shape[0], -1])
    width = int(flat.shape[1])
    if width > _COLUMNS:
        flat = tf.gather(flat, np.linspace(0, width - 1, _COLUMNS).astype(np.int64), axis=1)
    return flat.numpy()


def duplicated(now: Rows, before: Rows, moment: Moment) -> Finding | None:
    """Return a finding if replicas consume the same examples.

    :param now: hashes of the batch of each replica in this step.
    :param before: those in the step before.
    """
    batches, earlier = ([set(row.tolist()) - {0} for row in rows] for rows in (now, before))
    judged = [
        at
        for at, batch in enumerate(batches)
        if len(batch) >= _FEWEST and len(earlier[at]) >= _FEWEST and not batch & earlier[at]
    ]
    for at, replica in enumerate(judged):
        for other in judged[:at]:
            shared, size = len(batches[replica] & batches[other]), min(len(batches[replica]), len(batches[other]))
            if 2 * shared >= size:
                cause = "examples-duplicated"
                return Finding(
                    CHECK,
                    f"replicas {other} and {replica} consume the same examples in step {moment.step}",
                    cause,
                    step=moment.step,
                    replica=replica,
                    worker=moment.worker(replica),
                    fix=fix_of(cause),
                    evidence=f"{shared} of {size} examples have the same contents, and none was in the batch before",
                )
    return None
