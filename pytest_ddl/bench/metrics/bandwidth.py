"""Compute the bandwidth of a collective by the formulas of nccl-tests."""

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
"""Kind of collective -> bus bandwidth divided by algorithm bandwidth on n ranks (nccl-tests, doc/PERFORMANCE.md)."""


def algorithm_bandwidth(size: int, seconds: float) -> float:
    """Return the bytes/s that a program gets: ``S / t``.

    Source: nccl-tests, doc/PERFORMANCE.md. For small sizes it shows latency, not bandwidth.

    :param size: bytes of the operation. For an all-reduce or broadcast: the tensor of each replica. For an all-gather
        or reduce-scatter: the whole tensor, of which each replica has a part.
    :raises ValueError: if the time or the size is not positive.
    """
    if not seconds > 0 or not size > 0:
        raise ValueError(f"size={size!r} and seconds={seconds!r} must be positive")
    return size / seconds


def bus_bandwidth(kind: str, size: int, seconds: float, replicas: int) -> float:
    """Return the bytes/s that the links carry: ``S / t`` times a factor.

    The factor is ``2 (n-1)/n`` for an all-reduce, ``(n-1)/n`` for a reduce-scatter, all-gather or all-to-all, and 1 for
    a broadcast or reduce. It counts what the best algorithm must move per rank. An algorithm that moves more (for
    example a tree without pipelining) shows a lower number. Bus bandwidths can be compared across numbers of replicas,
    and with the hardware's peak. Source: nccl-tests, doc/PERFORMANCE.md.

    :raises ValueError: if the kind has no factor, or there is a single replica, which moves nothing.
    """
    if kind not in KINDS:
        raise ValueError(f"kind={kind!r} has no bus bandwidth; there are {', '.join(KINDS)}")
    if replicas < 2:
        raise ValueError(f"replicas={replicas}: a collective of one replica moves nothing")
    return algorithm_bandwidth(size, seconds) * KINDS[kind](replicas)
