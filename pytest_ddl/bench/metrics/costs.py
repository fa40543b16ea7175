"""Metrics of the costs of one launch in addition to its steps: start-up, traces, memory, energy, the measurement."""

from __future__ import annotations

from pytest_ddl.bench.launching.records import NOT_ASKED, EnergyReading, Launch
from pytest_ddl.bench.metrics.registry import Column, NoNumberError, digits, metric
from pytest_ddl.bench.metrics.speed import global_batch, step_time

MEBIBYTE = 2**20


@metric("seconds", "lower", tracked="always", family="first_step")
def time_to_first_step(launch: Launch) -> float:
    """Return the time from the call of train(run) to the end of its first step.

    It covers models, data, placement, tracing and compiling. It excludes starting processes and importing TensorFlow.

    :formula: max over ranks of build + first step
    :source: start-up, as left out by MLPerf and PerfZero
    """
    return max(rank.build_seconds + rank.first_step_seconds for rank in launch.ranks)


@metric("traces", "lower", ratio_scale=False, family="counters")
def retraces(launch: Launch) -> float:
    """Return the traces within the steady steps; 0 is correct.

    One trace can take as long as dozens of steps.

    :formula: traces at the end - traces before the first steady step
    :source: tf.function guide: controlling retracing
    :raises NoNumberError: if the steps ran eagerly.
    """
    if launch.counters.eager:
        raise NoNumberError("steps ran eagerly: there is no graph to trace")
    return float(launch.counters.retraces)


@metric("MiB", "lower", tracked="always", column=Column("MiB", 6, "{:.0f}".format), family="memory")
def peak_memory(launch: Launch) -> float:
    """Return the largest resident set of a rank.

    :formula: max over ranks of VmHWM
    :source: proc(5)
    :raises NoNumberError: if the system does not report it.
    """
    peak = max(rank.peak_memory_bytes for rank in launch.ranks)
    if not peak:
        raise NoNumberError("this system has no /proc/self/status to read VmHWM from")
    return peak / MEBIBYTE


@metric("MiB", "lower", tracked="always", family="memory")
def peak_device_memory(launch: Launch) -> float:
    """Return the most memory that TensorFlow allocated on one GPU.

    :formula: max over GPUs of the allocator's peak
    :source: tf.config.experimental.get_memory_info
    :raises NoNumberError: without GPUs.
    """
    peaks = [peak for rank in launch.ranks for peak in rank.device_peak_bytes.values()]
    if not peaks:
        raise NoNumberError(f"no GPU was used (device: {launch.device})")
    return max(peaks) / MEBIBYTE


@metric("J", "lower", column=Column("J/step", 7, digits), family="energy")
def energy_per_step(launch: Launch) -> float:
    """Return the energy per steady step of all devices that the counter covers.

    The window contains the steady steps, including waits between blocks. A counter covers the whole device or package,
    including other programs on it.

    :formula: joules of the window / steps in it
    :source: MLPerf power rules; NVML, RAPL
    :raises NoNumberError: if no energy was read; it gives the meter's reason. Also if the ranks are on several hosts,
        because only the first rank reads the counters of its own host.
    """
    return _joules(launch) / _steps(launch)


@metric("examples/J", "higher", dual="joules_per_example", tracked="energy", family="energy")
def examples_per_joule(launch: Launch) -> float:
    """Return the examples per joule.

    :formula: B / energy per step
    :source: MLPerf power rules, per example
    :raises NoNumberError: if no energy was read, and as throughput.
    """
    return 1.0 / joules_per_example(launch)


@metric("J", "lower", tracked="energy", family="energy")
def joules_per_example(launch: Launch) -> float:
    """Return the joules per example.

    :formula: energy per step / B
    :source: reciprocal of examples per joule
    :raises NoNumberError: if no energy was read, and as throughput.
    """
    return energy_per_step(launch) / global_batch(launch)


@metric("", "higher", dual="cost_of_measuring")
def measured_share(launch: Launch) -> float:
    """Return the share of the benchmark's wall time in measured steps.

    The rest is the cost of the benchmark itself: processes, imports, tracing, warm-up. The source reports 20 % for its
    own suite.

    :formula: sum of blocks / wall time
    :source: NVIDIA/warp issue 1359
    """
    return launch.measured_seconds / launch.wall_seconds


@metric("", "lower")
def cost_of_measuring(launch: Launch) -> float:
    """Return the wall seconds per second of measured steps; 1 is ideal.

    :formula: wall time / sum of blocks
    :source: reciprocal of measured share
    :raises NoNumberError: if the clock measured no time.
    """
    step_time(launch)
    return launch.wall_seconds / launch.measured_seconds


def _steps(launch: Launch) -> int:
    # A loop that takes several steps per call may take more than were ordered.
    return launch.counters.steady_steps or launch.steps_per_block * len(launch.ranks[0].blocks)


def _joules(launch: Launch) -> float:
    reading = next((rank.energy for rank in launch.ranks if rank.energy.joules is not None), None)
    hosts = len(set(launch.hosts))
    if hosts > 1 and reading is not None:
        raise NoNumberError(f"{reading.source} is the energy of one of {hosts} hosts: measure it on one host")
    if reading is not None and reading.joules is not None:
        if reading.joules > 0:
            return reading.joules
        raise NoNumberError(f"{reading.source} did not advance in {reading.seconds:.2f} s: measure longer (seconds=)")
    first: EnergyReading = launch.ranks[0].energy
    asked = " (energy=True reads it)" if first == NOT_ASKED else ""
    raise NoNumberError(f"no energy was read: {first.reason or 'no reason was given'}{asked}")
