"""Plain data of a history: machines, commits, benchmarks, and series of points over commits."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any, Literal

ProblemKind = Literal[
    "broken", "cut", "removed", "failed", "gone", "shallow", "unsearched", "outside", "split", "behind"
]
ERRORS: frozenset[ProblemKind] = frozenset({"broken", "cut", "removed", "failed", "gone", "shallow", "unsearched"})
"""Kinds of problem for which ``pytest-ddl history`` does not exit with 0, because part of the history is missing."""


def short_id(prefix: str, *parts: str) -> str:
    """Return an id that is the same for a finding in every run, so that users can accept it by name."""
    return f"{prefix}-{hashlib.sha256(chr(0).join(parts).encode()).hexdigest()[:8]}"


def plain(text: str) -> str:
    """Return a parameter as people write it; asv stores ``repr(value)``."""
    match = re.fullmatch(r"'(.*)'|\"(.*)\"|<class '(.*)'>|<function (\S+) at .*>", text)
    return next((group for group in match.groups() if group is not None), text) if match else text


@dataclass(frozen=True)
class HistoryProblem:
    """Problem that keeps results out of the history, or that makes the history look more complete than it is."""

    kind: ProblemKind
    message: str
    """Description of the problem, its place, and the fix."""
    subject: str
    detail: str = ""
    """Difference between this problem and an earlier one with the same subject; part of the id."""

    @property
    def id(self) -> str:
        return short_id(self.kind, self.subject, self.detail)

    @property
    def error(self) -> bool:
        return self.kind in ERRORS


@dataclass(frozen=True, order=True)
class Commit:
    """Commit with its position in the history."""

    position: int
    """Index in the history, oldest first, from 0."""
    hash: str
    date: int
    """Milliseconds since 1970, as asv stores it."""
    subject: str = ""
    """First line of the message; empty if the repository was not read."""

    @property
    def short(self) -> str:
        return self.hash[:8]

    @property
    def day(self) -> str:
        """Date in UTC, such as ``2026-09-15``."""
        return datetime.fromtimestamp(self.date / 1000, timezone.utc).strftime("%Y-%m-%d")

    @property
    def minute(self) -> str:
        """Date and time in UTC, such as ``2026-09-15 14:03``."""
        return datetime.fromtimestamp(self.date / 1000, timezone.utc).strftime("%Y-%m-%d %H:%M")


def dates(commits: Sequence[Commit]) -> list[str]:
    """Return the day of each commit, with the time if another one of the commits is from the same day."""
    count = Counter(commit.day for commit in set(commits))
    return [commit.day if count[commit.day] == 1 else commit.minute for commit in commits]


@dataclass(frozen=True)
class AsvMachine:
    """Machine that results come from, as described in asv's ``machine.json``."""

    name: str
    facts: Mapping[str, str]
    """``cpu``, ``num_cpu``, ``ram``, ``os``, ``gpu`` ... as text."""

    @property
    def summary(self) -> str:
        """Description in one line: processor, cores, GPU."""
        cores = self.facts.get("num_cpu", "")
        said = [self.facts.get("cpu", ""), f"{cores} cores" if cores else "", self.facts.get("gpu", "")]
        return ", ".join(part for part in said if part) or "no machine facts"


@dataclass(frozen=True)
class Benchmark:
    """Entry of asv's ``benchmarks.json``."""

    name: str
    unit: str
    version: str | None
    parameter_names: tuple[str, ...]
    attributes: Mapping[str, Any] = field(default_factory=dict)
    """Fields of the entry. asv_runner copies attributes of the function into it, such as ``higher_is_better``."""
    choices: tuple[frozenset[str], ...] | None = None
    """Current values of each parameter, as people write them; ``None`` if they are unknown."""


Basis = Literal["launches", "samples", "none"]


@dataclass(frozen=True)
class HistoryPoint:
    """Value of one series at one commit."""

    commit: Commit
    value: float
    """Result of asv: the median of its samples, in the benchmark's unit."""
    low: float | None = None
    high: float | None = None
    """Upper end of the interval. Both ends are in the benchmark's unit, and ``None`` if there is only one sample."""
    basis: Basis = "none"
    """Basis of the interval: ``launches`` (95 %, Student's t over medians of launches), or ``samples`` (asv's 99 %
    interval over samples of one launch, which understates the difference to another launch)."""
    samples: int = 1
    version: str | None = None


@dataclass(frozen=True)
class Series:
    """One benchmark with one set of parameters, on one machine in one environment, over commits."""

    machine: str
    environment: str
    benchmark: Benchmark
    parameters: tuple[tuple[str, str], ...]
    """Names and values, as people write them: ``("strategy", "mirrored")``."""
    points: tuple[HistoryPoint, ...]
    """Points of the benchmark's current version, oldest first."""
    dropped: tuple[HistoryPoint, ...] = ()
    """Points of older versions, which are not comparable, and which asv does not show."""
    failed: tuple[Commit, ...] = ()
    skipped: tuple[Commit, ...] = ()
    """Commits at which the benchmark reported that it could not be measured: n/a."""
    clashes: bool = False
    """True if its workload has the same name as one of another suite. Then the suite is named too."""

    @property
    def id(self) -> str:
        return short_id("s", *self.key)

    @property
    def key(self) -> tuple[str, ...]:
        return (self.machine, self.environment, self.benchmark.name, repr(self.parameters))

    @property
    def label(self) -> str:
        """Name with parameters, such as ``training.Dash.track_throughput(mirrored, 2)``."""
        values = ", ".join(value for _, value in self.parameters)
        return f"{self.benchmark.name}({values})" if values else self.benchmark.name

    @property
    def is_current(self) -> bool:
        """True if the benchmark still has these parameters."""
        choices, values = self.benchmark.choices, [value for _, value in self.parameters]
        return choices is None or (
            len(choices) == len(values) and all(value in known for value, known in zip(values, choices, strict=True))
        )


@dataclass(frozen=True)
class History:
    """Data read from a folder of results."""

    series: tuple[Series, ...]
    commits: tuple[Commit, ...]
    """Commits with results, oldest first."""
    machines: Mapping[str, AsvMachine]
    problems: tuple[HistoryProblem, ...]
    commit_url: str = ""
    """URL to which a commit's hash is appended for a link; empty if it is unknown."""
    project: str = ""
