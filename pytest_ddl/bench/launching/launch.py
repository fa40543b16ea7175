"""Measure one launch: start processes for one variant of a strategy, and run blocks of steady steps in them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import fields
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_ddl.bench.launching.machine import machine_facts
from pytest_ddl.bench.launching.pacing import Lane, Pacer, PacingError
from pytest_ddl.bench.launching.pinning import pinned_environ
from pytest_ddl.bench.launching.ranks import GIVEN_UP, PARTING, BenchError, Ranks, fresh_ranks, scratch_folder
from pytest_ddl.bench.launching.records import BenchSpec, Counters, Launch
from pytest_ddl.bench.launching.remote import LaunchOrders, RankResult, measure_training
from pytest_ddl.cluster import strays
from pytest_ddl.cluster.rotation import ROTATION
from pytest_ddl.training.settings import RunSettings

if TYPE_CHECKING:
    from pytest_ddl.harness import Harness
    from pytest_ddl.strategies.spec import StrategySpec

_REASONS = ("notes", "uncounted")
TAG = "DDL_BENCH_LAUNCH"
"""Environment variable that marks every program that the ranks of a launch start, in any process group."""


def launch(
    harness: Harness,
    train: Callable[[Any], Any],
    spec: StrategySpec,
    bench: BenchSpec,
    *,
    cores_per_replica: int = 0,
    address: str | None = None,
    rotation: int = 0,
    canary: bool = False,
) -> Launch:
    """Measure a training function under one variant, in fresh processes.

    :param cores_per_replica: see :mod:`pytest_ddl.bench.launching.pinning`; 0 pins nothing.
    :param address: address of the caller's own pacer, which then decides when blocks run. By default, blocks run one
        after the other until there are enough.
    :param rotation: number of places by which the ranks move over their hosts. Number the launches, so that a slow host
        affects each rank in turn.
    :param canary: let the caller's pacer order small all-reduces too.
    :raises BenchError: if a rank fails, or the program ends before the measurement does.
    """
    from pytest_ddl.items.selection import DdlMark

    started = time.monotonic()
    deadline = started + bench.timeout
    mark = DdlMark(device=bench.device, isolation="fresh")
    with ExitStack() as stack:
        folder = stack.enter_context(scratch_folder(harness.shared_folder, "bench-"))
        environ = _environ(harness, spec, cores_per_replica, folder)
        # By then the ranks' process groups have ended, but not processes that ranks started in sessions of their own.
        stack.callback(strays.kill_tagged, str(folder), TAG)
        environ[ROTATION] = str(rotation)
        ranks = stack.enter_context(fresh_ranks(harness, spec, bench.device, environ=environ))
        batch = bench.batch_for(ranks.num_replicas)
        settings = RunSettings(
            batch, seed=bench.seed, tmp_path=str(folder), observe=False, repeat=True, overlap=bench.overlap
        )
        driver = None
        if address is None:
            driver = stack.enter_context(_Driver(folder, ranks.number, bench, deadline))
            address = driver.address
        harness.offer(address)
        orders = LaunchOrders(address, bench.warm_up, cores_per_replica, bench.energy, canary, bench.count_all)
        results = _measured(ranks, train, settings, orders, deadline)
        device = harness.device_for(spec, mark)
    if driver is not None and driver.failure is not None:
        raise BenchError(f"the ranks ended, but not the measurement: {driver.failure}")
    return Launch(
        strategy=str(spec),
        replicas=ranks.num_replicas,
        ranks=tuple(result.timing for result in results),
        counters=of_all_ranks([result.counters for result in results]),
        global_batch_size=batch,
        steps_per_block=bench.steps_per_block,
        wall_seconds=time.monotonic() - started,
        device=device,
        pinned=cores_per_replica > 0,
        machine={**machine_facts(), **_launcher(harness)},
        versions=results[0].versions,
    )


def _measured(
    ranks: Ranks, train: Callable[[Any], Any], settings: RunSettings, orders: LaunchOrders, deadline: float
) -> list[RankResult]:
    results: list[RankResult] = ranks.call(
        measure_training,
        train,
        settings,
        orders,
        deadline=deadline,
        doing="while it was measured",
        patience=lambda result: PARTING if result.finished else GIVEN_UP,
        refusal=_ended_early,
    )
    return results


def _environ(harness: Harness, spec: StrategySpec, cores_per_replica: int, folder: Path) -> dict[str, str]:
    """Return the environment variables of the ranks of a launch, which writes its files to a folder of its own.

    So a cache or a backup that a killed rank left behind does not affect the next launch.
    """
    scratch = folder / ".tmp"
    scratch.mkdir()
    threads = pinned_environ(harness.registry[spec.name], spec, cores_per_replica)
    return {**threads, TAG: str(folder), "TMPDIR": str(scratch)}


def _launcher(harness: Harness) -> dict[str, str]:
    """Return the launcher, if the ranks run on other hosts than this process."""
    name = harness.settings["launcher"]
    return {} if name == "local" else {"launcher": name}


class _Driver(threading.Thread):
    """Thread that orders blocks until there are enough, while the main thread waits for the ranks' answers.

    It is a context manager; leaving it closes every connection.
    """

    def __init__(self, folder: Path, ranks: int, bench: BenchSpec, deadline: float) -> None:
        super().__init__(name="ddl-pacer", daemon=True)
        self._pacer = Pacer(folder)
        self.address = self._pacer.address
        self._ranks, self._bench, self._deadline = ranks, bench, deadline
        self.failure: str | None = None

    def run(self) -> None:
        try:
            lane = self._pacer.accept(self._ranks, self._deadline)
            drive(lane, self._bench, self._deadline)
        except (PacingError, OSError, ValueError) as error:
            # OSError and ValueError mean that the launch has ended and closed the connection that this thread waited
            # for.
            self.failure = str(error)

    def __enter__(self) -> _Driver:
        self.start()
        return self

    def __exit__(self, *_exception: object) -> None:
        self._pacer.close()


def drive(lane: Lane, bench: BenchSpec, deadline: float) -> None:
    """Order blocks until their number and their seconds are reached, then let the ranks leave their loops."""
    try:
        seconds, blocks = 0.0, 0
        while blocks < bench.blocks or seconds < bench.seconds:
            taken = max(lane.run_block(bench.steps_per_block, deadline))
            if not lane.was_dropped:
                seconds, blocks = seconds + taken, blocks + 1
    finally:
        lane.stop()


def _ended_early(result: RankResult) -> str:
    ended = f"the training function ended on {result.timing.task} after {result.steps} step(s), before"
    if not result.steady:
        return (
            f"{ended} its warm-up did: nothing was measured. It must train on every rank with run.steps, run.batches "
            "or run.fit until these end (data is repeated for this). Its own steps= must leave room "
            "for the measurement; or lower warm_up="
        )
    if not result.finished:
        return (
            f"{ended} the measurement did; remove the steps= or epochs= of its own loop, do not hide errors "
            "with except:, or measure fewer blocks"
        )
    return ""


def of_all_ranks(counters: Sequence[Counters]) -> Counters:
    """Return the largest value of each counter over the ranks, with a note that names the counters that differ.

    For ``steady_steps``, it is the smallest value. For ``misplaced``, it is the longest tuple. ``copies`` is ``None``
    if no rank counted them.

    :param counters: counters of each rank, at least one.
    """
    values = {item.name: [getattr(one, item.name) for one in counters] for item in fields(Counters)}
    merged = {name: _one_of(name, found) for name, found in values.items()}
    differ = [name for name, found in values.items() if name not in _REASONS and any(one != found[0] for one in found)]
    if differ:
        shown = "; ".join(f"{name} {', '.join(str(one) for one in values[name])}" for name in differ)
        merged["notes"] = (*merged["notes"], f"ranks differ, and the largest value is compared: {shown}")
    return Counters(**merged)


def _one_of(name: str, found: list[Any]) -> Any:
    if name in _REASONS:
        return tuple(dict.fromkeys(line for lines in found for line in lines))
    if name == "steady_steps":
        return min(found)
    if name == "misplaced":
        return max(found, key=len)
    counted = [one for one in found if one is not None]
    if name == "of_steps":
        keys = dict.fromkeys(key for one in counted for key in one)
        return {key: tuple(map(max, zip_longest(*(one.get(key, ()) for one in counted), fillvalue=0))) for key in keys}
    if counted and isinstance(counted[0], Mapping):
        keys = dict.fromkeys(key for one in counted for key in one)
        return {key: max(one.get(key, 0) for one in counted) for key in keys}
    return max(counted, default=None)
