"""Measure a training function on a rank; the ranks import this module by name."""

from __future__ import annotations

import gc
import inspect
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pytest_ddl.bench.launching import counting
from pytest_ddl.bench.launching.energy import EnergyMeter
from pytest_ddl.bench.launching.exchange import ITEM, in_a_row
from pytest_ddl.bench.launching.machine import host_identity, own_devices
from pytest_ddl.bench.launching.pinning import first_replica, pinned
from pytest_ddl.bench.launching.records import NOT_ASKED, Counters, EnergyReading, RankTiming
from pytest_ddl.bench.launching.stopwatch import Stopwatch
from pytest_ddl.cluster.worker import own_rank
from pytest_ddl.training import environment
from pytest_ddl.training.run import Run
from pytest_ddl.training.settings import RunSettings

CANARY_BYTES = 2**18
"""Bytes of each all-reduce of the canary: more than a token bucket of emulated hosts lets through at once."""


@dataclass(frozen=True)
class LaunchOrders:
    """Settings with which a rank measures, as they are sent to it."""

    address: str
    warm_up: int
    cores_per_replica: int = 0
    energy: bool = False
    canary: bool = False
    """True to run small all-reduces in turn with the steps, if the pacer orders them."""
    count_all: bool = False


@dataclass(frozen=True)
class RankResult:
    """Result that a rank sends back."""

    timing: RankTiming
    counters: Counters
    versions: dict[str, str]
    steps: int
    """Number of steps that were run, including the warm-up."""
    steady: bool
    """True if the warm-up was completed; otherwise nothing was measured."""
    finished: bool = True
    """True if the measurement ended the steps, and not the program."""


def measure_training(train: Callable[[Any], Any], settings: RunSettings, orders: LaunchOrders) -> RankResult:
    """Run and measure a training function on this rank."""
    context = own_rank()
    settings = settings.of_rank(context.rank)
    local = max(1, context.num_replicas // context.num_ranks)
    # Energy counters cover the whole machine, so only one rank reads them.
    meter = EnergyMeter() if orders.energy and context.rank == 0 else None
    reading = EnergyReading(None, reason="rank 0 reads the energy of the whole machine") if orders.energy else NOT_ASKED

    def stopped() -> None:
        if meter is not None:
            meter.stop()
        keep_iterators()

    with ExitStack() as stack:
        stack.enter_context(pinned(first_replica(context.rank, local), local, orders.cores_per_replica))
        stack.enter_context(environment.prepared(settings, context.rank))
        canary = None
        if orders.canary and context.num_ranks > 1:
            # Traced before the program begins, so that no counter of it has this function.
            canary = in_a_row(context.strategy, "all_reduce", CANARY_BYTES // ITEM)
            canary(1)
        watch = Stopwatch(
            settings,
            context,
            orders.address,
            orders.warm_up,
            on_steady=meter.start if meter is not None else lambda: None,
            on_block=meter.end_part if meter is not None else lambda _counts: None,
            on_stopped=stopped,
            canary=canary,
            count_all=orders.count_all,
        )
        stack.callback(watch.close)
        with watch.executions.watched(context.strategy):
            train(Run(settings, context, watch))
        if meter is not None and watch.is_steady:
            reading = meter.stop()
        counters = counting.counters_of(watch, context)
    timing = RankTiming(
        rank=context.rank,
        task=context.task,
        blocks=tuple(watch.blocks),
        build_seconds=watch.build_seconds,
        first_step_seconds=watch.first_step_seconds,
        warm_up_seconds=watch.warm_up_seconds,
        peak_memory_bytes=peak_bytes(),
        device_peak_bytes=device_peak_bytes(),
        energy=reading,
        loss=watch.loss,
        program=source_of(train),
        host=host_identity(),
        remarks=watch.remarks,
        examples=watch.examples,
    )
    return RankResult(timing, counters, environment.versions(), watch.completed, watch.is_steady, watch.reached_limit)


def peak_bytes() -> int:
    """Return the largest resident set of this process in bytes: ``VmHWM`` of proc(5); 0 if there is no ``/proc``.

    It includes resident pages that are shared with the process from which this one was forked.
    """
    try:
        lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:")), 0)


def device_peak_bytes() -> dict[str, int]:
    """Return the most bytes that TensorFlow had allocated on each GPU (``tf.config.experimental.get_memory_info``)."""
    import tensorflow as tf

    return {name: int(tf.config.experimental.get_memory_info(name)["peak"]) for name in own_devices("GPU")}


_kept: list[Any] = []


def keep_iterators() -> None:
    """Keep all data iterators until this process is killed; the process belongs only to this launch.

    Releasing an iterator waits until the thread that tunes its pipeline wakes up. This thread sleeps twice as long each
    time, up to a minute (TF 2.21, ``~RootDataset::Iterator`` and ``Model::OptimizeLoop``). Without this function, the
    end of a measurement took as long as the measurement.
    """
    import tensorflow as tf

    objects = gc.get_objects()
    kinds = (tf.data.Iterator, tf.distribute.DistributedIterator)
    found = {kind for kind in {type(one) for one in objects} if issubclass(kind, kinds)}
    _kept.extend(one for one in objects if type(one) in found)


def source_of(function: Any) -> str:
    """Return the file that defines a function, also through ``functools.partial`` and decorators."""
    while hasattr(function, "func"):
        function = function.func
    try:
        return str(Path(inspect.getsourcefile(inspect.unwrap(function)) or "").resolve())
    except TypeError:
        return str(Path(inspect.getsourcefile(type(function)) or "").resolve())
