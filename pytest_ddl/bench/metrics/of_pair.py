"""Metrics of a launch against one on a single replica: scaling, and what distribution costs."""

from __future__ import annotations

from pytest_ddl.bench.metrics import scaling
from pytest_ddl.bench.metrics.absent import NoNumberError
from pytest_ddl.bench.records import Launch

UNSCALED = {
    "parameter_server": "its workers do not take a step together: compare throughput",
    "model_parallel": "its replica spans several devices, so it has no number of replicas to scale with",
}
"""Strategies without a scaling efficiency, and why."""


def weak_scaling_efficiency(one: Launch, many: Launch) -> float:
    """:func:`~pytest_ddl.bench.metrics.scaling.weak_scaling_efficiency` of step times.

    :raises NoNumberError: where the batch per replica was not kept, or the strategy has no replicas to scale with.
    """
    _check(one, many)
    if not _same_per_replica(one, many):
        raise NoNumberError(
            f"the batch per replica was not kept ({_batches(one, many)}): measure with batch_per_replica="
        )
    return scaling.weak_scaling_efficiency(one.median_step_seconds, many.median_step_seconds)


def weak_scaling_overhead(one: Launch, many: Launch) -> float:
    """``t_N / t_1``: the reciprocal of :func:`weak_scaling_efficiency`, with the same errors."""
    return 1.0 / weak_scaling_efficiency(one, many)


def strong_scaling_efficiency(one: Launch, many: Launch) -> float:
    """:func:`~pytest_ddl.bench.metrics.scaling.strong_scaling_efficiency` of step times.

    :raises NoNumberError: where the global batch was not kept, or the strategy has no replicas to scale with.
    """
    _check(one, many)
    if one.global_batch_size is None or one.global_batch_size != many.global_batch_size:
        raise NoNumberError(f"the global batch was not kept ({_batches(one, many)}): measure with global_batch_size=")
    return scaling.strong_scaling_efficiency(one.median_step_seconds, many.median_step_seconds, many.replicas)


def strong_scaling_overhead(one: Launch, many: Launch) -> float:
    """``N * t_N / t_1``: the reciprocal of :func:`strong_scaling_efficiency`, with the same errors."""
    return 1.0 / strong_scaling_efficiency(one, many)


def speed_up(one: Launch, many: Launch) -> float:
    """:func:`~pytest_ddl.bench.metrics.scaling.speed_up` over the times of one example: the ratio of throughputs.

    :raises NoNumberError: where a global batch size is not known, or the strategy has no replicas to scale with.
    """
    _check(one, many)
    if one.global_batch_size is None or many.global_batch_size is None:
        raise NoNumberError("the global batch size is not known: give batch_per_replica= or global_batch_size=")
    return scaling.speed_up(
        one.median_step_seconds / one.global_batch_size, many.median_step_seconds / many.global_batch_size
    )


def karp_flatt_serial_fraction(one: Launch, many: Launch) -> float:
    """:func:`~pytest_ddl.bench.metrics.scaling.karp_flatt_serial_fraction` of :func:`speed_up`.

    :raises NoNumberError: for one replica, and where there is no speed-up.
    """
    if many.replicas < 2:
        raise NoNumberError("one replica has no serial fraction: measure 2 or more")
    return scaling.karp_flatt_serial_fraction(speed_up(one, many), many.replicas)


def communication_time(one: Launch, many: Launch) -> float:
    """Seconds per step that N replicas take longer than one with the same batch per replica: ``t_N - t_1``.

    A proxy for exposed communication, from what was measured and nothing assumed. It holds more than transfers:
    waiting for the slowest replica, packing, dispatch, and what replicas take from each other where they share
    cores, caches or memory bandwidth (pin them). It holds less than all transfers: what overlaps with computation
    costs no time. Timing the collectives alone (:mod:`pytest_ddl.bench.collectives`) errs the other way on both
    counts. Negative where noise is larger than the cost: the interval says so.

    Source: the definition of parallel overhead, ``T_o = N T_N - T_1`` (Kumar et al. 1994), per replica.

    :raises NoNumberError: where the batch per replica was not kept, or there is one replica only.
    """
    _check(one, many)
    if many.replicas < 2:
        raise NoNumberError("one replica does not communicate")
    if not _same_per_replica(one, many):
        raise NoNumberError(
            f"t_N - t_1 needs equal batches per replica ({_batches(one, many)}): measure with batch_per_replica="
        )
    return many.median_step_seconds - one.median_step_seconds


def communication_share(one: Launch, many: Launch) -> float:
    """``communication time / step time``: 0 for none; with the same errors, and the same limits, as the time."""
    return communication_time(one, many) / many.median_step_seconds


def _check(one: Launch, many: Launch) -> None:
    name = many.strategy.split("[")[0]
    if name in UNSCALED:
        raise NoNumberError(f"{name}: {UNSCALED[name]}")
    if one.replicas != 1:
        raise NoNumberError(f"the baseline {one.strategy} has {one.replicas} replicas: give one with a single replica")
    if one.device != many.device:
        raise NoNumberError(f"the baseline ran on {one.device}, {many.strategy} on {many.device}")


def _same_per_replica(one: Launch, many: Launch) -> bool:
    first, second = one.global_batch_size, many.global_batch_size
    return first is not None and second is not None and first * many.replicas == second


def _batches(one: Launch, many: Launch) -> str:
    return f"global batch {one.global_batch_size} on 1 replica, {many.global_batch_size} on {many.replicas}"
