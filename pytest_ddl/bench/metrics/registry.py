"""Registry of all metrics: name, unit, better direction, dual for gates, and source."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from pytest_ddl.bench.metrics import of_launch, of_pair
from pytest_ddl.bench.metrics.absent import NoNumberError


@dataclass(frozen=True)
class Metric:
    """Metric with its properties. The docstring of its function has the full formula."""

    name: str
    unit: str
    """``seconds``, ``examples/s``, ``MiB`` ...; empty for a ratio."""
    higher_is_better: bool
    dual: str | None
    """Metric to gate on instead: lower is better, positive, on a ratio scale. ``None`` if the metric itself is one, or
    has no such dual."""
    summary: str
    formula: str
    source: str
    scope: str
    """Subject of the number: ``launch``; ``pair``, a launch against one on a single replica; ``sizes``, several numbers
    of replicas; ``cluster``; ``profile``; ``training``, runs to a target."""
    function: str
    """Location of the function, as ``module:name`` under ``pytest_ddl.bench``."""
    of: Callable[..., float] | None = field(default=None, repr=False)
    """Function for the scopes ``launch`` and ``pair``. It takes the launch, or the launch on one replica and the other
    one."""
    ratio_scale: bool = True
    """True if it is positive and a factor means the same everywhere; intervals are then computed from logarithms."""

    @property
    def gated(self) -> bool:
        """True if a gate can compare it: lower is better, on a ratio scale."""
        return not self.higher_is_better and self.ratio_scale

    @property
    def docstring(self) -> str:
        return inspect.getdoc(self.resolve()) or ""

    def resolve(self) -> Callable[..., Any]:
        """Return the function that computes the metric."""
        from importlib import import_module

        module, _, name = self.function.partition(":")
        found: Callable[..., Any] = getattr(import_module(f"pytest_ddl.bench.{module}"), name)
        return found


def _launch(
    name: str, unit: str, better: str, dual: str | None, formula: str, summary: str, source: str, **more: Any
) -> Metric:
    return Metric(
        name, unit, better == "higher", dual, summary, formula, source, "launch",
        f"metrics.of_launch:{name}", getattr(of_launch, name), **more,
    )  # fmt: skip


def _pair(
    name: str, unit: str, better: str, dual: str | None, formula: str, summary: str, source: str, **more: Any
) -> Metric:
    return Metric(
        name, unit, better == "higher", dual, summary, formula, source, "pair",
        f"metrics.of_pair:{name}", getattr(of_pair, name), **more,
    )  # fmt: skip


_ALL = (
    _launch(
        "step_time", "seconds", "lower", None, "median over blocks of max over ranks of block / steps",
        "time of a steady step, synchronised", "Kalibera & Jones 2013, arXiv 2007.10899",
    ),
    _launch(
        "throughput", "examples/s", "higher", "seconds_per_1k_examples", "B / t",
        "examples per second over all replicas", "tf_cnn_benchmarks (images/sec)",
    ),
    _launch(
        "seconds_per_1k_examples", "seconds", "lower", None, "1000 t / B",
        "time that 1000 examples take", "reciprocal of throughput",
    ),
    _pair(
        "weak_scaling_efficiency", "", "higher", "weak_scaling_overhead", "t_1 / t_N, batch per replica fixed",
        "share of N replicas' worth of work that is got", "Gustafson 1988, CACM 31(5)",
    ),
    _pair(
        "weak_scaling_overhead", "", "lower", None, "t_N / t_1, batch per replica fixed",
        "time of a step against one replica's; 1 is ideal", "reciprocal of weak scaling efficiency",
    ),
    _pair(
        "strong_scaling_efficiency", "", "higher", "strong_scaling_overhead",
        "t_1 / (N t_N), global batch fixed; or run times over the same data set",
        "share of N replicas' worth of work that is got", "Kumar et al. 1994, section 4.1",
    ),
    _pair(
        "strong_scaling_overhead", "", "lower", None, "N t_N / t_1, global batch fixed",
        "replica-seconds paid for one of work; 1 is ideal", "reciprocal of strong scaling efficiency",
    ),
    _pair(
        "speed_up", "", "higher", None, "(t_1 / B_1) / (t_N / B_N)",
        "throughput against one replica's; N is ideal", "Amdahl 1967; scaled: Gustafson 1988",
    ),
    _pair(
        "karp_flatt_serial_fraction", "", "lower", None, "(1/S - 1/N) / (1 - 1/N)",
        "share of the work that behaves as if serial; 0 is ideal", "Karp & Flatt 1990, CACM 33(5)", ratio_scale=False,
    ),
    _pair(
        "communication_time", "seconds", "lower", None, "t_N - t_1, batch per replica fixed",
        "time per step that distribution costs: a proxy for exposed communication", "Kumar et al. 1994 (overhead)",
        ratio_scale=False,
    ),
    _pair(
        "communication_share", "", "lower", None, "(t_N - t_1) / t_N, batch per replica fixed",
        "share of a step that distribution costs", "as communication time", ratio_scale=False,
    ),
    _launch(
        "time_to_first_step", "seconds", "lower", None, "max over ranks of build + first step",
        "from the call of train(run) to the end of its first step", "start-up, as left out by MLPerf and PerfZero",
    ),
    _launch(
        "retraces", "traces", "lower", None, "traces at the end - traces before the first steady step",
        "traces within the steady steps; 0 is right", "tf.function guide: controlling retracing", ratio_scale=False,
    ),
    _launch(
        "peak_memory", "MiB", "lower", None, "max over ranks of VmHWM", "largest resident set of a rank", "proc(5)",
    ),
    _launch(
        "peak_device_memory", "MiB", "lower", None, "max over GPUs of the allocator's peak",
        "most that TensorFlow allocated on one GPU", "tf.config.experimental.get_memory_info",
    ),
    _launch(
        "energy_per_step", "J", "lower", None, "joules of the window / steps in it",
        "energy per steady step of all devices that the counter covers", "MLPerf power rules; NVML, RAPL",
    ),
    _launch(
        "examples_per_joule", "examples/J", "higher", "joules_per_example", "B / energy per step",
        "examples per joule", "MLPerf power rules, per example",
    ),
    _launch(
        "joules_per_example", "J", "lower", None, "energy per step / B",
        "joules per example", "reciprocal of examples per joule",
    ),
    _launch(
        "measured_share", "", "higher", "cost_of_measuring", "sum of blocks / wall time",
        "share of the benchmark's wall time in measured steps", "NVIDIA/warp issue 1359",
    ),
    _launch(
        "cost_of_measuring", "", "lower", None, "wall time / sum of blocks",
        "wall seconds per second of measured steps; 1 is ideal", "reciprocal of measured share",
    ),
    Metric(
        "exposed_communication_time", "seconds", False, None,
        "time per step in which a GPU communicates and does not compute, where a profiler says",
        "|union(communication) - union(computation)| / steps, over kernels",
        "Holistic Trace Analysis; XPlane of tf.profiler",
        "profile", "profiles:exposed_communication", ratio_scale=False,
    ),
    Metric(
        "replayed_communication_time", "seconds", False, None,
        "time of the step's own all-reduces where nothing else runs",
        "count (all-reduces of a step) x time of one of their mean size", "tf_cnn_benchmarks, all_reduce_benchmark.py",
        "cluster", "collectives:replayed_communication_time",
    ),
    Metric(
        "collective_time", "seconds", False, None, "time of one collective of a size, in a loop within a graph",
        "median over calls of (call / collectives in it)", "nccl-tests",
        "cluster", "collectives:measure_collectives",
    ),
    Metric(
        "algorithm_bandwidth", "bytes/s", True, "collective_time", "what a program gets of a collective", "S / t",
        "nccl-tests, doc/PERFORMANCE.md", "cluster", "metrics.bandwidth:algorithm_bandwidth",
    ),
    Metric(
        "bus_bandwidth", "bytes/s", True, "collective_time", "what the links carry in a collective",
        "S / t x {all-reduce 2 (n-1)/n; reduce-scatter, all-gather (n-1)/n; broadcast 1}",
        "nccl-tests, doc/PERFORMANCE.md", "cluster", "metrics.bandwidth:bus_bandwidth",
    ),
    Metric(
        "usl_contention", "", False, None, "share of work that waits for what is shared; from 6 sizes on",
        "sigma of X(N) = lambda N / (1 + sigma (N-1) + kappa N (N-1))", "Gunther 2007, arXiv 0808.1431",
        "sizes", "metrics.usl:fit_usl", ratio_scale=False,
    ),
    Metric(
        "usl_coherency", "", False, None, "cost of each pair of replicas; above 0, throughput has a peak",
        "kappa of the same", "Gunther 2007, arXiv 0808.1431",
        "sizes", "metrics.usl:fit_usl", ratio_scale=False,
    ),
    Metric(
        "steps_to_target", "steps", False, None, "steps until the loss reaches a target, against the global batch size",
        "first step with smoothed loss <= target, best of the learning rates; regimes from S (1 + B_crit / B)",
        "Shallue et al. 2019, JMLR 20(112)", "training", "training_to_target:steps_to_target",
    ),
    Metric(
        "epochs_to_target", "epochs", False, None, "too fast, too slow or as the reference, by a t test each way",
        "olympic mean within mean +- t(0.95, n+m-2) s sqrt(1/n + 1/m)", "MLPerf: mlcommons/logging, rcp_checker",
        "training", "metrics.convergence:convergence_guard", ratio_scale=False,
    ),
)  # fmt: skip

METRICS: dict[str, Metric] = {metric.name: metric for metric in _ALL}
"""All metrics by name."""


def metric(name: str) -> Metric:
    """Return a metric by its name.

    :raises ValueError: if there is no such metric; it names those that exist.
    """
    if name not in METRICS:
        raise ValueError(f"no metric {name!r}; there are {', '.join(METRICS)}")
    return METRICS[name]


__all__ = ["METRICS", "Metric", "NoNumberError", "metric"]
