"""Metrics of a launch against one on a single replica: scaling, and the cost of distribution."""

from __future__ import annotations

from pytest_ddl.bench.metrics import of_launch, scaling
from pytest_ddl.bench.metrics.absent import NoNumberError
from pytest_ddl.bench.records import Launch

UNSCALED = {
    "parameter_server": "its workers do not take a step together: compare throughput",
    "model_parallel": "its replica spans several devices, so it has no number of replicas to scale with",
}
"""Strategy without a scaling efficiency -> the reason."""


def weak_scaling_efficiency(one: Launch, many: Launch) -> float:
    """Return :func:`~pytest_ddl.bench.metrics.scaling.weak_scaling_efficiency` of the step times.

    :raises NoNumberError: if the batch per replica was not kept, or the strategy has no replicas to scale with.
    """
    _check(one, many)
    if not _same_per_replica(one, many):
        raise NoNumberError(
            f"the batch per replica was not kept ({_batches(one, many)}): measure with batch_per_replica="
        )
    return scaling.weak_scaling_efficiency(of_launch.step_time(one), of_launch.step_time(many))


def weak_scaling_overhead(one: Launch, many: Launch) -> float:
    """Return ``t_N / t_1``: the reciprocal of :func:`weak_scaling_efficiency`, with the same errors."""
    return 1.0 / weak_scaling_efficiency(one, many)


def strong_scaling_efficiency(one: Launch, many: Launch) -> float:
    """Return :func:`~pytest_ddl.bench.metrics.scaling.strong_scaling_efficiency` of the step times.

    :raises NoNumberError: if the global batch was not kept, or the strategy has no replicas to scale with.
    """
    _check(one, many)
    if not _same_global(one, many):
        raise NoNumberError(f"the global batch was not kept ({_batches(one, many)}): measure with global_batch_size=")
    return scaling.strong_scaling_efficiency(of_launch.step_time(one), of_launch.step_time(many), many.replicas)


def strong_scaling_overhead(one: Launch, many: Launch) -> float:
    """Return ``N * t_N / t_1``: the reciprocal of :func:`strong_scaling_efficiency`, with the same errors."""
    return 1.0 / strong_scaling_efficiency(one, many)


def speed_up(one: Launch, many: Launch) -> float:
    """Return :func:`~pytest_ddl.bench.metrics.scaling.speed_up` of the times per example: the ratio of throughputs.

    :raises NoNumberError: if one of them has no throughput, or the strategy has no replicas to scale with.
    """
    _check(one, many)
    return scaling.speed_up(of_launch.seconds_per_1k_examples(one), of_launch.seconds_per_1k_examples(many))


def karp_flatt_serial_fraction(one: Launch, many: Launch) -> float:
    """Return :func:`~pytest_ddl.bench.metrics.scaling.karp_flatt_serial_fraction` of :func:`speed_up`.

    :raises NoNumberError: for one replica, or if there is no speed-up.
    """
    if many.replicas < 2:
        raise NoNumberError("one replica has no serial fraction: measure 2 or more")
    return scaling.karp_flatt_serial_fraction(speed_up(one, many), many.replicas)


def communication_time(one: Launch, many: Launch) -> float:
    """Return the extra seconds per step of N replicas over one, with the same batch per replica: ``t_N - t_1``.

    This is a proxy for exposed communication that uses only measured times and no assumptions. It includes more than
    transfers: waiting for the slowest replica, packing, dispatch, and contention of replicas for cores, caches or
    memory bandwidth (pin them to reduce it). It excludes transfers that overlap with computation, because they cost no
    time. Timing only the collectives (:mod:`pytest_ddl.bench.collectives`) errs in the opposite direction in both
    respects. The value is negative if noise is larger than the cost; the interval shows this.

    Source: the definition of parallel overhead, ``T_o = N T_N - T_1`` (Kumar et al. 1994), per replica.

    :raises NoNumberError: if the batch per replica was not kept, or there is only one replica.
    """
    _check(one, many)
    if many.replicas < 2:
        raise NoNumberError("one replica does not communicate")
    if not _same_per_replica(one, many):
        raise NoNumberError(
            f"t_N - t_1 needs equal batches per replica ({_batches(one, many)}): measure with batch_per_replica="
        )
    return of_launch.step_time(many) - of_launch.step_time(one)


def communication_share(one: Launch, many: Launch) -> float:
    """Return ``communication time / step time``, 0 for none, with the same errors and limits as the time."""
    return communication_time(one, many) / of_launch.step_time(many)


def _check(one: Launch, many: Launch) -> None:
    name = many.strategy.split("[")[0]
    if name in UNSCALED:
        raise NoNumberError(f"{name}: {UNSCALED[name]}")
    if one.replicas != 1:
        raise NoNumberError(f"the baseline {one.strategy} has {one.replicas} replicas: give one with a single replica")
    if one.device != many.device:
        raise NoNumberError(f"the baseline ran on {one.device}, {many.strategy} on {many.device}")


def _same_per_replica(one: Launch, many: Launch) -> bool:
    return all(first * many.replicas == second for first, second in _known_batches(one, many))


def _same_global(one: Launch, many: Launch) -> bool:
    return all(first == second for first, second in _known_batches(one, many))


def _known_batches(one: Launch, many: Launch) -> list[tuple[int, int]]:
    """Return the declared batches of both launches, and the counted batches if both have them.

    A scaling rule must hold for each of these pairs. Declared and counted batches may differ from each other, because
    step times can be compared for any batch.

    :raises NoNumberError: if one launch declared no batch.
    """
    pairs = [(one.global_batch_size, many.global_batch_size), (one.examples_per_step, many.examples_per_step)]
    if None in pairs[0]:
        raise NoNumberError(next(each.batch_problem for each in (one, many) if each.global_batch_size is None))
    return [(first, second) for first, second in pairs if first is not None and second is not None]


def _batches(one: Launch, many: Launch) -> str:
    told = f"global batch {one.global_batch_size} on 1 replica, {many.global_batch_size} on {many.replicas}"
    if one.examples_per_step is None or many.examples_per_step is None:
        return told
    return f"{told}, as declared; {one.examples_per_step} and {many.examples_per_step}, as counted"
