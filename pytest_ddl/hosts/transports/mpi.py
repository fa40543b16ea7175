"""Transport ``mpi``: hosts on which ``mpirun`` can start programs."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from pytest_ddl.hosts.transport import Host, TransportArgumentError, TransportArguments
from pytest_ddl.hosts.transports.programs import require

_INSTALL = "install Open MPI (openmpi-bin) or MPICH (mpich)"
_LINE = re.compile(r"(?P<name>[^\s:#]+)(?::(?P<after>\d+))?(?:.*?\sslots\s*=\s*(?P<slots>\d+))?")
"""Line of a host file: ``a slots=2`` of Open MPI, or ``a:2`` of MPICH."""


class Mpi:
    """Hosts of a host file or of ``--ddl-hosts``. Each gets an ``mpirun``, which passes its stdin to one rank only."""

    name = "mpi"
    summary = "hosts of `hostfile`, or of --ddl-hosts, on which mpirun can start programs"
    defaults: Mapping[str, str] = {"hostfile": ""}

    def __init__(self, arguments: TransportArguments) -> None:
        file = arguments.settings(self.defaults)["hostfile"]
        if file and arguments.hosts:
            raise TransportArgumentError(
                f"hostfile={file} and --ddl-hosts={arguments.hosts} are both given: leave one out"
            )
        self._hosts = _read(file) if file else arguments.host_list()

    def hosts(self) -> Sequence[Host]:
        require(self.name, "mpirun", _INSTALL)
        return self._hosts

    def command(self, host: Host, program: Sequence[str]) -> Sequence[str]:
        # mpirun binds a single rank to one core. The agent is that rank, and the workers would share its core.
        return ["mpirun", "-n", "1", "--bind-to", "none", "--host", host.name, *program]

    def close(self) -> None:
        pass


def _read(file: str) -> list[Host]:
    try:
        with open(file, encoding="utf-8") as lines:
            matches = [_LINE.match(line.strip()) for line in lines]
    except OSError as error:
        raise TransportArgumentError(
            f"hostfile={file} cannot be read ({error.strerror}): give the path of a host file"
        ) from None
    slots: dict[str, list[int]] = {}
    for match in filter(None, matches):
        slots.setdefault(match["name"], []).append(int(match["slots"] or match["after"] or 0))
    if not slots:
        raise TransportArgumentError(f"hostfile={file} names no host: write one on each line, such as `a slots=2`")
    # A host without a number has a slot for each of its lines, or as many as cores if it has one line.
    return [Host(name, slots=sum(each) or (len(each) if len(each) > 1 else 0)) for name, each in slots.items()]
