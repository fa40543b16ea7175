"""Metrics of one launch: step time, throughput, memory, energy, and what the measurement itself cost."""

from __future__ import annotations

from pytest_ddl.bench.metrics.absent import NoNumberError
from pytest_ddl.bench.records import EnergyReading, Launch

MEBIBYTE = 2**20


def step_time(launch: Launch) -> float:
    """Seconds per steady step: the median over blocks of (seconds of the slowest rank / steps in the block).

    A synchronous step ends with its slowest rank. Devices are synchronised at both ends of a block; steps before
    the warm-up's end, traced ones among them, are not in it. The median, as one interrupted block is not the program.
    Source: Kalibera and Jones 2013 (steady state and unit of repetition); arXiv 2007.10899.

    :raises NoNumberError: where the clock saw no time pass.
    """
    if not launch.median_step_seconds > 0:
        raise NoNumberError(
            f"blocks of {launch.steps_per_block} step(s) took {launch.median_step_seconds:g} s: give a larger "
            "steps_per_block="
        )
    return launch.median_step_seconds


def throughput(launch: Launch) -> float:
    """Examples per second: ``global batch / step time``, over all replicas.

    Source: images/sec of tf_cnn_benchmarks, from the median instead of the mean.

    :raises NoNumberError: where the global batch size is not known, or other batches were counted than declared.
    """
    return _batch(launch) / step_time(launch)


def seconds_per_1k_examples(launch: Launch) -> float:
    """Seconds that 1000 examples take: ``1000 * step time / global batch``. The dual of :func:`throughput`.

    :raises NoNumberError: as throughput.
    """
    return 1000.0 * step_time(launch) / _batch(launch)


def time_to_first_step(launch: Launch) -> float:
    """Seconds from the call of ``train(run)`` to the end of its first step, on the slowest rank.

    ``build + first step``: models, data, placement, tracing, compiling. Starting processes and importing
    TensorFlow is not in it. Source: the start-up time that PerfZero and MLPerf leave out of throughput.
    """
    return max(rank.build_seconds + rank.first_step_seconds for rank in launch.ranks)


def retraces(launch: Launch) -> float:
    """Traces within the steady steps; of a correct program 0.

    A trace costs many steps' time. Source: ``tf.function`` guide, "Controlling retracing".

    :raises NoNumberError: for a program whose steps ran eagerly.
    """
    if launch.counters.eager:
        raise NoNumberError("steps ran eagerly: there is no graph to trace")
    return float(launch.counters.retraces)


def peak_memory(launch: Launch) -> float:
    """MiB: the largest resident set over ranks, of the whole process. Source: ``VmHWM`` of proc(5).

    :raises NoNumberError: where the system does not tell.
    """
    peak = max(rank.peak_memory_bytes for rank in launch.ranks)
    if not peak:
        raise NoNumberError("this system has no /proc/self/status to read VmHWM from")
    return peak / MEBIBYTE


def peak_device_memory(launch: Launch) -> float:
    """MiB: the most that TensorFlow had allocated on one GPU, over all GPUs.

    Source: ``tf.config.experimental.get_memory_info(device)["peak"]``.

    :raises NoNumberError: without GPUs.
    """
    peaks = [peak for rank in launch.ranks for peak in rank.device_peak_bytes.values()]
    if not peaks:
        raise NoNumberError(f"no GPU was used (device: {launch.device})")
    return max(peaks) / MEBIBYTE


def energy_per_step(launch: Launch) -> float:
    """Joules per steady step: ``energy of the window / steps in it``, of all devices that the source covers.

    The window is that of the steady steps, waits between blocks included. A counter covers the whole device or
    package, other programs on it included. Source: MLPerf power rules (energy of the whole node over the run).

    :raises NoNumberError: with the meter's reason, where no energy was read.
    """
    return _joules(launch) / _steps(launch)


def joules_per_example(launch: Launch) -> float:
    """Joules per example: ``energy per step / global batch``. The dual of :func:`examples_per_joule`.

    :raises NoNumberError: where no energy was read, and as throughput.
    """
    return energy_per_step(launch) / _batch(launch)


def examples_per_joule(launch: Launch) -> float:
    """Examples per joule: ``global batch / energy per step``. Source: MLPerf power rules, per example.

    :raises NoNumberError: where no energy was read, and as throughput.
    """
    return 1.0 / joules_per_example(launch)


def measured_share(launch: Launch) -> float:
    """Share of the launch's wall time that was spent in measured steps: ``sum of blocks / wall time``.

    The profile of the benchmark itself; the rest is processes, imports, tracing, warm-up.
    Source: NVIDIA/warp issue 1359, which reports 20 % for its own suite.
    """
    return launch.measured_seconds / launch.wall_seconds


def cost_of_measuring(launch: Launch) -> float:
    """Wall seconds per second of measured steps. The dual of :func:`measured_share`; 1 is ideal.

    :raises NoNumberError: where the clock saw no time pass.
    """
    step_time(launch)
    return launch.wall_seconds / launch.measured_seconds


def _batch(launch: Launch) -> int:
    if launch.global_batch_size is None or launch.batch_problem:
        raise NoNumberError(launch.batch_problem)
    return launch.global_batch_size


def _steps(launch: Launch) -> int:
    # A loop that takes several steps at once may take more than were ordered.
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
