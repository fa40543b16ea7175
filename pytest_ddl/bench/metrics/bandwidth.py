"""Bandwidth of a collective, by the formulas of nccl-tests."""

from __future__ import annotations

from collections.abc import Callable

KINDS: dict[str, Callable[[int], float]] = {
    "all_reduce": lambda n: 2 * (n - 1) / n,
    "reduce_scatter": lambda n: (n - 1) / n,
    "all_gather": lambda n: (n - 1) / n,
    "all_to_all": lambda n: (n - 1) / n,
    "broadcast": lambda n: 1.0,
    "reduce": lambda n: 1.0,
}
"""Kind of collective -> bus bandwidth over algorithm bandwidth, on n ranks (nccl-tests, doc/PERFORMANCE.md)."""


def algorithm_bandwidth(size: int, seconds: float) -> float:
    """Bytes/s that a program gets: ``S / t``.

    Source: nccl-tests, doc/PERFORMANCE.md. For small sizes it shows latency, not bandwidth.

    :param size: bytes of the operation: of an all-reduce or broadcast, each replica's tensor; of an all-gather
        or reduce-scatter, the whole of which each replica has a part.
    :raises ValueError: for a time or size that is not positive.
    """
    if not seconds > 0 or not size > 0:
        raise ValueError(f"size={size!r} and seconds={seconds!r} must be positive")
    return size / seconds


def bus_bandwidth(kind: str, size: int, seconds: float, replicas: int) -> float:
    """Bytes/s that the links carry: ``S / t`` times ``2 (n-1)/n`` for an all-reduce, ``(n-1)/n`` for a
    reduce-scatter, all-gather or all-to-all, 1 for a broadcast or reduce.

    Comparable over numbers of replicas, and with the hardware's peak. The factor is what the best algorithm has
    to move per rank; one that moves more (a tree without pipelining, say) shows a lower number.
    Source: nccl-tests, doc/PERFORMANCE.md.

    :raises ValueError: for a kind without a factor, or a single replica, which moves nothing.
    """
    if kind not in KINDS:
        raise ValueError(f"kind={kind!r} has no bus bandwidth; there are {', '.join(KINDS)}")
    if replicas < 2:
        raise ValueError(f"replicas={replicas}: a collective of one replica moves nothing")
    return algorithm_bandwidth(size, seconds) * KINDS[kind](replicas)
