"""Examine all hosts of a transport at the same time: each by itself, and whether they fit together."""

from __future__ import annotations

import contextlib
import json
import platform
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pytest_ddl.doctor.examination import FORMAT, Status, as_json, examine
from pytest_ddl.doctor.registry import PROBES
from pytest_ddl.hosts.preflight import Problem
from pytest_ddl.hosts.transports.registry import group_of

_FIT = "the hosts have the same versions and files, and reach each other"


@dataclass(frozen=True)
class Examined:
    """Findings on all hosts."""

    hosts: Sequence[dict[str, Any]]
    """For each host, the object of ``pytest-ddl doctor --json``. Its ``host`` is the name in the transport."""
    between: Sequence[Problem]
    """Reasons why the hosts cannot work together."""

    @property
    def problems(self) -> int:
        return sum(int(host["problems"]) for host in self.hosts) + len(self.between)

    def as_json(self) -> str:
        """Return one object for programs."""
        between = [asdict(problem) for problem in self.between]
        record = {"format": FORMAT, "problems": self.problems, "hosts": list(self.hosts), "between": between}
        return json.dumps(record, indent=1) + "\n"

    def as_text(self) -> str:
        """Return what each host lacks, and what keeps the hosts from working together."""
        return "".join(f"{line}\n" for line in self._lines())

    def _lines(self) -> Iterator[str]:
        for host in self.hosts:
            found = host["findings"]
            right = sum(finding["status"] == Status.OK.value for finding in found)
            yield f"{host['host']}: {_counted(host['problems'], host['warnings'])}{right} ok"
            for finding in found:
                if finding["status"] != Status.OK.value:
                    yield f"  {finding['status']}: {finding['probe']}: {finding['found']}"
                    yield f"    fix: {finding['fix']}"
        yield "between the hosts"
        for problem in self.between:
            yield f"  problem: {problem.host}: {problem.found}"
            yield f"    fix: {problem.fix}"
        if not self.between:
            yield f"  ok  {_FIT}"
        yield ""
        can = "cannot run distributed TensorFlow tests yet" if self.problems else "can run distributed TensorFlow tests"
        yield f"These {len(self.hosts)} hosts {can}"


def _counted(problems: int, warnings: int) -> str:
    numbers = [(problems, "problem"), (warnings, "warning")]
    return "".join(f"{number} {word}{'s' if number > 1 else ''}, " for number, word in numbers if number)


def examined_here() -> str:
    """Return what the probes find on this host, as JSON. The agent of each host calls this."""
    return as_json(examine(probe for probe in PROBES if not probe.on_request), platform.node())


def examine_hosts(launcher: str, hosts: str) -> Examined:
    """Run the probes on each host of a transport, and compare the hosts.

    :param launcher: transport with its settings, as in ``--ddl-launcher``.
    :param hosts: as in ``--ddl-hosts``.
    :raises ValueError: for a wrong value. The message is one line.
    :raises LaunchError: if a host cannot be reached.
    """
    with tempfile.TemporaryDirectory(prefix="pytest-ddl-") as folder:
        group = group_of(launcher, hosts, Path(folder))
        with contextlib.closing(group):
            answers = group.ask(f"{__name__}:{examined_here.__name__}", [], "examining the host")
            _facts, between = group.examine()
            examined = [
                {**json.loads(answer), "host": link.host.name}
                for link, answer in zip(group.links, answers, strict=True)
            ]
    return Examined(examined, between)
