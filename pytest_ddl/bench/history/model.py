"""The history as plain data: machines, commits, benchmarks, and series of points over commits."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any, Literal

ProblemKind = Literal[
    "broken", "cut", "removed", "failed", "gone", "shallow", "unsearched", "outside", "split", "behind"
]
ERRORS: frozenset[ProblemKind] = frozenset({"broken", "cut", "removed", "failed", "gone", "shallow", "unsearched"})
"""Kinds of problem for which ``pytest-ddl history`` does not exit with 0: part of the history is missing."""


def short_id(prefix: str, *parts: str) -> str:
    """The same id for the same finding in every run, so that it can be accepted by name."""
    return f"{prefix}-{hashlib.sha256(chr(0).join(parts).encode()).hexdigest()[:8]}"


def plain(text: str) -> str:
    """A parameter as people write it; asv stores ``repr(value)``."""
    match = re.fullmatch(r"'(.*)'|\"(.*)\"|<class '(.*)'>|<function (\S+) at .*>", text)
    return next((group for group in match.groups() if group is not None), text) if match else text


@dataclass(frozen=True)
class Problem:
    """Something that keeps results out of the history, or makes it less than it seems."""

    kind: ProblemKind
    message: str
    """What is wrong, where, and what to do about it."""
    subject: str
    """The file or benchmark that it is about."""
    detail: str = ""
    """What tells this problem from an earlier one with the same subject; part of the id."""

    @property
    def id(self) -> str:
        return short_id(self.kind, self.subject, self.detail)

    @property
    def error(self) -> bool:
        return self.kind in ERRORS


@dataclass(frozen=True, order=True)
class Commit:
    """A commit in the order of the history."""

    position: int
    """From 0: its place in the history, oldest first."""
    hash: str
    date: int
    """Milliseconds since 1970, as asv stores it."""
    subject: str = ""
    """First line of its message; empty where the repository was not read."""

    @property
    def short(self) -> str:
        return self.hash[:8]

    @property
    def day(self) -> str:
        """The date in UTC as ``2026-09-15``."""
        return datetime.fromtimestamp(self.date / 1000, timezone.utc).strftime("%Y-%m-%d")


@dataclass(frozen=True)
class Machine:
    """Where results come from: what asv's ``machine.json`` says."""

    name: str
    facts: Mapping[str, str]
    """``cpu``, ``num_cpu``, ``ram``, ``os``, ``gpu`` ... as text."""

    @property
    def summary(self) -> str:
        """One line for people: processor, cores, GPU."""
        cores = self.facts.get("num_cpu", "")
        said = [self.facts.get("cpu", ""), f"{cores} cores" if cores else "", self.facts.get("gpu", "")]
        return ", ".join(part for part in said if part) or "no machine facts"


@dataclass(frozen=True)
class Benchmark:
    """An entry of asv's ``benchmarks.json``."""

    name: str
    unit: str
    version: str | None
    parameter_names: tuple[str, ...]
    attributes: Mapping[str, Any] = field(default_factory=dict)
    """All of the entry: asv_runner copies attributes of the function, such as ``higher_is_better``, into it."""
    choices: tuple[frozenset[str], ...] | None = None
    """The values that each parameter has now, as people write them; ``None`` where that is not known."""


Basis = Literal["launches", "samples", "none"]


@dataclass(frozen=True)
class Point:
    """One value of one series at one commit."""

    commit: Commit
    value: float
    """asv's result: the median of its samples, in the benchmark's unit."""
    low: float | None = None
    high: float | None = None
    """The interval, in the benchmark's unit; ``None`` where there is one sample."""
    basis: Basis = "none"
    """What the interval is over: ``launches`` (95 %, Student's t over medians of launches), or ``samples`` (asv's
    99 % interval over samples of one launch, which understates what another launch would show)."""
    samples: int = 1
    version: str | None = None


@dataclass(frozen=True)
class Series:
    """One benchmark with one set of parameters, on one machine in one environment, over commits."""

    machine: str
    environment: str
    benchmark: Benchmark
    parameters: tuple[tuple[str, str], ...]
    """Name and value, as people write them: ``("strategy", "mirrored")``."""
    points: tuple[Point, ...]
    """Of the benchmark's current version, oldest first."""
    dropped: tuple[Point, ...] = ()
    """Of older versions: not comparable, and not shown by asv."""
    failed: tuple[Commit, ...] = ()
    """Commits at which the benchmark failed."""
    skipped: tuple[Commit, ...] = ()
    """Commits at which it said that it could not be measured: n/a."""
    clashes: bool = False
    """Whether its workload goes by the same name as one of another suite: the suite is named too then."""

    @property
    def id(self) -> str:
        return short_id("s", *self.key)

    @property
    def key(self) -> tuple[str, ...]:
        return (self.machine, self.environment, self.benchmark.name, repr(self.parameters))

    @property
    def label(self) -> str:
        """``training.Dash.track_throughput(mirrored, 2)``."""
        values = ", ".join(value for _, value in self.parameters)
        return f"{self.benchmark.name}({values})" if values else self.benchmark.name

    @property
    def is_current(self) -> bool:
        """Whether the benchmark still has these parameters."""
        choices, values = self.benchmark.choices, [value for _, value in self.parameters]
        return choices is None or (
            len(choices) == len(values) and all(value in known for value, known in zip(values, choices, strict=True))
        )

    def parameter(self, name: str, default: str = "") -> str:
        return dict(self.parameters).get(name, default)


@dataclass(frozen=True)
class History:
    """All that was read from a folder of results."""

    series: tuple[Series, ...]
    commits: tuple[Commit, ...]
    """Oldest first."""
    machines: Mapping[str, Machine]
    problems: tuple[Problem, ...]
    commit_url: str = ""
    """What a commit's hash is appended to for a link; empty where it is not known."""
    project: str = ""
