"""The pool of warm clusters of one pytest process: handed out clean, replaced when dirty."""

from __future__ import annotations

import contextlib
import math
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from pytest_ddl.cluster.cluster import Cluster
from pytest_ddl.cluster.launcher import Launcher, LaunchError
from pytest_ddl.cluster.resources import Ledger, ResourcesBusyError, Slots
from pytest_ddl.strategies.base import StrategyDefinition
from pytest_ddl.strategies.spec import StrategySpec

MAX_WARM_PROCESSES = 12
"""Idle workers kept; at about 50 MB each they fit any machine that can import TensorFlow."""
MAX_REPLACEMENTS = 3
"""How often a launcher that has ended is replaced: what ends it again and again would cost seconds for each test."""
MAX_USES = 200
"""Uses after which a cluster is replaced: graphs of past tests are never freed by TensorFlow."""


IDLE_LIMIT = 30.0
"""Seconds after which a warm cluster with servers ends: whoever reaches a server can run code as the user.

A new cluster takes some tenths of a second, which is little beside the pause."""
_IDLE_MARGIN = 5.0
"""A cluster that is about to end is not handed out: its ranks began to wait at slightly different times."""


@dataclass
class _Warm:
    cluster: Cluster
    gpus: Slots
    servers: bool = False
    """Whether its processes have servers of TensorFlow's."""
    uses: int = 0
    until: float = math.inf
    """When it ends by itself."""

    def close(self) -> None:
        self.cluster.close()
        self.gpus.release()


class Pool:
    """Starts clusters on demand and keeps clean ones warm, one for each variant and device."""

    def __init__(
        self,
        make_launcher: Callable[[], Launcher],
        ledger: Ledger,
        make_environ: Callable[[], Mapping[str, str]],
        *,
        keep_gpus: bool,
    ) -> None:
        self._make_launcher = make_launcher
        self._launcher: Launcher | None = None
        self._replaced = 0
        self.ledger = ledger
        self._make_environ = make_environ
        self._keep_gpus = keep_gpus
        self._warm: OrderedDict[tuple[str, str, bool], _Warm] = OrderedDict()

    @property
    def launcher(self) -> Launcher:
        """The launcher, started at first use, and anew if what it forks from has ended."""
        if self._launcher is not None and hasattr(self._launcher, "ended") and self._replaced < MAX_REPLACEMENTS:
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
        """The launcher, if it was started."""
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
        sessions: bool = False,
    ) -> Iterator[Cluster]:
        """Hand out a clean cluster; a cluster that comes back dirty is ended, its successor started on demand.

        :param fresh: start a cluster for this use alone.
        :param sessions: hand out one of the clusters in which pytest sessions run. Calls have others, in which
            no collected module and no plugin of pytest can have changed anything.
        :raises ClusterError: when the cluster cannot be started.
        """
        key = (str(spec), device, sessions)
        topology = definition.topology(spec)
        cpus = self.ledger.acquire("cpu", len(topology.ranks), time.monotonic() + timeout)
        warm: _Warm | None = None
        try:
            warm = None if fresh or environ else self._take(key)
            if warm is None:
                self._make_room(len(topology.ranks) + len(topology.servers))
                warm = self._start(spec, definition, device, timeout, environ)
            warm.uses += 1
            yield warm.cluster
        except BaseException:
            if warm is not None:
                warm.cluster.retired = warm.cluster.retired or "an exception in the controller"
            raise
        finally:
            cpus.release()
            if warm is not None:
                self._give_back(key, warm, keep=not fresh and not environ)

    def _start(
        self,
        spec: StrategySpec,
        definition: StrategyDefinition,
        device: str,
        timeout: float,
        environ: Mapping[str, str] | None,
    ) -> _Warm:
        gpus = Slots()
        environment = {**self._make_environ(), **(environ or {})}
        if device == "gpu":
            topology = definition.topology(spec)
            gpus = self._acquire_gpus(topology.devices_per_process * len(topology.ranks), timeout)
            environment["CUDA_VISIBLE_DEVICES"] = ",".join(_device_ids(gpus.numbers, environment))
        try:
            cluster = Cluster.start(
                spec, definition, self.launcher, device=device, environ=environment, timeout=timeout
            )
        except BaseException:
            gpus.release()
            raise
        return _Warm(cluster, gpus, servers=definition.topology(spec).ports > 0)

    def _acquire_gpus(self, count: int, timeout: float) -> Slots:
        """Take GPUs, ending idle clusters of this pool that hold them before waiting for other processes."""
        while any(warm.gpus.numbers for warm in self._warm.values()):
            with contextlib.suppress(ResourcesBusyError):
                return self.ledger.acquire("gpu", count, deadline=0.0)
            key = next(key for key, warm in self._warm.items() if warm.gpus.numbers)
            self._warm.pop(key).close()
        return self.ledger.acquire("gpu", count, time.monotonic() + timeout)

    def _take(self, key: tuple[str, str, bool]) -> _Warm | None:
        self._end_idle()
        return self._warm.pop(key, None)

    def _end_idle(self) -> None:
        """End clusters that nobody has used for long, and what is left of those that ended by themselves."""
        now = time.monotonic()
        for key, warm in list(self._warm.items()):
            if now > warm.until or not warm.cluster.alive:
                del self._warm[key]
                warm.close()

    def _give_back(self, key: tuple[str, str, bool], warm: _Warm, keep: bool) -> None:
        keeps_gpus = warm.gpus.numbers and not self._keep_gpus
        clean = keep and not (warm.cluster.dirty or warm.cluster.retired)
        if clean:
            limit = IDLE_LIMIT if warm.servers else None
            with contextlib.suppress(LaunchError):
                warm.cluster.settle(limit)
            ends = limit is not None and not warm.cluster.next_item
            warm.until = time.monotonic() + IDLE_LIMIT - _IDLE_MARGIN if ends else math.inf
            clean = not (warm.cluster.dirty or warm.cluster.retired)
        if keep and clean and warm.uses < MAX_USES and not keeps_gpus and key not in self._warm:
            self._warm[key] = warm
        else:
            warm.close()

    def _make_room(self, processes: int) -> None:
        while (
            self._warm and processes + sum(len(w.cluster.processes) for w in self._warm.values()) > MAX_WARM_PROCESSES
        ):
            self._warm.popitem(last=False)[1].close()

    def tear_down_sessions(self) -> None:
        """Tear down what finished items have left set up in warm clusters for a next one."""
        for warm in self._warm.values():
            warm.cluster.tear_down_session()

    def close(self) -> None:
        """End all clusters and the launcher; nothing is left."""
        while self._warm:
            self._warm.popitem()[1].close()
        if self._launcher is not None:
            self._launcher.close()
            self._launcher = None


def _device_ids(numbers: Sequence[int], environ: Mapping[str, str]) -> list[str]:
    """Names of GPUs for ``CUDA_VISIBLE_DEVICES``; slots count those that this process may see."""
    visible = [name.strip() for name in environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name.strip()]
    return [visible[number] if number < len(visible) else str(number) for number in numbers]
