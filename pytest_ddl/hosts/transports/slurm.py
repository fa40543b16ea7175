"""Transport ``slurm``: the nodes of the allocation in which pytest runs."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping, Sequence

from pytest_ddl.hosts.transport import Host, TransportArguments, TransportError

_CPUS = re.compile(r"(\d+)(?:\(x(\d+)\))?")
_SCONTROL_WAIT = 20.0
"""Maximum seconds for ``scontrol``. It reads only the text that it is given."""


class Slurm:
    """Nodes of the job that ``SLURM_JOB_ID`` names. Each gets one step, which overlaps with those of the user."""

    name = "slurm"
    summary = "the nodes of a Slurm allocation: run pytest inside salloc or sbatch"
    defaults: Mapping[str, str] = {}

    def __init__(self, arguments: TransportArguments) -> None:
        arguments.settings(self.defaults)
        self._job = os.environ.get("SLURM_JOB_ID", "")
        self._hosts: list[Host] = []

    def hosts(self) -> Sequence[Host]:
        if not self._hosts:
            self._hosts = self._nodes()
        return self._hosts

    def _nodes(self) -> list[Host]:
        nodes = os.environ.get("SLURM_JOB_NODELIST", "")
        if not (self._job and nodes):
            raise TransportError(
                "--ddl-launcher=slurm: pytest does not run in an allocation (SLURM_JOB_ID and SLURM_JOB_NODELIST are "
                "not set); start it with `salloc -N2 pytest …`, or in a script for sbatch"
            )
        names = _run(["scontrol", "show", "hostnames", nodes]).split()
        cpus = cpus_per_node(os.environ.get("SLURM_JOB_CPUS_PER_NODE", ""))
        return [Host(name, slots=count) for name, count in zip(names, [*cpus, *[0] * len(names)], strict=False)]

    def command(self, host: Host, program: Sequence[str]) -> Sequence[str]:
        # Without -c, a step gets one core. --mem=0 gives it the memory of the job instead of a part of its own.
        cores = ["-c", str(host.slots)] if host.slots else []
        where = ["-N1", "-n1", "-w", host.name, "--overlap", "--mem=0", "--cpu-bind=none", "--unbuffered"]
        return ["srun", f"--jobid={self._job}", *where, *cores, *program]

    def close(self) -> None:
        pass


def cpus_per_node(text: str) -> list[int]:
    """Return the CPUs of each node from ``SLURM_JOB_CPUS_PER_NODE``, such as ``"2(x3),4"`` (see sbatch(1))."""
    return [int(cpus) for cpus, times in _CPUS.findall(text) for _ in range(int(times or 1))]


def _run(command: list[str]) -> str:
    try:
        return subprocess.run(command, check=True, capture_output=True, text=True, timeout=_SCONTROL_WAIT).stdout
    except FileNotFoundError:
        raise TransportError(
            f"--ddl-launcher=slurm: the program {command[0]} is not installed here; run pytest on a node of Slurm"
        ) from None
    except subprocess.SubprocessError as error:
        said = str(getattr(error, "stderr", "") or error).strip()
        raise TransportError(f"--ddl-launcher=slurm: `{' '.join(command)}` failed: {said}") from None
