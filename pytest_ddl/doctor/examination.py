"""Run probes at the same time, each until its deadline. A probe that fails or does not answer is a problem."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from pytest_ddl.doctor.findings import DoctorFinding, Status, problem
from pytest_ddl.doctor.registry import DoctorProbe


@dataclass(frozen=True)
class ProbeAnswer:
    """Findings of one probe."""

    probe: DoctorProbe
    findings: tuple[DoctorFinding, ...]

    def with_status(self, status: Status) -> list[DoctorFinding]:
        return [finding for finding in self.findings if finding.status is status]


class _Asked:
    """Probe that runs in a thread of its own, which ends with the process if the probe blocks."""

    def __init__(self, probe: DoctorProbe) -> None:
        self.probe = probe
        self._answer: tuple[DoctorFinding, ...] | None = None
        self._thread = threading.Thread(target=self._ask, name=f"doctor-{probe.name}", daemon=True)
        self._deadline = time.monotonic() + probe.seconds
        try:
            self._thread.start()
        except RuntimeError as error:
            # The limit on threads. What cannot block needs no thread, and names the limit.
            if probe.waits:
                self._answer = (_could_not(probe, str(error), "raise the number of threads: ulimit -u unlimited"),)
            else:
                self._ask()

    def _ask(self) -> None:
        try:
            found = self.probe.run()
            answer = (found,) if isinstance(found, DoctorFinding) else tuple(found)
        except Exception as error:
            # Whatever fails, the user must hear that nothing is known here.
            text = " ".join(f"{type(error).__name__}: {error}".split())
            answer = (_could_not(self.probe, text, "mend what it names, or report this as a defect of pytest-ddl"),)
        self._answer = answer

    def answer(self) -> ProbeAnswer:
        if self._answer is None:
            self._thread.join(max(0.0, self._deadline - time.monotonic()))
        # One reading, because the thread may answer late.
        found = self._answer
        if found is None:
            said = f"it gave no answer within {self.probe.seconds:g} s"
            found = (_could_not(self.probe, said, f"find out what blocks: {self.probe.title}"),)
        return ProbeAnswer(self.probe, found)


def _could_not(probe: DoctorProbe, reason: str, fix: str) -> DoctorFinding:
    return problem(f"the probe {probe.name} could not be completed: {reason}", fix)


def examine(probes: Iterable[DoctorProbe]) -> Sequence[ProbeAnswer]:
    """Run probes on this machine, and return their answers in the same order."""
    asked = [_Asked(probe) for probe in probes]
    return [one.answer() for one in asked]
