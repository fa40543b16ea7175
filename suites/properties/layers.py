"""Call a layer on the replicas with parts of their own, and collect what this process has of the results."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from suites.running import each

STRATEGIES = ["mirrored[replicas=3]", "multi_worker_mirrored"]
BOUND = {"rtol": 1e-11, "atol": 1e-12}
"""Some hundred operations in float64; a root of a small variance makes an error ten times larger."""


def by_replica(strategy: Any, function: Callable[..., Any], how: str = "function") -> Callable[[Sequence[Any]], Any]:
    """Return a function that gives the parts to the replicas, and returns a dictionary of replica id -> results."""
    import tensorflow as tf

    def on_replica(*part: Any) -> Any:
        context = tf.distribute.get_replica_context()
        return tf.identity(context.replica_id_in_sync_group), function(*part)

    step = each(strategy, on_replica, how)

    def call(parts: Sequence[Any]) -> dict[int, list[Any]]:
        return {int(number): [np.asarray(one) for one in results] for number, *results in step(parts)}

    return call


def rows(sizes: Sequence[int], *shape: int, seed: int = 0) -> list[np.ndarray[Any, Any]]:
    """Return a part for each replica; those of later replicas and seeds are larger, and have another mean."""
    draw = np.random.default_rng([seed, *sizes])
    return [(1 + seed + n) * draw.normal(size=(size, *shape)) + n - seed for n, size in enumerate(sizes)]


def check(found: dict[int, list[Any]], expected: Sequence[Any], bound: Any = None) -> None:
    """Compare the first result of each replica of this process."""
    assert found
    for number, results in found.items():
        np.testing.assert_allclose(results[0], expected[number], **(bound or BOUND), err_msg=f"replica {number}")
