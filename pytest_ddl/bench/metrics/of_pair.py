"""Metrics of a launch against one on a single replica: scaling, and the cost of distribution.

The scaling efficiency is the share of N replicas' worth of work that is done. Its formula depends on the batch:

* Global batch fixed (strong scaling): a step does the same work on 1 and on N replicas.
* Batch per replica fixed (weak scaling): a step on N replicas does N times the work.
* Whole runs over the same data set with the same number of epochs: the work is the same for any batch, so the formula
  of strong scaling applies to run times.
"""

from __future__ import annotations

from pytest_ddl.bench.launching.records import Launch
from pytest_ddl.bench.metrics.registry import Column, NoNumberError, metric
from pytest_ddl.bench.metrics.speed import seconds_per_1k_examples, step_time

UNSCALED = {
    "parameter_server": "its workers do not step together: compare throughput",
    "model_parallel": "its replica spans several devices, so it has no number of replicas to scale with",
}
"""Strategy without a scaling efficiency -> the reason."""


def _efficiency(rule: str) -> Column:
    return Column("efficiency", 12, "{:.3f}".format, interval=True, scaling=rule)


def _overhead(rule: str) -> Column:
    return Column("overhead", 8, "{:.3f}".format, scaling=rule)


@metric(
    "",
    "higher",
    scope="pair",
    dual="weak_scaling_overhead",
    tracked="weak",
    column=_efficiency("weak"),
    family="efficiency",
)
def weak_scaling_efficiency(one: Launch, many: Launch) -> float:
    """Return the share of N replicas' worth of work that is done.

    It is the scaled speed-up ``N * t_1 / t_N`` of the source, divided by N.

    :formula: t_1 / t_N, batch per replica fixed
    :source: Gustafson 1988, CACM 31(5)
    :raises NoNumberError: if the batch per replica was not kept, or the strategy has no replicas to scale with.
    """
    _check(one, many)
    if not _same_per_replica(one, many):
        raise NoNumberError(
            f"the batch per replica was not kept ({_batches(one, many)}): measure with batch_per_replica="
        )
    return step_time(one) / step_time(many)


@metric("", "lower", scope="pair", tracked="weak", column=_overhead("weak"), family="overhead")
def weak_scaling_overhead(one: Launch, many: Launch) -> float:
    """Return the time of a step against one replica's; 1 is ideal.

    :formula: t_N / t_1, batch per replica fixed
    :source: reciprocal of weak scaling efficiency
    :raises NoNumberError: as weak scaling efficiency.
    """
    return 1.0 / weak_scaling_efficiency(one, many)


@metric(
    "",
    "higher",
    scope="pair",
    dual="strong_scaling_overhead",
    tracked="strong",
    column=_efficiency("strong"),
    family="efficiency",
)
def strong_scaling_efficiency(one: Launch, many: Launch) -> float:
    """Return the share of N replicas' worth of work that is done.

    :formula: t_1 / (N t_N), global batch fixed; or run times over the same data set
    :source: Kumar et al. 1994, section 4.1
    :raises NoNumberError: if the global batch was not kept, or the strategy has no replicas to scale with.
    """
    _check(one, many)
    if not _same_global(one, many):
        raise NoNumberError(f"the global batch was not kept ({_batches(one, many)}): measure with global_batch_size=")
    return step_time(one) / (many.replicas * step_time(many))


@metric("", "lower", scope="pair", tracked="strong", column=_overhead("strong"), family="overhead")
def strong_scaling_overhead(one: Launch, many: Launch) -> float:
    """Return the replica-seconds spent per second of useful work; 1 is ideal.

    A gate compares the overhead because it is positive, on a ratio scale, and worse when larger. A difference such as
    1 - E may be negative and is not on a ratio scale.

    :formula: N t_N / t_1, global batch fixed
    :source: reciprocal of strong scaling efficiency
    :raises NoNumberError: as strong scaling efficiency.
    """
    return 1.0 / strong_scaling_efficiency(one, many)


@metric("", "higher", scope="pair")
def speed_up(one: Launch, many: Launch) -> float:
    """Return the throughput against one replica's; N is ideal.

    :formula: (t_1 / B_1) / (t_N / B_N)
    :source: Amdahl 1967; scaled: Gustafson 1988
    :raises NoNumberError: if one of them has no throughput, or the strategy has no replicas to scale with.
    """
    _check(one, many)
    return seconds_per_1k_examples(one) / seconds_per_1k_examples(many)


@metric("", "lower", scope="pair", ratio_scale=False)
def karp_flatt_serial_fraction(one: Launch, many: Launch) -> float:
    """Return the share of the work that behaves as if it were serial; 0 is ideal.

    S is the speed-up. The number stays constant over N if a serial part is the only cost, and grows with N if
    communication grows too. It is negative for a speed-up beyond N.

    :formula: (1/S - 1/N) / (1 - 1/N)
    :source: Karp & Flatt 1990, CACM 33(5)
    :raises NoNumberError: for one replica, or if there is no speed-up.
    """
    if many.replicas < 2:
        raise NoNumberError("one replica has no serial fraction: measure 2 or more replicas")
    return serial_fraction(speed_up(one, many), many.replicas)


def serial_fraction(speed_up: float, replicas: int) -> float:
    """Return ``(1/S - 1/N) / (1 - 1/N)`` for a speed-up S on N replicas, at least 2."""
    return (1.0 / speed_up - 1.0 / replicas) / (1.0 - 1.0 / replicas)


@metric("seconds", "lower", scope="pair", ratio_scale=False, tracked="weak", family="communication")
def communication_time(one: Launch, many: Launch) -> float:
    """Return the time per step that distribution costs: a proxy for exposed communication.

    It uses only measured times and no assumptions. It includes more than transfers: waiting for the slowest replica,
    packing, dispatch, and contention of replicas for cores, caches or memory bandwidth (pin them to reduce it). It
    excludes transfers that overlap with computation, because they cost no time. Timing only the collectives
    (:mod:`pytest_ddl.bench.collectives`) errs in the opposite direction in both respects. The value is negative if
    noise is larger than the cost; the interval shows this.

    The source defines the overhead of all replicas, ``T_o = N T_N - T_1``; this is the part of one replica.

    :formula: t_N - t_1, batch per replica fixed
    :source: Kumar et al. 1994 (overhead)
    :raises NoNumberError: if the batch per replica was not kept, or there is only one replica.
    """
    _check(one, many)
    if many.replicas < 2:
        raise NoNumberError("one replica does not communicate")
    if not _same_per_replica(one, many):
        raise NoNumberError(
            f"t_N - t_1 needs equal batches per replica ({_batches(one, many)}): measure with batch_per_replica="
        )
    return step_time(many) - step_time(one)


@metric(
    "",
    "lower",
    scope="pair",
    ratio_scale=False,
    tracked="weak",
    column=Column("comm.", 5, "{:.0%}".format, of_baseline="-"),
    family="communication",
)
def communication_share(one: Launch, many: Launch) -> float:
    """Return the share of a step that distribution costs.

    It has the limits of the communication time.

    :formula: (t_N - t_1) / t_N, batch per replica fixed
    :source: as communication time
    :raises NoNumberError: as communication time.
    """
    return communication_time(one, many) / step_time(many)


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
    batches = f"global batch {one.global_batch_size} on 1 replica, {many.global_batch_size} on {many.replicas}"
    if one.examples_per_step is None or many.examples_per_step is None:
        return batches
    return f"{batches}, as declared; {one.examples_per_step} and {many.examples_per_step}, as counted"
