"""How fast are collectives alone: all-reduces and all-gathers over message sizes, on a cluster of a variant."""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from pytest_ddl.bench.launching.pinning import cores_per_replica, pinned, thread_environ
from pytest_ddl.bench.launching.stopwatch import synchronise
from pytest_ddl.bench.machine import machine_facts
from pytest_ddl.bench.metrics.absent import NoNumberError
from pytest_ddl.bench.metrics.bandwidth import algorithm_bandwidth, bus_bandwidth
from pytest_ddl.bench.records import Launch
from pytest_ddl.cluster.worker import current_rank

KINDS = ("all_reduce", "all_gather")
"""What ``tf.distribute`` lets a program ask for by itself."""
SIZES = tuple(4**power for power in range(2, 13))
"""16 B to 16 MiB."""
BYTES_PER_CALL = 2**24
FEWEST_PER_CALL, MOST_PER_CALL = 5, 100
ITEM = 4
"""Bytes of a float32."""


@dataclass(frozen=True)
class CollectiveTiming:
    """How long collectives of one kind and size took, one after the other, in one launch."""

    strategy: str
    kind: str
    size: int
    """Bytes of the operation, as nccl-tests count: of an all-reduce each replica's tensor, of an all-gather the
    whole that is gathered."""
    replicas: int
    samples: tuple[float, ...]
    """Seconds of one collective, one for each call of a graph with ``per_call`` of them; of the slowest rank."""
    per_call: int
    device: str = "cpu"
    pinned: bool = False
    machine: Mapping[str, str] = field(default_factory=dict)

    @property
    def seconds(self) -> float:
        """Of one collective: the median."""
        return statistics.median(self.samples)

    @property
    def algorithm_bandwidth(self) -> float:
        """Bytes/s; see :func:`~pytest_ddl.bench.metrics.bandwidth.algorithm_bandwidth`."""
        return algorithm_bandwidth(self.size, self.seconds)

    @property
    def bus_bandwidth(self) -> float:
        """Bytes/s; see :func:`~pytest_ddl.bench.metrics.bandwidth.bus_bandwidth`."""
        return bus_bandwidth(self.kind, self.size, self.seconds, self.replicas)

    def as_json(self) -> dict[str, Any]:
        derived = {name: getattr(self, name) for name in ("seconds", "algorithm_bandwidth", "bus_bandwidth")}
        return {**asdict(self), "derived": derived}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> CollectiveTiming:
        """The timing that :meth:`as_json` wrote."""
        given = {key: value for key, value in data.items() if key != "derived"}
        return cls(**{**given, "samples": tuple(given["samples"])})

    def __str__(self) -> str:
        return (
            f"{self.strategy} {self.kind} of {self.size} B: {self.seconds * 1e6:.1f} µs, "
            f"{self.algorithm_bandwidth / 1e9:.3f} GB/s, bus {self.bus_bandwidth / 1e9:.3f} GB/s"
        )


def measure_collectives(
    variant: str = "mirrored",
    sizes: Sequence[int] = SIZES,
    kinds: Sequence[str] = ("all_reduce",),
    *,
    samples: int = 5,
    device: str = "auto",
    pin: bool = False,
    timeout: float = 300.0,
) -> list[CollectiveTiming]:
    """Time collectives alone, in fresh processes of a variant.

    Each call runs a graph that loops over many collectives, each of which needs the one before, so that Python is
    not measured; the loop and its dispatch (tens of µs) are, and show in small sizes. Calls before the samples
    are warm-up. Before anything is timed, the sum over replicas is checked: a collective that does not happen is
    fast. Source of the formulas: nccl-tests.

    :param variant: of a synchronous strategy with two replicas or more.
    :param sizes: bytes, see :attr:`CollectiveTiming.size`; rounded up to whole float32 on every replica.
    :param kinds: of ``all_reduce``, ``all_gather``.
    :param samples: calls that are timed, of each size.
    :param device: ``cpu``, ``gpu``, or ``auto``.
    :param pin: give every replica cores of its own.
    :param timeout: seconds for everything.
    :raises BenchError: where the variant cannot run here, or a rank fails.
    :raises ValueError: for an argument that cannot be used.
    """
    from pytest_ddl.bench.launching.answers import BenchError, all_of
    from pytest_ddl.cluster import ship
    from pytest_ddl.cluster.protocol import Kind
    from pytest_ddl.harness import process_harness
    from pytest_ddl.items.selection import DdlMark

    _validate(sizes, kinds, samples)
    harness = process_harness()
    spec = harness.registry.parse_variant(variant)
    mark = DdlMark(device=device, isolation="fresh")
    if reason := harness.unavailable(spec, mark):
        raise BenchError(f"{spec} cannot run here: {reason}")
    replicas = harness.registry[spec.name].num_replicas(spec)
    if replicas < 2 or spec.name == "tpu":
        raise ValueError(f"variant={variant!r} has no collectives to time here: give one with 2 replicas or more")
    cores = cores_per_replica(replicas) if pin else 0
    deadline = time.monotonic() + timeout
    environ = thread_environ(harness.registry[spec.name], spec, cores)
    with harness.cluster(spec, mark, fresh=True, environ=environ) as cluster:
        job = ship.pack(time_collectives, (tuple(sizes), tuple(kinds), samples, cores))
        answers = cluster.ask(Kind.CALL, job, deadline=deadline)
        # A lease that another user could get would not be fresh.
        cluster.retired = cluster.retired or "collectives were measured in it"
        used = harness.device_for(spec, mark)
    ranks: list[dict[tuple[str, int], list[float]]] = all_of(answers, "while collectives were timed")
    facts = machine_facts()
    return [
        CollectiveTiming(
            str(spec), kind, size, replicas,
            tuple(max(calls) for calls in zip(*(rank[kind, size] for rank in ranks), strict=True)),
            _per_call(size), used, cores > 0, facts,
        )
        for kind, size in ranks[0]
    ]  # fmt: skip


def time_collectives(
    sizes: Sequence[int], kinds: Sequence[str], samples: int, cores: int
) -> dict[tuple[str, int], list[float]]:
    """Time collectives on this rank: kind and size in bytes -> seconds of one collective, call by call.

    :raises AssertionError: where a collective does not give what it has to.
    """
    context = current_rank()
    assert context is not None
    local = max(1, context.num_replicas // context.num_ranks)
    with pinned(context.rank * local, local, cores):
        found = {}
        for kind in kinds:
            _prove(context.strategy, kind, context.num_replicas)
            for wanted in sizes:
                elements = _elements(kind, wanted, context.num_replicas)
                size = elements * ITEM * (context.num_replicas if kind == "all_gather" else 1)
                found[kind, size] = _time(context.strategy, kind, elements, _per_call(size), samples)
        return found


def _time(strategy: Any, kind: str, elements: int, per_call: int, samples: int) -> list[float]:
    import tensorflow as tf

    collective = _collective(kind)

    def loop(value: Any, count: Any) -> Any:
        # As strategy.run gives it: of a single local replica without a PerReplica around it.
        value = strategy.run(tf.identity, args=(value,))
        for _ in tf.range(count):
            value = strategy.run(collective, args=(value,))
        return value

    many = tf.function(loop)
    # Sums of zeros stay what they are, however many.
    value = strategy.experimental_distribute_values_from_function(lambda _: tf.zeros([elements]))
    count = tf.constant(per_call)
    seconds = []
    for call in range(samples + 2):
        started = time.perf_counter()
        done = many(value, count)
        synchronise(tf.reduce_sum(strategy.experimental_local_results(done)[0][:1]))
        if call >= 2:
            seconds.append((time.perf_counter() - started) / per_call)
    return seconds


def _prove(strategy: Any, kind: str, replicas: int) -> None:
    """Let the collective meet different values, and look at what comes out."""
    import tensorflow as tf

    collective = _collective(kind)

    def own() -> Any:
        number = tf.distribute.get_replica_context().replica_id_in_sync_group + 1
        return collective(tf.fill([3], tf.cast(number, tf.float32)))

    once = tf.function(lambda: strategy.run(own))
    for result in strategy.experimental_local_results(once()):
        got = float(result.numpy()[0])
        wanted = replicas * (replicas + 1) / 2 if kind == "all_reduce" else 1.0
        if got != wanted:
            raise AssertionError(f"{kind} over {replicas} replicas gave {got}, not {wanted}: it did not take place")


def _collective(kind: str) -> Any:
    import tensorflow as tf

    def all_reduce(value: Any) -> Any:
        # What comes around in a loop has no device, by which MultiWorkerMirroredStrategy knows where to put the sum.
        return tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, tf.identity(value))

    def all_gather(value: Any) -> Any:
        whole = tf.distribute.get_replica_context().all_gather(tf.identity(value), axis=0)
        # The same shape as before, so that the loop can go on with it.
        return tf.ensure_shape(whole[: tf.shape(value)[0]], value.shape)

    return {"all_reduce": all_reduce, "all_gather": all_gather}[kind]


def _elements(kind: str, size: int, replicas: int) -> int:
    """float32 of one replica for an operation of ``size`` bytes."""
    return max(1, -(-size // (ITEM * (replicas if kind == "all_gather" else 1))))


def _per_call(size: int) -> int:
    return min(MOST_PER_CALL, max(FEWEST_PER_CALL, BYTES_PER_CALL // size))


def _validate(sizes: Sequence[int], kinds: Sequence[str], samples: int) -> None:
    wrong = [kind for kind in kinds if kind not in KINDS]
    if wrong or not kinds:
        raise ValueError(f"kinds={list(kinds)!r}: of {', '.join(KINDS)}, which tf.distribute lets a program ask for")
    if not sizes or any(not isinstance(size, int) or size < 1 for size in sizes):
        raise ValueError(f"sizes={list(sizes)!r} must be whole numbers of bytes, at least 1")
    if samples < 1:
        raise ValueError(f"samples={samples!r} must be at least 1")


def replayed_communication_time(launch: Launch, timings: Sequence[CollectiveTiming]) -> float:
    """Seconds per step that the launch's own all-reduces take where nothing else runs: count times the time of one.

    A proxy for communication besides ``communication_time``, from sizes that were counted in the graph: the bytes
    per all-reduce are the mean ``reduced_bytes / all-reduces``, whose time is interpolated (log-log) between measured
    sizes. It says more than is exposed where transfers overlap with computation; and less, as waiting for the slowest
    rank, packing and contention for memory are not in it. ``communication_time`` errs the other way.

    Source: tf_cnn_benchmarks, all_reduce_benchmark.py (a model's own reductions, timed alone).

    :param timings: of all-reduces with the same number of replicas and the same device.
    :raises NoNumberError: where no all-reduce was counted, or the sizes do not enclose the launch's.
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
        told = f"{min(known)} to {max(known)} B" if known else "none"
        raise NoNumberError(
            f"an all-reduce of {wanted:.0f} B over {launch.replicas} replicas on {launch.device} is not among the "
            f"measured sizes ({told}): measure_collectives({launch.strategy!r}, sizes=…)"
        )
    import numpy as np

    sizes = sorted(known)
    times = np.log([known[size] for size in sizes])
    return count * float(np.exp(np.interp(np.log(wanted), np.log(sizes), times)))
