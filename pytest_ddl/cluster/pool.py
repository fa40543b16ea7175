"""Keep a pool of warm clusters for one pytest process. Leased clusters are clean, and dirty ones are replaced."""

from __future__ import annotations

import contextlib
import math
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from pytest_ddl.cluster.cluster import Cluster
from pytest_ddl.cluster.covering import of_ranks
from pytest_ddl.cluster.launcher import Launcher
from pytest_ddl.cluster.obstacles import LaunchError
from pytest_ddl.cluster.resources import ResourcesBusyError, Slots
from pytest_ddl.strategies.base import StrategyDefinition, topology_of
from pytest_ddl.strategies.machine import GPU_GROWTH, GPU_LOADING, GPU_MEMORY, GpuShare
from pytest_ddl.strategies.spec import StrategySpec

MAX_WARM_PROCESSES = 12
"""Maximum number of idle workers. At about 50 MB each they fit any machine that can import TensorFlow."""
MAX_REPLACEMENTS = 3
"""Maximum number of times that an ended launcher is replaced. If it ends every time, each test would lose seconds."""
MAX_USES = 200
"""Number of uses after which a cluster is replaced, because TensorFlow never frees the graphs of past tests."""


IDLE_LIMIT = 30.0
"""Seconds after which an idle cluster with servers ends, because anyone who can reach a server can run code as the
user. Starting a new cluster takes some tenths of a second, which is short compared with this time."""
_SETTLED = 1.0
"""Seconds after its last use in which a cluster is leased again without a question. An answer takes as long as the
whole phase of a small test."""
_IDLE_MARGIN = 5.0
"""Seconds before its end from which a cluster is not leased. Its ranks began to wait at slightly different times."""


@dataclass
class _Warm:
    cluster: Cluster
    gpus: dict[str, Slots]
    servers: bool = False
    """True if its processes run TensorFlow servers."""
    uses: int = 0
    idle_since: float = math.inf
    """Time of :func:`time.monotonic` from which its ranks wait no longer than :data:`IDLE_LIMIT` for a request."""

    @property
    def holds_gpus(self) -> bool:
        """True if it holds slots of GPUs."""
        return any(slots.numbers for slots in self.gpus.values())

    def close(self) -> None:
        self.cluster.close()
        _release(self.gpus)


class Pool:
    """Pool of clusters. It starts clusters on demand and keeps clean ones warm.

    For each variant and device there is at most one warm cluster with pytest sessions and one without.
    """

    def __init__(
        self,
        make_launcher: Callable[[], Launcher],
        make_environ: Callable[[], Mapping[str, str]],
        gpu_share: Callable[[], GpuShare],
    ) -> None:
        """Prepare an empty pool.

        :param gpu_share: returns the share of the GPUs that this pool may take. It is called before GPUs are acquired,
            and gives the ledger their number.
        """
        self._make_launcher = make_launcher
        self._launcher: Launcher | None = None
        self._replaced = 0
        self._make_environ = make_environ
        self._gpu_share = gpu_share
        self._warm: OrderedDict[tuple[str, str, bool], _Warm] = OrderedDict()

    @property
    def launcher(self) -> Launcher:
        """Launcher, started at first use. It is replaced if it has ended."""
        if self._launcher is not None and self._replaced < MAX_REPLACEMENTS:
            with contextlib.suppress(LaunchError):
                self._launcher.poll()
            if self._launcher.ended:
                self._replaced += 1
                self.close()
        if self._launcher is None:
            self._launcher = self._make_launcher()
        return self._launcher

    @property
    def started(self) -> Launcher | None:
        """Launcher if it was started, else ``None``."""
        return self._launcher

    @contextmanager
    def lease(
        self,
        spec: StrategySpec,
        definition: StrategyDefinition,
        *,
        device: str,
        timeout: float,
        fresh: bool = False,
        environ: Mapping[str, str] | None = None,
        make_arguments: bytes = b"",
        sessions: bool = False,
        exclusive: bool = False,
    ) -> Iterator[Cluster]:
        """Lease a clean cluster. A cluster that is dirty afterwards is ended, and the next lease starts a new one.

        :param fresh: start a new cluster for this lease only.
        :param environ: additional environment variables. Such a cluster is also started for this lease only.
        :param make_arguments: pickled function that returns arguments of the strategy's constructor. Such a cluster is
            also started for this lease only.
        :param sessions: lease a cluster in which pytest sessions run. Calls use other clusters, so that no collected
            module and no plugin of pytest can have changed anything there.
        :param exclusive: let no other cluster use its GPUs, for a measurement. It needs ``fresh``, too.
        :raises ClusterError: if the cluster cannot be started.
        """
        key = (str(spec), device, sessions)
        topology = definition.topology(spec)
        cpus = self.launcher.ledger.acquire("cpu", len(topology.ranks), time.monotonic() + timeout)
        warm: _Warm | None = None
        try:
            fresh = fresh or bool(environ or make_arguments)
            warm = None if fresh else self._take(key)
            if warm is None:
                self._make_room(len(topology.ranks) + len(topology.servers))
                warm = self._start(spec, definition, device, timeout, environ, make_arguments, exclusive)
            warm.uses += 1
            yield warm.cluster
        except BaseException:
            if warm is not None:
                warm.cluster.retired = warm.cluster.retired or "an exception in the controller"
            raise
        finally:
            cpus.release()
            if warm is not None:
                self._give_back(key, warm, keep=not fresh)

    def _start(
        self,
        spec: StrategySpec,
        definition: StrategyDefinition,
        device: str,
        timeout: float,
        environ: Mapping[str, str] | None,
        make_arguments: bytes,
        exclusive: bool,
    ) -> _Warm:
        gpus: dict[str, Slots] = {}
        environment = {**of_ranks(self._make_environ()), **(environ or {})}
        if device == "gpu":
            # By default, a process takes all memory of its GPUs. Ranks share a GPU if there are more of them than GPUs,
            # and a launch may share it with other clusters.
            environment.setdefault(GPU_GROWTH, "true")
            environment.setdefault(GPU_LOADING, "LAZY")
            topology = topology_of(definition, spec)
            launcher: Any = self.launcher
            several = hasattr(launcher, "gpu_slots")
            needs = {"gpu": topology.devices_per_process * len(topology.ranks)}
            needs = launcher.gpu_slots(topology) if several else needs
            self._make_room_on_gpus(len(topology.ranks), needs)
            gpus = self._acquire_gpus(needs, timeout, exclusive)
            numbers = {kind: slots.numbers for kind, slots in gpus.items()}
            visible = {} if several else {"CUDA_VISIBLE_DEVICES": ",".join(_device_ids(numbers["gpu"], environment))}
            environment.update(launcher.gpu_environ(topology, numbers) if several else visible)
            if not exclusive and not several:
                environment[GPU_MEMORY] = str(self._gpu_share().memory_mb)
        try:
            cluster = Cluster.start(
                spec,
                definition,
                self.launcher,
                device=device,
                environ=environment,
                timeout=timeout,
                make_arguments=make_arguments,
            )
        except BaseException:
            _release(gpus)
            raise
        return _Warm(cluster, gpus, servers=definition.topology(spec).ports > 0)

    def _make_room_on_gpus(self, processes: int, kinds: Iterable[str]) -> None:
        """End idle clusters on GPUs, the oldest first, while there are too many or another process waits for a GPU."""
        most = self._gpu_share().processes
        awaited = any(map(self.launcher.ledger.is_awaited, kinds))
        idle = [(key, warm) for key, warm in self._warm.items() if warm.holds_gpus]
        held = sum(len(warm.cluster.processes) for _key, warm in idle)
        for key, warm in idle:
            if not awaited and held + processes <= most:
                return
            held -= len(warm.cluster.processes)
            self._warm.pop(key).close()

    def _acquire_gpus(self, needs: Mapping[str, int], timeout: float, exclusive: bool) -> dict[str, Slots]:
        """Acquire GPUs. End idle clusters of this pool that hold GPUs before waiting for other processes.

        :param needs: number of slots by their kind. Launchers over several hosts have a kind for each host.
        """
        while any(warm.holds_gpus for warm in self._warm.values()):
            with contextlib.suppress(ResourcesBusyError):
                return self._acquire_each(needs, 0.0, exclusive)
            key = next(key for key, warm in self._warm.items() if warm.holds_gpus)
            self._warm.pop(key).close()
        return self._acquire_each(needs, time.monotonic() + timeout, exclusive)

    def _acquire_each(self, needs: Mapping[str, int], deadline: float, exclusive: bool) -> dict[str, Slots]:
        slots: dict[str, Slots] = {}
        try:
            # In the same order in all processes, so that none waits for another one that waits for it.
            for kind, count in needs.items():
                slots[kind] = self.launcher.ledger.acquire(kind, count, deadline, shared=not exclusive)
        except BaseException:
            _release(slots)
            raise
        return slots

    def _take(self, key: tuple[str, str, bool]) -> _Warm | None:
        self._end_idle()
        warm = self._warm.pop(key, None)
        if warm is None or warm.idle_since == math.inf:
            return warm
        # Before its first request, a test may need longer than the ranks wait: it imports TensorFlow, for example.
        if time.monotonic() < warm.idle_since + _SETTLED:
            warm.cluster.stay()
            return warm
        with contextlib.suppress(LaunchError):
            warm.cluster.settle()
        if warm.cluster.dirty or warm.cluster.retired:
            warm.close()
            return None
        return warm

    def _end_idle(self) -> None:
        """End clusters that were idle for too long, and clean up those whose processes have ended."""
        now = time.monotonic()
        for key, warm in list(self._warm.items()):
            if now > warm.idle_since + IDLE_LIMIT - _IDLE_MARGIN or not warm.cluster.alive:
                del self._warm[key]
                warm.close()

    def _give_back(self, key: tuple[str, str, bool], warm: _Warm, keep: bool) -> None:
        # A measurement in another process waits for a GPU that nothing else uses.
        awaited = any(map(self.launcher.ledger.is_awaited, warm.gpus)) if warm.holds_gpus else False
        clean = keep and not (warm.cluster.dirty or warm.cluster.retired)
        if clean:
            limit = IDLE_LIMIT if warm.servers else None
            with contextlib.suppress(LaunchError):
                warm.cluster.settle(limit)
            ends = limit is not None and not warm.cluster.next_item
            warm.idle_since = time.monotonic() if ends else math.inf
            clean = not (warm.cluster.dirty or warm.cluster.retired)
        if keep and clean and warm.uses < MAX_USES and not awaited and key not in self._warm:
            self._warm[key] = warm
        else:
            warm.close()

    def _make_room(self, processes: int) -> None:
        while (
            self._warm and processes + sum(len(w.cluster.processes) for w in self._warm.values()) > MAX_WARM_PROCESSES
        ):
            self._warm.popitem(last=False)[1].close()

    def tear_down_sessions(self) -> None:
        """Tear down the fixtures that finished items have left in warm clusters for a next item."""
        for warm in self._warm.values():
            warm.cluster.tear_down_session()

    def close(self) -> None:
        """End all clusters and the launcher."""
        while self._warm:
            self._warm.popitem()[1].close()
        if self._launcher is not None:
            self._launcher.close()
            self._launcher = None


def _release(slots: Mapping[str, Slots]) -> None:
    for held in slots.values():
        held.release()


def _device_ids(numbers: Sequence[int], environ: Mapping[str, str]) -> list[str]:
    """Return names of GPUs for ``CUDA_VISIBLE_DEVICES``. Slot numbers count the GPUs that this process may see."""
    visible = [name.strip() for name in environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name.strip()]
    return [visible[number] if number < len(visible) else str(number) for number in numbers]
