"""Time all-reduces and all-gathers of several message sizes on the cluster of a variant, without training."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from pytest_ddl.bench.launching.exchange import ITEM, exchanged, in_a_row
from pytest_ddl.bench.launching.machine import machine_facts
from pytest_ddl.bench.launching.pinning import cores_per_replica, first_replica, pinned, pinned_environ
from pytest_ddl.bench.metrics.communication import CollectiveTiming, replayed_communication_time
from pytest_ddl.cluster.worker import own_rank

__all__ = ["CollectiveTiming", "measure_collectives", "replayed_communication_time"]

KINDS = ("all_reduce", "all_gather")
"""Collectives that a program can request directly through ``tf.distribute``."""
SIZES = tuple(4**power for power in range(2, 13))
"""Default message sizes: powers of 4 from 16 B to 16 MiB."""
BYTES_PER_CALL = 2**24
FEWEST_PER_CALL, MOST_PER_CALL = 5, 100
_PROOF_ELEMENTS = 3
_PROOF_PERIOD = 1021
"""Values of the first replica repeat after this number of elements when results are checked; replica k has k times as
much. They are small whole numbers, whose sums float32 holds exactly in any order. The period is a prime, so that parts
of a message that are mixed up are seen for any usual size of a part."""


def measure_collectives(
    variant: str = "mirrored",
    sizes: Sequence[int] = SIZES,
    kinds: Sequence[str] = ("all_reduce",),
    *,
    samples: int = 5,
    device: str = "auto",
    pin: bool = False,
    timeout: float = 300.0,
    arguments: Callable[[], Mapping[str, Any]] | None = None,
) -> list[CollectiveTiming]:
    """Time collectives in fresh processes of a variant that do nothing else.

    Each call runs a graph that loops over many collectives, so that the time of Python is not measured. Each collective
    needs the result of the one before. The loop and its dispatch (tens of µs) are measured, and they matter for small
    sizes. The first two calls of each size are warm-up.

    Before timing, all values of the results are checked, for each kind and size: a collective that does not take place
    looks fast.
    Source of the formulas: nccl-tests.

    :param variant: variant of a synchronous strategy with two replicas or more.
    :param sizes: bytes, see :attr:`CollectiveTiming.size`; rounded up to whole float32 values on every replica.
    :param kinds: any of ``all_reduce``, ``all_gather``.
    :param samples: number of timed calls for each size.
    :param device: ``cpu``, ``gpu``, or ``auto``.
    :param pin: give every replica its own cores.
    :param timeout: seconds for the whole measurement.
    :param arguments: function that returns arguments of the strategy's constructor, such as ``cross_device_ops``. It is
        called in each rank, as ``arguments=`` of the ``ddl`` marker.
    :raises BenchError: if the variant cannot run here, or a rank fails.
    :raises ValueError: if an argument is invalid.
    """
    from pytest_ddl.bench.launching.ranks import fresh_ranks
    from pytest_ddl.harness import process_harness
    from pytest_ddl.items.selection import DdlMark

    _validate(sizes, kinds, samples)
    harness = process_harness()
    spec = harness.registry.parse_variant(variant)
    replicas = harness.registry[spec.name].num_replicas(spec)
    if replicas < 2 or spec.name == "tpu":
        raise ValueError(f"variant={variant!r} has no collectives to time here: give one with 2 replicas or more")
    chosen = {} if arguments is None else {spec.name: arguments}
    cores = cores_per_replica(harness, spec) if pin else 0
    deadline = time.monotonic() + timeout
    environ = pinned_environ(harness.registry[spec.name], spec, cores)
    with fresh_ranks(harness, spec, device, environ=environ, arguments=chosen) as ranks:
        by_rank: list[dict[tuple[str, int], list[float]]] = ranks.call(
            time_collectives, tuple(sizes), tuple(kinds), samples, cores,
            deadline=deadline, doing="while collectives were timed",
        )  # fmt: skip
    used = harness.device_for(spec, DdlMark(device=device))
    facts = machine_facts()
    return [
        CollectiveTiming(
            str(spec), kind, size, replicas,
            tuple(max(calls) for calls in zip(*(rank[kind, size] for rank in by_rank), strict=True)),
            _per_call(size), used, cores > 0, facts,
        )
        for kind, size in by_rank[0]
    ]  # fmt: skip


def time_collectives(
    sizes: Sequence[int], kinds: Sequence[str], samples: int, cores: int
) -> dict[tuple[str, int], list[float]]:
    """Time collectives on this rank and return (kind, size in bytes) -> seconds of one collective, call by call.

    :raises AssertionError: if a collective gives a wrong result.
    """
    context = own_rank()
    local = max(1, context.num_replicas // context.num_ranks)
    with pinned(first_replica(context.rank, local), local, cores):
        times = {}
        for kind in kinds:
            for wanted in sizes:
                elements = _elements(kind, wanted, context.num_replicas)
                _prove(context.strategy, kind, context.num_replicas, elements)
                size = elements * ITEM * (context.num_replicas if kind == "all_gather" else 1)
                times[kind, size] = _time(context.strategy, kind, elements, _per_call(size), samples)
        return times


def _time(strategy: Any, kind: str, elements: int, per_call: int, samples: int) -> list[float]:
    timed = in_a_row(strategy, kind, elements)
    return [timed(per_call) / per_call for _call in range(samples + 2)][2:]


def _prove(strategy: Any, kind: str, replicas: int, elements: int = _PROOF_ELEMENTS) -> None:
    """Run the collective on different values for each replica and element, and check all values of all results.

    :raises AssertionError: if a value is wrong or missing.
    """
    import tensorflow as tf

    first = np.arange(elements, dtype=np.float32) % _PROOF_PERIOD + 1

    def own(value: Any) -> Any:
        number = tf.distribute.get_replica_context().replica_id_in_sync_group + 1
        return exchanged(kind, value * tf.cast(number, tf.float32))

    given = [first * number for number in range(1, replicas + 1)]
    right = np.sum(given, axis=0) if kind == "all_reduce" else np.concatenate(given)
    once = tf.function(lambda value: strategy.run(own, args=(value,)))
    for result in strategy.experimental_local_results(once(tf.constant(first))):
        got = result.numpy()
        both = min(len(got), len(right))
        wrong = np.flatnonzero(got[:both] != right[:both])
        if len(wrong) or len(got) != len(right):
            index = int(wrong[0]) if len(wrong) else both
            values = [f"{values[index]:.1f}" if index < len(values) else "None" for values in (got, right)]
            what, place = ("not everything", f" at index {index}") if index else ("nothing", "")
            raise AssertionError(
                f"{kind} of {elements} values over {replicas} replicas gave {values[0]}, not {values[1]}{place}: "
                f"{what} was exchanged"
            )


def _elements(kind: str, size: int, replicas: int) -> int:
    """Return the number of float32 values of one replica for an operation of ``size`` bytes."""
    return max(1, -(-size // (ITEM * (replicas if kind == "all_gather" else 1))))


def _per_call(size: int) -> int:
    return min(MOST_PER_CALL, max(FEWEST_PER_CALL, BYTES_PER_CALL // size))


def _validate(sizes: Sequence[int], kinds: Sequence[str], samples: int) -> None:
    wrong = [kind for kind in kinds if kind not in KINDS]
    if wrong or not kinds:
        raise ValueError(f"kinds={list(kinds)!r} must be one or more of {', '.join(KINDS)}")
    if not sizes or any(not isinstance(size, int) or size < 1 for size in sizes):
        raise ValueError(f"sizes={list(sizes)!r} must be whole numbers of bytes, at least 1")
    if samples < 1:
        raise ValueError(f"samples={samples!r} must be at least 1")
