"""Scaling formulas over two measured times: efficiency, overhead, speed-up, serial fraction.

The efficiency is the share of N replicas' worth of work that is done. Its rule depends on the batch rule:

* Global batch fixed (strong scaling): a step does the same work on 1 and on N replicas. So ``E = t_1 / (N * t_N)`` over
  step times, and the overhead is ``N * t_N / t_1``.
* Batch per replica fixed (weak scaling): a step on N replicas does N times the work. So ``E = t_1 / t_N`` over step
  times, and the overhead is ``t_N / t_1``.
* Whole runs over the same data set (same number of epochs), with any batch: the work is the same. So the strong rule
  applies to run times. With the batch per replica fixed, N replicas take 1/N of the steps, so this equals the weak rule
  over step times. The global batch is larger then, and training may need more epochs; no efficiency shows that.

The published experiment (one against two replicas, 30 epochs, batch per replica fixed) took 109.5 s and 78.6 s:
speed-up 1.393, efficiency 69.66 %, overhead 1.436, serial fraction 0.436.
"""

from __future__ import annotations


def speed_up(seconds_1: float, seconds_n: float) -> float:
    """Return ``S = T_1 / T_N`` over times of the same work; dimensionless.

    The maximum is N, except for effects of caches. Source: Amdahl 1967. If the work grows by N and ``T`` is per unit of
    work, this is Gustafson's scaled speed-up (Gustafson 1988, CACM 31(5)).

    :raises ValueError: if a time is not positive.
    """
    _positive(seconds_1=seconds_1, seconds_n=seconds_n)
    return seconds_1 / seconds_n


def strong_scaling_efficiency(seconds_1: float, seconds_n: float, replicas: int) -> float:
    """Return ``E = T_1 / (N * T_N)`` over times of the same work; 1 is ideal.

    Source: Kumar, Grama, Gupta, Karypis 1994, Introduction to Parallel Computing, section 4.1.

    :raises ValueError: if a time or the number of replicas is not positive.
    """
    _positive(replicas=replicas)
    return speed_up(seconds_1, seconds_n) / replicas


def karp_flatt_serial_fraction(speed_up: float, replicas: int) -> float:
    """Return ``e = (1/S - 1/N) / (1 - 1/N)``: the share of the work that behaves as if it were serial; 0 is ideal.

    It stays constant if a serial part is the only cost, and grows with N if the overhead (communication) grows too. It
    is negative for a speed-up beyond N. If the batch per replica is fixed, compute S from the times that 1 and N
    replicas need for the same data.

    Source: Karp and Flatt 1990, Measuring Parallel Processor Performance, CACM 33(5).

    :raises ValueError: for fewer than 2 replicas, for which it is not defined, or a speed-up that is not positive.
    """
    if replicas < 2:
        raise ValueError(f"replicas={replicas}: a serial fraction needs a speed-up on at least 2 replicas")
    _positive(speed_up=speed_up)
    return (1.0 / speed_up - 1.0 / replicas) / (1.0 - 1.0 / replicas)


def _positive(**values: float) -> None:
    for name, value in values.items():
        if not value > 0:
            raise ValueError(f"{name}={value!r} must be positive")
