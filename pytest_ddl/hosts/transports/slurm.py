"""Transport ``slurm``: the nodes of the allocation in which pytest runs."""

from __future__ import annotations

import contextlib
import os
import re
import time
import uuid
from collections.abc import Mapping, Sequence

from pytest_ddl.hosts.transport import Host, TransportArguments, TransportError
from pytest_ddl.hosts.transports.programs import output_of

_CPUS = re.compile(r"(\d+)(?:\(x(\d+)\))?")
_END_WAIT = 3.0
"""Maximum seconds until the steps have ended by themselves."""
_DAMAGING = ("SLURM_LABELIO", "SLURM_STDINMODE", "SLURM_STDOUTMODE", "SLURM_HOSTFILE")
"""Variables that change the streams of ``srun``, or its nodes. No option undoes them."""


class Slurm:
    """Nodes of the job that ``SLURM_JOB_ID`` names. Each gets one step, which overlaps with those of the user."""

    name = "slurm"
    summary = "the nodes of a Slurm allocation: run pytest inside salloc or sbatch"
    defaults: Mapping[str, str] = {}

    def __init__(self, arguments: TransportArguments) -> None:
        arguments.settings(self.defaults)
        self._job = os.environ.get("SLURM_JOB_ID", "")
        self._hosts: list[Host] = []
        self._step = f"pytest-ddl-{uuid.uuid4().hex[:8]}"
        """Name of the steps."""

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
        if int(os.environ.get("SLURM_STEP_NUM_TASKS") or 1) > 1:
            raise TransportError(
                "--ddl-launcher=slurm: srun has started pytest more than once (SLURM_STEP_NUM_TASKS="
                f"{os.environ['SLURM_STEP_NUM_TASKS']}); start it without srun: it starts a step on each node itself"
            )
        names = self._run(["scontrol", "show", "hostnames", nodes]).split()
        cpus = cpus_per_node(os.environ.get("SLURM_JOB_CPUS_PER_NODE", ""))
        return [Host(name, slots=count) for name, count in zip(names, [*cpus, *[0] * len(names)], strict=False)]

    def command(self, host: Host, program: Sequence[str]) -> Sequence[str]:
        # Without -c, a step gets one core. --mem=0 gives it the memory of the job instead of a part of its own.
        cores = ["-c", str(host.slots)] if host.slots else []
        where = ["-N1", "-n1", "-w", host.name, "--overlap", "--mem=0", "--cpu-bind=none", "--unbuffered"]
        undone = [part for name in _DAMAGING for part in ("-u", name)]
        return ["env", *undone, "srun", f"--jobid={self._job}", f"--job-name={self._step}", *where, *cores, *program]

    def close(self) -> None:
        # If srun was killed, Slurm keeps the streams of its step open for another program, and the step would go on.
        with contextlib.suppress(TransportError):
            if not self._steps():
                return
            # Slurm may refuse to send a signal to a step without its srun, and yet cancels it.
            for signal in (["--signal=TERM"], []):
                with contextlib.suppress(TransportError):
                    self._run(["scancel", *signal, *self._steps()])
                    if self._have_ended():
                        return

    def _have_ended(self) -> bool:
        """Wait until the steps have ended, at most :data:`_END_WAIT` seconds. Return whether they have."""
        deadline = time.monotonic() + _END_WAIT
        while steps := self._steps():
            if time.monotonic() > deadline:
                break
            time.sleep(0.1)
        return not steps

    def _run(self, command: list[str]) -> str:
        return output_of(self.name, command, "run pytest on a node of Slurm")

    def _steps(self) -> list[str]:
        """Return the ids of the steps that still run."""
        lines = self._run(["squeue", "-h", "-s", "-j", self._job, "-o", "%i %j"]).splitlines()
        return [line.split()[0] for line in lines if line.endswith(f" {self._step}")]


def cpus_per_node(text: str) -> list[int]:
    """Return the CPUs of each node from ``SLURM_JOB_CPUS_PER_NODE``, such as ``"2(x3),4"`` (see sbatch(1))."""
    return [int(cpus) for cpus, times in _CPUS.findall(text) for _ in range(int(times or 1))]
