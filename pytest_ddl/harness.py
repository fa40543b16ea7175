"""Shared state of the ddl tests of one process: the strategies, this machine and the pool of clusters."""

from __future__ import annotations

import os
import shutil
import site
import sys
import sysconfig
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_ddl.cluster.state.surroundings import Snapshot
from pytest_ddl.config import Settings, UsageError
from pytest_ddl.hosts.transport import TransportArgumentError
from pytest_ddl.items.selection import DdlMark
from pytest_ddl.launchers import (
    built_in_launchers,
    chosen_launcher,
    environ_of_ranks,
    keras_environ,
    keras_of_ranks,
)
from pytest_ddl.strategies.base import Machine, StrategyDefinition
from pytest_ddl.strategies.machine import (
    MISSING_TENSORFLOW,
    count_devices,
    gpu_share,
    look_around,
    tensorflow_version,
)
from pytest_ddl.strategies.registry import StrategyRegistry, UnknownStrategyError
from pytest_ddl.strategies.spec import BuildContext, StrategySpec

if TYPE_CHECKING:
    import pytest

    from pytest_ddl.cluster.cluster import Cluster
    from pytest_ddl.cluster.launcher import Launcher, MakeLauncher
    from pytest_ddl.cluster.pool import Pool
    from pytest_ddl.hosts.project import Project
    from pytest_ddl.hosts.transport import MakeTransport


class Harness:
    """Strategies, machine and pool of clusters of one process. Nothing is started before a ddl test needs it."""

    def __init__(
        self,
        settings: Settings,
        registry: StrategyRegistry,
        launchers: Mapping[str, MakeLauncher],
        *,
        transports: Mapping[str, MakeTransport] | None = None,
        address: str | None = None,
        folder: Path | None = None,
        machine: Machine | None = None,
        runner: int = 0,
        runners: int = 1,
        root: Path | None = None,
    ) -> None:
        """Prepare a harness. Of ``runners`` processes of pytest that share the machine, this is number ``runner``."""
        self.settings = settings
        self.registry = registry
        self._launchers = launchers
        self._transports = transports or {}
        self._address = address
        self._own_folder = folder is None
        self._folder = folder
        self._folder_lock: int | None = None
        """Lock that shows to zygotes of xdist workers that this process still uses the folder."""
        self._machine = machine
        self._runner, self._runners = runner, runners
        self._root = root
        self._problem_of_hosts = ""
        """Why the hosts could not be asked for their GPUs. Empty if they were."""
        self._built: dict[StrategySpec, Any] = {}
        self.surroundings = Snapshot.now()
        """Environment, working directory and import path at the start of the session."""
        self.items: list[pytest.Item] = []
        """Items of the session, in the order in which they run."""
        self.show: Callable[[str], None] = lambda _doing: None
        """Callback that is called with what a comparison does now, whenever that changes."""

    @property
    def folder(self) -> Path:
        """Scratch folder of this session. All xdist workers share it, and it is removed at the end."""
        if self._folder is None:
            from pytest_ddl.cluster import session_folder
            from pytest_ddl.cluster.obstacles import temporary_folder

            parent = self.settings["shared-dir"] or temporary_folder()
            with _writing(parent):
                made, self._folder_lock = session_folder.make(parent)
                self._folder = Path(made)
        return self._folder

    @property
    def shared_folder(self) -> Path:
        """The same folder, for files that ranks write and this process reads.

        :raises LaunchError: if the ranks of a host would write to a folder of their own. Nothing that they record would
            then be found, and a check of it would see nothing wrong.
        """
        from pytest_ddl.cluster.obstacles import LaunchError

        blind = self.pool.launcher.hosts_without(self.folder)
        if blind:
            given = self.settings["shared-dir"]
            fix = f"mount {given} there" if given else "give a folder that all hosts share with --ddl-shared-dir=DIR"
            found = f"the host {blind[0]} does not see the folder {self.folder}"
            raise LaunchError(f"{found}, in which the ranks record what happens; {fix}")
        return self.folder

    def text_of_rank(self, text: str) -> str:
        """Return a text that a rank has written, with the paths of this machine. Only copies of files have others."""
        return text if self._started is None else self._started.text_of_rank(text)

    def offer(self, address: str) -> None:
        """Let the ranks of this process connect to a Unix socket on this machine, also from other hosts."""
        self.pool.launcher.offer(address)

    @property
    def address(self) -> str | None:
        """Address at which other processes of this session find the launcher, if it was started and can be shared."""
        launcher = self._started
        return None if launcher is None else launcher.address

    @property
    def _started(self) -> Launcher | None:
        return self.pool.started if "pool" in self.__dict__ else None

    @property
    def over_hosts(self) -> bool:
        """True if the launcher is one for several hosts.

        :raises pytest.UsageError: if ``--ddl-launcher`` names none.
        """
        return self._chosen_launcher()[0] in self._transports

    @property
    def machine(self) -> Machine:
        """Devices and versions on this machine.

        :raises pytest.UsageError: if TensorFlow is missing.
        """
        if self._machine is None:
            if tensorflow_version() is None:
                raise UsageError(MISSING_TENSORFLOW)
            if self.over_hosts:
                from pytest_ddl.hosts.placement import machine_of_hosts

                self._machine, self._problem_of_hosts = machine_of_hosts(lambda: self.pool.launcher)
                return self._machine
            self._machine = look_around(self._probe)
            if self._started is not None:
                # The probe ran under this launcher, which was made when the number of GPUs was unknown.
                self._started.ledger.capacity.setdefault("gpu", self._machine.gpus)
        return self._machine

    @cached_property
    def pool(self) -> Pool:
        from pytest_ddl.cluster.pool import Pool

        # The pool also runs the probe that finds the GPUs, so their number is asked for later.
        limit = self.settings["gpu-memory"]
        return Pool(self.make_launcher, self.worker_environ, lambda: gpu_share(self.machine, self._runners, limit))

    def make_launcher(self) -> Launcher:
        """Start the launcher that ``--ddl-launcher`` names. It imports TensorFlow in the background."""
        name, make = self._chosen_launcher()
        # A later launcher replaces this one only after the shared zygote has ended, so it must start its own.
        address, self._address = self._address, None
        from pytest_ddl.hosts.checked import launcher_made

        try:
            launcher = launcher_made(name, make, (self.worker_environ(), self.folder, address))
        except TransportArgumentError as error:
            raise self.settings.error("launcher", error) from None
        launcher.ledger.first = self._runner
        if self._machine is not None:
            launcher.ledger.capacity.setdefault("gpu", self._machine.gpus)
        return launcher

    def check_launcher(self) -> None:
        """Check the name of the launcher without starting it, and that the ranks will have TensorFlow.

        :raises pytest.UsageError: if ``--ddl-launcher`` names none, or if TensorFlow is missing.
        """
        self._chosen_launcher()
        if tensorflow_version() is None:
            raise UsageError(MISSING_TENSORFLOW)

    def leave_hosts(self) -> None:
        """End the launcher, if this process has started one. What was found about its hosts is kept."""
        if self._started is not None:
            self.pool.close()

    def _chosen_launcher(self) -> tuple[str, MakeLauncher]:
        """Return the name of the launcher, and the function that starts it.

        :raises pytest.UsageError: if ``--ddl-launcher`` names none.
        """
        return chosen_launcher(self.settings, self._launchers, self._transports, self._project)

    def _project(self) -> Project:
        """Return what to copy to each host: the project, without what each host has at the same path."""
        from pytest_ddl.hosts.project import Project

        kept = (str(self.folder), sys.prefix, site.getuserbase(), *sysconfig.get_paths().values())
        return Project.of(self._root or Path.cwd(), self.settings["sync-limit"], kept)

    def worker_environ(self) -> dict[str, str]:
        """Return the environment of workers: that of this process, with changes."""
        # Workers are killed and cannot clean up. Their temporary folder is removed with the session's folder.
        folder = self.folder / "tmp"
        with _writing(folder):
            folder.mkdir(parents=True, exist_ok=True)
        return environ_of_ranks(self.settings, folder)

    def warm_up(self) -> None:
        """Start the launcher now, so that TensorFlow is imported while other work goes on."""
        from pytest_ddl.cluster.obstacles import LaunchError

        # A test that needs the launcher fails later with the reason. Other tests can run.
        with suppress(LaunchError):
            _ = self.pool.launcher

    def device(self, mark: DdlMark) -> str:
        """Return the kind of device that the replicas of a test run on: ``cpu``, ``gpu`` or ``tpu``."""
        wanted = mark.device or self.settings["device"]
        if wanted == "auto":
            return "gpu" if self.machine.gpus else "cpu"
        return str(wanted)

    def device_for(self, spec: StrategySpec, mark: DdlMark) -> str:
        """Return :meth:`device`, but ``tpu`` instead of ``auto`` for the strategy ``tpu``."""
        wanted = mark.device or self.settings["device"]
        return "tpu" if spec.name == "tpu" and wanted == "auto" else self.device(mark)

    def unavailable(self, spec: StrategySpec, mark: DdlMark) -> str | None:
        """Return why a variant cannot run here, or ``None`` if it can."""
        device = self.device_for(spec, mark)
        reason = self.registry[spec.name].unavailable(spec, device, self.machine)
        # A test that is skipped because its hosts are not reached would hide that. It fails with the reason.
        return None if device == "gpu" and self._problem_of_hosts else reason

    def check_required(self) -> None:
        """Check that every strategy of ``--ddl-require`` can run here.

        :raises pytest.UsageError: if one cannot. The message names the strategy and the reason.
        """
        text = self.settings["require"]
        if not text:
            return
        try:
            required = self.registry.parse_selection(text)
        except UnknownStrategyError as error:
            raise self.settings.error("require", error) from None
        for spec in required:
            reason = self.unavailable(spec, DdlMark())
            if reason is not None:
                raise self.settings.error("require", f"{spec} cannot run here: {reason}")

    @contextmanager
    def cluster(
        self,
        spec: StrategySpec,
        mark: DdlMark,
        *,
        fresh: bool = False,
        environ: Mapping[str, str] | None = None,
        sessions: bool = False,
        exclusive: bool = False,
    ) -> Iterator[Cluster]:
        """Lease a cluster for one test.

        :param environ: additional environment variables of its processes. Such a cluster is used for this lease only.
        :param sessions: lease a cluster in which pytest sessions run.
        :param exclusive: let no other cluster use its GPUs, for a measurement.
        """
        mark = self.needed(mark)
        with self.pool.lease(
            spec,
            self.registry[spec.name],
            device=self.device_for(spec, mark),
            timeout=self.start_timeout,
            fresh=fresh or mark.is_alone,
            environ={**keras_environ(mark.keras), **(environ or {})},
            make_arguments=self._make_arguments(spec, mark),
            sessions=sessions,
            exclusive=exclusive,
        ) as cluster:
            yield cluster

    def needed(self, mark: DdlMark) -> DdlMark:
        """Return the settings of a test without the package of ``tf.keras``, if all ranks have it."""
        return replace(mark, keras=None) if mark.keras == keras_of_ranks(self.settings) else mark

    def _make_arguments(self, spec: StrategySpec, mark: DdlMark) -> bytes:
        """Return the pickled function of the marker that makes arguments for the constructor of a strategy, or b""."""
        from pytest_ddl.cluster import ship

        definition = self.registry[spec.name]
        names = (definition.name, *definition.aliases)
        return next((ship.by_value(mark.arguments[name]) for name in names if name in mark.arguments), b"")

    def timeout(self, mark: DdlMark) -> float:
        """Return the time limit of a test in seconds."""
        return float(mark.timeout if mark.timeout is not None else self.settings["timeout"])

    @property
    def start_timeout(self) -> float:
        """Seconds allowed for starting a cluster. They are many because other ranks can keep the machine busy."""
        return float(self.settings["start-timeout"])

    def build_here(self, definition: StrategyDefinition, context: BuildContext) -> Any:
        """Build a strategy in this process, once for each variant. Debuggers need this.

        TensorFlow freezes its devices at first use, so it may refuse a second variant of another size.
        """
        if context.spec not in self._built:
            from pytest_ddl.cluster.network import servers_kept_local
            from pytest_ddl.cluster.resources import PortLease

            self._lease = PortLease(context.topology.ports)
            with servers_kept_local():
                self._built[context.spec] = definition.build(replace(context, addresses=self._lease.addresses))
        return self._built[context.spec]

    def _probe(self) -> tuple[int, int, int]:
        from pytest_ddl.cluster import ship
        from pytest_ddl.cluster.protocol import RequestKind

        spec = self.registry.default("one_device")
        deadline = time.monotonic() + self.settings["timeout"]
        with self.pool.lease(
            spec, self.registry[spec.name], device="cpu", timeout=self.start_timeout, fresh=True
        ) as cluster:
            (answer,) = cluster.ask(RequestKind.CALL, ship.pack(count_devices), deadline=deadline)
        if not answer.ok:
            return 0, 0, 0
        gpus, tpus, memory = map(int, ship.unpack(answer.body))
        return gpus, tpus, memory

    def tear_down_sessions(self) -> None:
        """Tear down the fixtures that pytest sessions in warm clusters still hold."""
        if "pool" in self.__dict__:
            self.pool.tear_down_sessions()

    def close(self) -> None:
        """End everything that was started and remove the scratch folder."""
        if "pool" in self.__dict__:
            self.pool.close()
            del self.__dict__["pool"]
        if self._folder is not None and self._own_folder:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None
            if self._folder_lock is not None:
                os.close(self._folder_lock)
                self._folder_lock = None


@contextmanager
def _writing(folder: object) -> Iterator[None]:
    """Explain an error of the system while files are made in a folder.

    :raises LaunchError: instead of the error.
    """
    try:
        yield
    except OSError as error:
        from pytest_ddl.cluster.obstacles import LaunchError, cannot_write

        raise LaunchError(cannot_write(error, folder)) from None


_process_harness: Harness | None = None


def process_harness() -> Harness:
    """Return the harness of a process without pytest. It is made at the first call and closed at exit."""
    from multiprocessing.util import Finalize

    from pytest_ddl.config import resolve_without_pytest
    from pytest_ddl.hosts.transports.registry import built_in_transports

    global _process_harness
    if _process_harness is None:
        from pytest_ddl.cluster import overrides

        overrides.remember()
        settings = resolve_without_pytest()
        transports = built_in_transports()
        _process_harness = Harness(settings, StrategyRegistry(), built_in_launchers(settings), transports=transports)
        # Not atexit, because processes of multiprocessing never run its functions.
        Finalize(None, _process_harness.close, exitpriority=0)
    return _process_harness
