"""Show what the probes found, as text or JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from itertools import groupby

from pytest_ddl.doctor.examination import ProbeAnswer
from pytest_ddl.doctor.findings import Status

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
