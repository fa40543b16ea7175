"""Generate global batch sizes that replicas divide evenly, unevenly or not at all."""

from __future__ import annotations

from collections.abc import Collection

from hypothesis import strategies as st

from pytest_ddl.generators.arguments import at_least, some_of

BATCH_KINDS = ("even", "uneven", "smaller")
"""Kinds of batch sizes: divisible by the number of replicas; larger but not divisible; smaller than that number."""


def global_batch_sizes(
    num_replicas: int, kinds: Collection[str] = BATCH_KINDS, *, max_per_replica: int = 4
) -> st.SearchStrategy[int]:
    """Generate a number of examples for all replicas together; shrink towards the smallest of the first kind.

    :param num_replicas: replicas that share the batch.
    :param kinds: names from ``BATCH_KINDS`` that may be drawn.
    :param max_per_replica: maximum number of examples per replica.
    :raises ValueError: if an argument is not valid, or if no size is of the requested kinds.
    """
    replicas = at_least("num_replicas", num_replicas, 1)
    largest = replicas * at_least("max_per_replica", max_per_replica, 1)
    sizes = {
        "even": list(range(replicas, largest + 1, replicas)),
        "uneven": [size for size in range(replicas + 1, largest) if size % replicas],
        "smaller": list(range(1, replicas)),
    }
    chosen = [st.sampled_from(sizes[kind]) for kind in some_of("kinds", kinds, BATCH_KINDS) if sizes[kind]]
    if not chosen:
        raise ValueError(
            f"kinds={tuple(kinds)!r}: no batch of {num_replicas} replica(s) with at most {max_per_replica} example(s) "
            "each is of these kinds; add 'even', or use more replicas"
        )
    return st.one_of(chosen)
