"""Metrics of communication that a program cannot measure with a clock: isolated collectives, and profiles of GPUs.

Bandwidths follow the formulas of nccl-tests.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from pytest_ddl.bench.launching.records import Launch
from pytest_ddl.bench.metrics.registry import NoNumberError, metric
from pytest_ddl.json_records import JsonRecord

KINDS: dict[str, Callable[[int], float]] = {
    "all_reduce": lambda n: 2 * (n - 1) / n,
    "reduce_scatter": lambda n: (n - 1) / n,
    "all_gather": lambda n: (n - 1) / n,
    "all_to_all": lambda n: (n - 1) / n,
    "broadcast": lambda n: 1.0,
    "reduce": lambda n: 1.0,
}
"""Kind of collective -> bus bandwidth divided by algorithm bandwidth on n ranks (nccl-tests, doc/PERFORMANCE.md)."""


@dataclass(frozen=True)
class CollectiveTiming(JsonRecord):
    """Times of collectives of one kind and size that ran one after the other in one launch."""

    DERIVED: ClassVar = ("derived",)

    strategy: str
    kind: str
    size: int
    """Bytes of the operation, as nccl-tests counts them. For an all-reduce, this is the tensor of each replica. For an
    all-gather, it is the whole gathered tensor."""
    replicas: int
    samples: tuple[float, ...]
    """Seconds of one collective on the slowest rank. Each sample is one call of a graph that runs ``per_call``
    collectives."""
    per_call: int
    device: str = "cpu"
    pinned: bool = False
    machine: Mapping[str, str] = field(default_factory=dict)

    @property
    def seconds(self) -> float:
        """Seconds of one collective: the median of the samples."""
        return collective_time(self.samples)

    @property
    def algorithm_bandwidth(self) -> float:
        """Algorithm bandwidth in bytes/s; see :func:`~pytest_ddl.bench.metrics.communication.algorithm_bandwidth`."""
        return algorithm_bandwidth(self.size, self.seconds)

    @property
    def bus_bandwidth(self) -> float:
        """Bus bandwidth in bytes/s; see :func:`~pytest_ddl.bench.metrics.communication.bus_bandwidth`."""
        return bus_bandwidth(self.kind, self.size, self.seconds, self.replicas)

    @property
    def derived(self) -> dict[str, float]:
        """Values that follow from the others, for programs that read the JSON."""
        return {name: getattr(self, name) for name in ("seconds", "algorithm_bandwidth", "bus_bandwidth")}

    def __str__(self) -> str:
        return (
            f"{self.strategy} {self.kind} of {self.size} B: {self.seconds * 1e6:.1f} µs, "
            f"{self.algorithm_bandwidth / 1e9:.3f} GB/s, bus {self.bus_bandwidth / 1e9:.3f} GB/s"
        )


@metric(
    "seconds",
    "lower",
    scope="profile",
    ratio_scale=False,
    family="communication",
    measured_by="profiles:exposed_communication",
)
def exposed_communication_time(busy: float, computing: float, steps: int) -> float:
    """Return the time per step in which a GPU communicates and does not compute, from a profile.

    :formula: |union(communication) - union(computation)| / steps, over kernels
    :source: Holistic Trace Analysis; XPlane of tf.profiler
    :param busy: seconds in which the GPU communicated or computed.
    :param computing: seconds in which it computed.
    """
    return (busy - computing) / steps


@metric(
    "seconds", "lower", scope="cluster", family="communication", measured_by="collectives:replayed_communication_time"
)
def replayed_communication_time(launch: Launch, timings: Sequence[CollectiveTiming]) -> float:
    """Return the time of the step's all-reduces if nothing else runs at the same time.

    The mean bytes of one all-reduce are ``reduced_bytes / all-reduces``, as counted in the graph. Their time is
    interpolated (log-log) between the measured sizes.

    This is a second proxy for communication, in addition to ``communication_time``. It is too high if transfers overlap
    with computation. It is too low in that it omits waiting for the slowest rank, packing, and contention for memory.
    ``communication_time`` errs in the opposite directions.

    :formula: count (all-reduces of a step) x time of one of their mean size
    :source: tf_cnn_benchmarks, all_reduce_benchmark.py
    :param timings: timings of all-reduces with the same number of replicas and the same device.
    :raises NoNumberError: if no all-reduce was counted, or the sizes do not enclose those of the launch.
    """
    count = launch.counters.collectives.get("all_reduce", 0)
    if not count or not launch.counters.reduced_bytes:
        raise NoNumberError(f"no all-reduce was counted in a step of {launch.strategy}")
    wanted = launch.counters.reduced_bytes / count
    known = {
        each.size: each.seconds
        for each in timings
        if (each.kind, each.replicas, each.device) == ("all_reduce", launch.replicas, launch.device)
    }
    if not known or not min(known) <= wanted <= max(known):
        measured = f"{min(known)} to {max(known)} B" if known else "none"
        raise NoNumberError(
            f"an all-reduce of {wanted:.0f} B over {launch.replicas} replicas on {launch.device} is outside the "
            f"measured sizes ({measured}): measure_collectives({launch.strategy!r}, sizes=…)"
        )
    import numpy as np

    sizes = sorted(known)
    times = np.log([known[size] for size in sizes])
    return count * float(np.exp(np.interp(np.log(wanted), np.log(sizes), times)))


@metric("seconds", "lower", scope="cluster", family="other", measured_by="collectives:measure_collectives")
def collective_time(calls: Sequence[float]) -> float:
    """Return the time of one collective of a size, in a loop within a graph.

    :formula: median over calls of (call / collectives in it)
    :source: nccl-tests
    :param calls: seconds of one collective in each call.
    """
    return statistics.median(calls)


@metric("bytes/s", "higher", scope="cluster", dual="collective_time", family="other")
def algorithm_bandwidth(size: int, seconds: float) -> float:
    """Return the bandwidth of a collective as a program sees it.

    For small sizes it shows latency, not bandwidth.

    :formula: S / t
    :source: nccl-tests, doc/PERFORMANCE.md
    :param size: bytes of the operation. For an all-reduce or broadcast: the tensor of each replica. For an all-gather
        or reduce-scatter: the whole tensor, of which each replica has a part.
    :raises ValueError: if the time or the size is not positive.
    """
    if not seconds > 0 or not size > 0:
        raise ValueError(f"size={size!r} and seconds={seconds!r} must be positive")
    return size / seconds


@metric("bytes/s", "higher", scope="cluster", dual="collective_time", family="other")
def bus_bandwidth(kind: str, size: int, seconds: float, replicas: int) -> float:
    """Return the bandwidth of the links in a collective.

    The factor of a kind counts what the best algorithm must move per rank. An algorithm that moves more (for example a
    tree without pipelining) shows a lower number. Bus bandwidths can be compared across numbers of replicas, and with
    the hardware's peak.

    :formula: S / t x {all-reduce 2 (n-1)/n; reduce-scatter, all-gather (n-1)/n; broadcast 1}
    :source: nccl-tests, doc/PERFORMANCE.md
    :raises ValueError: if the kind has no factor, or there is a single replica, which moves nothing.
    """
    if kind not in KINDS:
        raise ValueError(f"kind={kind!r} has no bus bandwidth; valid: {', '.join(KINDS)}")
    if replicas < 2:
        raise ValueError(f"replicas={replicas}: a collective of one replica moves nothing")
    return algorithm_bandwidth(size, seconds) * KINDS[kind](replicas)
