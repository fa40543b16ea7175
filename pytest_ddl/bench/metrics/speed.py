"""Metrics of the speed of one launch: step time and throughput."""

from __future__ import annotations

from pytest_ddl.bench.launching.records import Launch
from pytest_ddl.bench.metrics.registry import Column, NoNumberError, digits, metric


@metric(
    "seconds",
    "lower",
    tracked="always",
    by_blocks=True,
    column=Column("step ms", 13, lambda value: digits(1e3 * value), interval=True),
    family="step",
)
def step_time(launch: Launch) -> float:
    """Return the time of a steady step, synchronized.

    A synchronous step ends with its slowest rank. Devices are synchronized at both ends of a block. Steps of the
    warm-up, including traced ones, are left out. The median ignores a single interrupted block.

    :formula: median over blocks of max over ranks of block / steps
    :source: Kalibera & Jones 2013, arXiv 2007.10899
    :raises NoNumberError: if the clock measured no time.
    """
    if not launch.median_step_seconds > 0:
        raise NoNumberError(
            f"blocks of {launch.steps_per_block} step(s) took {launch.median_step_seconds:g} s: give a larger "
            "steps_per_block="
        )
    return launch.median_step_seconds


@metric(
    "examples/s",
    "higher",
    dual="seconds_per_1k_examples",
    tracked="always",
    by_blocks=True,
    column=Column("examples/s", 10, digits),
    family="throughput",
)
def throughput(launch: Launch) -> float:
    """Return the examples per second over all replicas.

    The source uses the mean step, this metric the median.

    :formula: B / t
    :source: tf_cnn_benchmarks (images/sec)
    :raises NoNumberError: if the global batch size is not known, or the counted batch differs from the declared one.
    """
    return global_batch(launch) / step_time(launch)


@metric("seconds", "lower", family="step")
def seconds_per_1k_examples(launch: Launch) -> float:
    """Return the time that 1000 examples take.

    :formula: 1000 t / B
    :source: reciprocal of throughput
    :raises NoNumberError: as throughput.
    """
    return 1000.0 * step_time(launch) / global_batch(launch)


def global_batch(launch: Launch) -> int:
    """Return the examples per step over all replicas.

    :raises NoNumberError: if the number is not known, or the counted one differs from the declared one.
    """
    if launch.global_batch_size is None or launch.batch_problem:
        raise NoNumberError(launch.batch_problem)
    return launch.global_batch_size
