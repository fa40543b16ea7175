"""Run probes at the same time, each until its deadline, and report what they found as text or JSON."""

from __future__ import annotations

import enum
import json
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby


class Status(enum.Enum):
    """Severity of a finding."""

    OK = "ok"
    WARNING = "warning"
    PROBLEM = "problem"


@dataclass(frozen=True)
class DoctorFinding:
    """One line of what was found.

    :raises ValueError: if something is wrong and no fix is named, or if a text has several lines.
    """

    status: Status
    found: str
    fix: str = ""

    def __post_init__(self) -> None:
        if (self.status is Status.OK) == bool(self.fix):
            raise ValueError(f"{self.found!r} is {self.status.value}: a fix belongs to each warning and problem only")
        if "\n" in self.found + self.fix:
            raise ValueError(f"{self.found!r}, {self.fix!r}: each text of a finding is one line")


def ok(found: str) -> DoctorFinding:
    return DoctorFinding(Status.OK, found)


def warning(found: str, fix: str) -> DoctorFinding:
    return DoctorFinding(Status.WARNING, found, fix)


def problem(found: str, fix: str) -> DoctorFinding:
    return DoctorFinding(Status.PROBLEM, found, fix)


SECONDS = 1.4
"""Deadline of a probe that may block. All probes run at the same time, so the command ends soon after it."""
BUSY_SECONDS = 20.0
"""Deadline of the others, which only a very busy machine delays. That is no problem of what they ask about."""


@dataclass(frozen=True)
class DoctorProbe:
    """Question to the machine on which it runs."""

    name: str
    group: str
    title: str
    """Statement that holds if it finds nothing wrong."""
    run: Callable[[], DoctorFinding | Sequence[DoctorFinding]]
    waits: bool = False
    """True if it asks something that may never answer: a name server, a disk, another process."""
    own_seconds: float | None = None
    """Deadline, if it differs from that of similar probes."""
    is_needed: bool = True
    """False if tests run on this machine whatever it finds. Without an answer, it is then a warning."""
    on_request: bool = False
    """True if it runs only if it is asked for, because it takes seconds."""

    @property
    def seconds(self) -> float:
        """Deadline."""
        return self.own_seconds or (SECONDS if self.waits else BUSY_SECONDS)


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
        answered = self._answer
        if answered is None:
            said = f"it gave no answer within {self.probe.seconds:g} s"
            answered = (_could_not(self.probe, said, f"find out what blocks: {self.probe.title}"),)
        return ProbeAnswer(self.probe, answered)


def _could_not(probe: DoctorProbe, reason: str, fix: str) -> DoctorFinding:
    severity = problem if probe.is_needed else warning
    return severity(f"the probe {probe.name} could not be completed: {reason}", fix)


def examine(probes: Iterable[DoctorProbe]) -> Sequence[ProbeAnswer]:
    """Run probes on this machine, and return their answers in the same order."""
    asked = [_Asked(probe) for probe in probes]
    return [one.answer() for one in asked]


FORMAT = 1
"""Version of the JSON, which changes if a field changes its meaning."""


def as_text(answers: Sequence[ProbeAnswer]) -> str:
    """Return what is right by group, then warnings, then problems, which are next to the prompt of the shell."""
    return "".join(f"{line}\n" for line in _lines(answers))


def _lines(answers: Sequence[ProbeAnswer]) -> Iterator[str]:
    ordered = sorted(answers, key=lambda answer: _groups(answers).index(answer.probe.group))
    for group, members in groupby(ordered, key=lambda answer: answer.probe.group):
        right = [finding for answer in members for finding in answer.with_status(Status.OK)]
        if right:
            yield group
            yield from (f"  ok  {finding.found}" for finding in right)
    for status in (Status.WARNING, Status.PROBLEM):
        for answer in answers:
            for finding in answer.with_status(status):
                yield ""
                yield f"{status.value}: {answer.probe.name}: {finding.found}"
                yield f"  fix: {finding.fix}"
    yield ""
    yield _verdict(answers)


def _groups(answers: Sequence[ProbeAnswer]) -> list[str]:
    return list(dict.fromkeys(answer.probe.group for answer in answers))


def count(answers: Sequence[ProbeAnswer], status: Status) -> int:
    return sum(len(answer.with_status(status)) for answer in answers)


def _verdict(answers: Sequence[ProbeAnswer]) -> str:
    problems, warnings = count(answers, Status.PROBLEM), count(answers, Status.WARNING)
    can = "cannot run distributed TensorFlow tests yet" if problems else "can run distributed TensorFlow tests"
    numbers = [
        f"{number} {word}{'s' if number > 1 else ''}"
        for number, word in ((problems, "problem"), (warnings, "warning"))
        if number
    ]
    return f"This machine {can}: {', '.join([*numbers, f'{count(answers, Status.OK)} ok'])}"


def as_json(answers: Sequence[ProbeAnswer], host: str) -> str:
    """Return one object for programs, with all findings in the order of the probes."""
    findings = [
        {
            "probe": answer.probe.name,
            "group": answer.probe.group,
            "status": finding.status.value,
            "found": finding.found,
            "fix": finding.fix,
        }
        for answer in answers
        for finding in answer.findings
    ]
    numbers = {f"{status.value}s": count(answers, status) for status in (Status.PROBLEM, Status.WARNING)}
    return json.dumps({"format": FORMAT, "host": host, **numbers, "findings": findings}, indent=1) + "\n"
