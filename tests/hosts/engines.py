"""Services that start programs on hosts, on this machine: a Slurm of two nodes, and two hosts with sshd.

Each host is a network namespace with an address and a host name of its own. The services run there in the foreground,
and the kernel kills them when the process of the tests ends, however that happens.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import ClassVar

import psutil
import pytest

from pytest_ddl.hosts.transport import Host, TransportArguments, TransportError
from pytest_ddl.hosts.transports.netns import Netns
from tests.polling import wait_until

NODES = ("node1", "node2")
"""Names of the hosts of a service. pytest runs on one more host, ``login``."""
SSH_PORT = 2222
_PLAIN = ("-o", "BatchMode=yes", "-o", "ClearAllForwardings=yes", "-o", "ControlMaster=no")
"""Options without which ssh leaves a process in the background, under the configuration here."""
_END_WAIT = 20.0
"""Maximum seconds until a service has ended what it has started."""


def missing(programs: dict[str, str]) -> str:
    """Return why tests with these programs cannot run here, or an empty string.

    :param programs: names of programs, with the package of Debian that has them.
    """
    if os.geteuid() != 0:
        return "needs root, to start services in network namespaces"
    for program, package in {**programs, "setpriv": "util-linux"}.items():
        if shutil.which(program, path=_search_path()) is None:
            return f"the program {program} is not installed; run `apt-get install {package}`"
    return ""


def _search_path() -> str:
    return f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"


class Site:
    """Hosts with a network between them, and the services that run there."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="ddl-site-"))
        number = str(len(NODES) + 1)
        self._network = Netns(TransportArguments("netns", self.folder, os.environ, given={"hosts": number}))
        self._services: dict[int, subprocess.Popen[bytes]] = {}
        self.environ: dict[str, str] = {}
        """Variables of the environment for programs that use the services."""
        try:
            found = self._network.hosts()
        except TransportError as error:
            self._network.close()
            pytest.skip(str(error))
        self._hosts: dict[str, Host] = dict(zip([*NODES, "login"], found, strict=True))
        for name in self._hosts:
            # A host of a real network has a route, from which an agent finds its address.
            subprocess.run(self.inside(name, "ip", "route", "add", "default", "dev", "eth0"), check=True)

    @property
    def prefix(self) -> list[str]:
        """Beginning of a command that runs on the login host."""
        return self.inside("login")

    def address(self, name: str) -> str:
        return self._hosts[name].address

    def inside(self, name: str, *program: str) -> list[str]:
        """Return the command that runs a program on a host, under the host's name."""
        named = ["unshare", "-u", "sh", "-c", 'hostname "$0" && exec "$@"', name]
        return [*self._network.command(self._hosts[name], []), *named, *program]

    def serve(self, name: str, *program: str) -> int:
        """Start a service on a host. Return its process id."""
        with open(self.folder / f"{name}-{Path(program[0]).name}.out", "ab") as log:
            command = self.inside(name, "setpriv", "--pdeathsig", "KILL", *program)
            environ = {**os.environ, "PATH": _search_path()}
            started = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environ)
        self._services[started.pid] = started
        return started.pid

    def said(self) -> str:
        """Return what the services have printed."""
        return "\n".join(f"{path.name}: {path.read_text()[-2000:]}" for path in sorted(self.folder.glob("*.out")))

    def processes(self, *names: str) -> list[psutil.Process]:
        """Return the processes on hosts, without the services."""
        own = {*self._services, *(self._holder(name) for name in self._hosts)}
        namespaces = {_namespace(self._holder(name)) for name in names or NODES}
        found = (process for process in psutil.process_iter() if process.pid not in own)
        return [process for process in found if _namespace(process.pid) in namespaces]

    def _holder(self, name: str) -> int:
        """Return the process that holds a host's namespace."""
        return next(int(part) for part in self._network.command(self._hosts[name], []) if part.isdigit())

    def close(self) -> None:
        for service in self._services.values():
            service.terminate()
        for service in self._services.values():
            try:
                service.wait(_END_WAIT)
            except subprocess.TimeoutExpired:
                service.kill()
                service.wait()
        self._network.close()
        shutil.rmtree(self.folder)


def _namespace(pid: int) -> str:
    with contextlib.suppress(OSError):
        return os.readlink(f"/proc/{pid}/ns/net")
    return ""


class SlurmSite(Site):
    """Slurm with a node for each host, without munge and cgroups."""

    programs: ClassVar = {"slurmctld": "slurmctld", "slurmd": "slurmd", "salloc": "slurm-client"}

    def __init__(self) -> None:
        super().__init__()
        self._salloc = 0
        self._conf = self.folder / "slurm.conf"
        self.environ["SLURM_CONF"] = str(self._conf)
        self._conf.write_text(self._configuration())
        for place in ("state", *(f"spool/{name}" for name in NODES)):
            (self.folder / place).mkdir(parents=True)
        environ = f"SLURM_CONF={self._conf}"
        self.serve("login", "env", environ, "slurmctld", "-D", "-c")
        for name in NODES:
            self.serve(name, "env", environ, "slurmd", "-D", "-N", name)
        try:
            wait_until(lambda: self._states() == ["idle"] * len(NODES), seconds=60.0)
            self.environ.update(self._allocate())
        except AssertionError:
            states, said = self._states(), self.said()
            self.close()
            raise AssertionError(f"the nodes of Slurm are {states}\n{said}") from None

    def _allocate(self) -> dict[str, str]:
        """Hold an allocation of all nodes until :meth:`close`. Return the variables that programs in it get."""
        told = self.folder / "allocation"
        script = 'env -0 > "$0.part" && mv "$0.part" "$0" && exec sleep infinity'
        environ = f"SLURM_CONF={self._conf}"
        self._salloc = self.serve(
            "login", "env", environ, "salloc", "-Q", f"-N{len(NODES)}", "-n4", "sh", "-c", script, str(told)
        )
        wait_until(told.exists, "salloc got no nodes", seconds=60.0)
        variables = dict(part.split("=", 1) for part in told.read_text().split("\0") if "=" in part)
        return {name: value for name, value in variables.items() if name.startswith("SLURM_")}

    def _configuration(self) -> str:
        nodes = "".join(
            f"NodeName={name} NodeHostname={name} NodeAddr={self.address(name)} CPUs=2 RealMemory=2000\n"
            for name in NODES
        )
        return f"""\
ClusterName=ddl
SlurmctldHost=login({self.address("login")})
AuthType=auth/none
CredType=cred/none
SlurmUser=root
SlurmdUser=root
StateSaveLocation={self.folder}/state
SlurmdSpoolDir={self.folder}/spool/%n
SlurmctldPidFile={self.folder}/slurmctld.pid
SlurmdPidFile={self.folder}/slurmd-%n.pid
SlurmdParameters=config_overrides
ProctrackType=proctrack/linuxproc
TaskPlugin=task/affinity
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SwitchType=switch/none
MpiDefault=none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
ReturnToService=2
KillWait=2
{nodes}PartitionName=p Nodes=ALL Default=YES MaxTime=INFINITE State=UP OverSubscribe=YES
"""

    def ask(self, *command: str) -> str:
        """Return what a program of Slurm prints on the login host."""
        environ = {**os.environ, **self.environ}
        done = subprocess.run(self.inside("login", *command), capture_output=True, text=True, env=environ)
        return done.stdout

    def _states(self) -> list[str]:
        return self.ask("sinfo", "-h", "-N", "-o", "%t").split()

    def _children_of_salloc(self) -> list[psutil.Process]:
        with contextlib.suppress(psutil.NoSuchProcess):
            return psutil.Process(self._salloc).children() if self._salloc else []
        return []

    def close(self) -> None:
        # salloc ends when its program does. It takes long to end if it gets a signal itself.
        for child in self._children_of_salloc():
            child.kill()
        # The steps before the daemons: a slurmstepd without them waits for ever, and even SIGTERM does not end it.
        self.ask("scancel", "-Q", "-u", "root")
        with contextlib.suppress(AssertionError):
            wait_until(lambda: not self.processes(), seconds=_END_WAIT)
        for process in self.processes():
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(signal.SIGKILL)
        super().close()


class SshSite(Site):
    """Hosts with sshd, and a configuration of ssh that names them."""

    programs: ClassVar = {"sshd": "openssh-server", "ssh": "openssh-client", "ssh-keygen": "openssh-client"}

    def __init__(self) -> None:
        super().__init__()
        # sshd wants its full path, to start itself again for each connection, and this folder for an unprivileged part.
        sshd = shutil.which("sshd", path=_search_path()) or ""
        Path("/run/sshd").mkdir(exist_ok=True)
        for key in ("host", "user"):
            subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", self.folder / key], check=True)
        shutil.copy(self.folder / "user.pub", self.folder / "authorized_keys")
        options = {
            "AuthorizedKeysFile": self.folder / "authorized_keys",
            "HostKey": self.folder / "host",
            "PermitRootLogin": "prohibit-password",
            "Port": SSH_PORT,
            "PidFile": "none",
            "StrictModes": "no",
            "UsePAM": "no",
        }
        for name in NODES:
            parts = [part for option, value in options.items() for part in ("-o", f"{option}={value}")]
            self.serve(name, sshd, "-D", "-e", "-f", "/dev/null", *parts)
        self.config = self.folder / "ssh_config"
        self.config.write_text(
            "".join(f"Host {name}\n  HostName {self.address(name)}\n" for name in NODES)
            + f"Host *\n  Port {SSH_PORT}\n  IdentityFile {self.folder}/user\n  IdentitiesOnly yes\n"
            # What users may have, for work in a terminal.
            f"  RequestTTY force\n  ControlMaster auto\n  ControlPersist 10m\n  ControlPath {self.folder}/%n\n"
            "  LocalForward 18080 localhost:80\n  ExitOnForwardFailure yes\n"
            "  UserKnownHostsFile /dev/null\n  StrictHostKeyChecking no\n  LogLevel ERROR\n"
        )
        for name in NODES:
            command = self.inside("login", "ssh", "-F", str(self.config), *_PLAIN, name, "true")
            try:
                wait_until(lambda c=command: subprocess.run(c, capture_output=True).returncode == 0, seconds=30.0)
            except AssertionError:
                said = self.said()
                self.close()
                raise AssertionError(f"sshd of {name} does not answer\n{said}") from None


@contextlib.contextmanager
def opened(kind: type[SlurmSite] | type[SshSite]) -> Iterator[Site]:
    """Open a site for tests, or skip them with the reason."""
    if reason := missing(kind.programs):
        pytest.skip(reason)
    site = kind()
    try:
        yield site
    finally:
        site.close()


def command_lines(processes: Sequence[psutil.Process]) -> list[str]:
    """Return the command lines of those processes that still run."""
    found = []
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            found.append(" ".join(process.cmdline()))
    return found
