"""Metrics of one launch: step time, throughput, memory, energy, and the cost of the measurement itself."""

from __future__ import annotations

from pytest_ddl.bench.metrics.absent import NoNumberError
from pytest_ddl.bench.records import EnergyReading, Launch

MEBIBYTE = 2**20


def step_time(launch: Launch) -> float:
    """Return the seconds per steady step.

    The formula is the median over blocks of (seconds of the slowest rank / steps in the block). A synchronous step ends
    with its slowest rank. Devices are synchronized at both ends of a block. Steps of the warm-up, including traced
    ones, are left out. The median ignores a single interrupted block. Source: Kalibera and Jones 2013 (steady state and
    unit of repetition); arXiv 2007.10899.

    :raises NoNumberError: if the clock measured no time.
    """
    if not launch.median_step_seconds > 0:
        raise NoNumberError(
            f"blocks of {launch.steps_per_block} step(s) took {launch.median_step_seconds:g} s: give a larger "
            "steps_per_block="
        )
    return launch.median_step_seconds


def throughput(launch: Launch) -> float:
    """Return the examples per second over all replicas: ``global batch / step time``.

    Source: images/sec of tf_cnn_benchmarks, from the median instead of the mean.

    :raises NoNumberError: if the global batch size is not known, or the counted batch differs from the declared one.
    """
    return _batch(launch) / step_time(launch)


def seconds_per_1k_examples(launch: Launch) -> float:
    """Return the seconds that 1000 examples take: ``1000 * step time / global batch``. The dual of :func:`throughput`.

    :raises NoNumberError: as throughput.
    """
    return 1000.0 * step_time(launch) / _batch(launch)


def time_to_first_step(launch: Launch) -> float:
    """Return the seconds from the call of ``train(run)`` to the end of its first step, on the slowest rank.

    The formula is ``build + first step``: models, data, placement, tracing, compiling. It excludes starting processes
    and importing TensorFlow. Source: the start-up time that PerfZero and MLPerf leave out of throughput.
    """
    return max(rank.build_seconds + rank.first_step_seconds for rank in launch.ranks)


def retraces(launch: Launch) -> float:
    """Return the number of traces within the steady steps; 0 for a correct program.

    A trace takes as long as many steps. Source: ``tf.function`` guide, "Controlling retracing".

    :raises NoNumberError: if the steps ran eagerly.
    """
    if launch.counters.eager:
        raise NoNumberError("steps ran eagerly: there is no graph to trace")
    return float(launch.counters.retraces)


def peak_memory(launch: Launch) -> float:
    """Return the largest resident set of a rank's whole process in MiB. Source: ``VmHWM`` of proc(5).

    :raises NoNumberError: if the system does not report it.
    """
    peak = max(rank.peak_memory_bytes for rank in launch.ranks)
    if not peak:
        raise NoNumberError("this system has no /proc/self/status to read VmHWM from")
    return peak / MEBIBYTE


def peak_device_memory(launch: Launch) -> float:
    """Return the peak memory in MiB that TensorFlow allocated on one GPU: the maximum over all GPUs.

    Source: ``tf.config.experimental.get_memory_info(device)["peak"]``.

    :raises NoNumberError: without GPUs.
    """
    peaks = [peak for rank in launch.ranks for peak in rank.device_peak_bytes.values()]
    if not peaks:
        raise NoNumberError(f"no GPU was used (device: {launch.device})")
    return max(peaks) / MEBIBYTE


def energy_per_step(launch: Launch) -> float:
    """Return the joules per steady step, of all devices that the source covers: ``energy of the window / steps in it``.

    The window contains the steady steps, including waits between blocks. A counter covers the whole device or package,
    including other programs on it. Source: MLPerf power rules (energy of the whole node over the run).

    :raises NoNumberError: if no energy was read; it gives the meter's reason.
    """
    return _joules(launch) / _steps(launch)


def joules_per_example(launch: Launch) -> float:
    """Return the joules per example: ``energy per step / global batch``. The dual of :func:`examples_per_joule`.

    :raises NoNumberError: if no energy was read, and as throughput.
    """
    return energy_per_step(launch) / _batch(launch)


def examples_per_joule(launch: Launch) -> float:
    """Return the examples per joule: ``global batch / energy per step``. Source: MLPerf power rules, per example.

    :raises NoNumberError: if no energy was read, and as throughput.
    """
    return 1.0 / joules_per_example(launch)


def measured_share(launch: Launch) -> float:
    """Return the share of the launch's wall time spent in measured steps: ``sum of blocks / wall time``.

    The rest is the cost of the benchmark itself: processes, imports, tracing, warm-up. Source: NVIDIA/warp issue 1359,
    which reports 20 % for its own suite.
    """
    return launch.measured_seconds / launch.wall_seconds


def cost_of_measuring(launch: Launch) -> float:
    """Return the wall seconds per second of measured steps; 1 is ideal. The dual of :func:`measured_share`.

    :raises NoNumberError: if the clock measured no time.
    """
    step_time(launch)
    return launch.wall_seconds / launch.measured_seconds


def _batch(launch: Launch) -> int:
    if launch.global_batch_size is None or launch.batch_problem:
        raise NoNumberError(launch.batch_problem)
    return launch.global_batch_size


def _steps(launch: Launch) -> int:
    # A loop that takes several steps per call may take more than were ordered.
    return launch.counters.steady_steps or launch.steps_per_block * len(launch.ranks[0].blocks)


def _joules(launch: Launch) -> float:
    reading = next((rank.energy for rank in launch.ranks if rank.energy.joules is not None), None)
    if reading is not None and reading.joules is not None:
        if reading.joules > 0:
            return reading.joules
        raise NoNumberError(f"{reading.source} did not advance in {reading.seconds:.2f} s: measure longer, seconds=")
    first: EnergyReading = launch.ranks[0].energy
    asked = " (energy=True reads it)" if first.reason == "not asked for" else ""
    raise NoNumberError(f"no energy was read: {first.reason or 'no reason was told'}{asked}")
