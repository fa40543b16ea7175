"""Results of an evaluation as plain data for JSON: cells, their trainings and verdicts, launches, and the sweep."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from pytest_ddl.bench.launching.records import Launch
from pytest_ddl.bench.matrix import Matrix
from pytest_ddl.bench.training_to_target import StepsToTarget, TargetTrial
from pytest_ddl.json_records import JsonRecord
from pytest_ddl.messages import shortened

FORMAT = 1
"""Version of the JSON. It changes if a field changes its meaning."""
LINE = 240
"""Most characters of a reason in one line."""
REFERENCE = "one_device"
"""Strategy that all cells are compared with."""


class FormatError(ValueError):
    """Raised if a file holds no evaluation that this version can read. The message is one line."""


@dataclass(frozen=True)
class EvaluatedCell:
    """One strategy with one number of replicas."""

    strategy: str
    replicas: int
    """Requested replicas; under ``parameter_server`` workers, under ``model_parallel`` devices of the mesh."""
    variant: str
    """Variant of the strategy; the strategy itself if it has none with this number of replicas."""
    batch: int = 0
    """Global batch size in examples; of one step of a worker under ``parameter_server``."""
    reason: str = ""
    """Why the cell cannot run here; empty if it can."""
    kind: str = ""
    """``asynchronous`` (workers do not step together), ``copies`` (gradients are added on one device, without
    collectives), ``global`` (variables are sharded over a mesh), or empty."""
    pinned: bool = True
    """True if each replica has cores of its own. On CPUs it is False if there are fewer cores than replicas."""

    @property
    def is_reference(self) -> bool:
        return self.strategy == REFERENCE


@dataclass(frozen=True)
class TrainingCurve:
    """One training of a cell with one seed, from its first step to its last."""

    variant: str
    batch: int
    """Global batch size in examples."""
    seed: int
    losses: tuple[float | None, ...]
    """As the further fields: see :class:`pytest_ddl.bench.launching.course.RankCourse`."""
    marks: tuple[int, ...] = ()
    values: Mapping[str, tuple[tuple[int, float], ...]] = field(default_factory=dict)
    running_mean: bool = False
    staleness: Mapping[str, int] | None = None
    moved: bool = False
    """True if every number of the data was moved by one unit in the last place, to measure the effect of rounding."""

    @property
    def steps(self) -> int:
        return len(self.losses)

    @property
    def epochs(self) -> list[tuple[int, int]]:
        """First and last step of each loop over the data, counted from 0, the last one excluded."""
        starts = [mark for mark in self.marks if mark < self.steps]
        return list(zip(starts, [*starts[1:], self.steps], strict=True)) if self.steps else []


@dataclass(frozen=True)
class CellVerdict:
    """Result of the comparison with one device."""

    verdict: str
    """``pass``, ``fail``, ``known`` or ``inconclusive``; see :class:`pytest_ddl.equivalence.verdict.report.Report`."""
    headline: str
    """Result in one line: the worst finding, or the first reason why nothing was decided."""
    causes: tuple[str, ...] = ()
    report: str = ""
    """Whole report; empty for a pass."""
    seconds: float = 0.0

    @property
    def is_correct(self) -> bool:
        """True for a pass, and for a known behavior of a framework, which is no fault of the program."""
        return self.verdict in ("pass", "known")


@dataclass(frozen=True)
class Identity:
    """Everything that must be equal for an evaluation to continue."""

    target: str
    """Training function, as the user named it."""
    digest: str
    """SHA-256 of the files of the program."""
    options: Mapping[str, Any]
    versions: Mapping[str, str]
    machine: Mapping[str, str]

    def differences(self, other: Identity) -> list[str]:
        """Return what differs between two identities, in words: the older value, then the newer one."""
        differing = []
        for name in ("target", "digest"):
            mine, its = getattr(self, name), getattr(other, name)
            if mine != its:
                differing.append("the program has changed" if name == "digest" else f"{name} {mine} → {its}")
        for name in ("options", "versions", "machine"):
            mine, its = getattr(self, name), getattr(other, name)
            keys = [key for key in {**mine, **its} if mine.get(key) != its.get(key)]
            differing += [f"{key} {_shown(mine.get(key))} → {_shown(its.get(key))}" for key in keys]
        return differing


def _shown(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


@dataclass(frozen=True)
class Evaluation(JsonRecord):
    """All results so far. A part that is missing has not run yet."""

    identity: Identity
    cells: tuple[EvaluatedCell, ...]
    started: str
    """Time of the start, in UTC."""
    command: str
    curves: tuple[TrainingCurve, ...] = ()
    verdicts: Mapping[str, CellVerdict] = field(default_factory=dict)
    """Variant -> result of its comparison."""
    launches: tuple[Launch, ...] = ()
    """Measured launches of steady steps, in the order in which they were made."""
    failures: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """Variant -> part (``comparing``, ``training``, ``measuring``) -> why it failed."""
    trials: tuple[TargetTrial, ...] = ()
    """Trainings of one device to the target, with other batch sizes and learning rates."""
    swept: tuple[int, ...] = ()
    """Batch sizes whose trials are complete."""
    sweep_failure: str = ""
    target: float | None = None
    """Loss whose steps are counted; ``None`` if it is not known yet, or no loss was reported."""
    notes: tuple[str, ...] = ()
    seconds: float = 0.0
    """Seconds of all sessions together."""
    complete: bool = False

    @property
    def scaling(self) -> str:
        """Scaling rule: ``weak`` (batch per replica fixed) or ``strong`` (global batch fixed)."""
        return "weak" if self.identity.options["batch_rule"] == "replica" else "strong"

    @cached_property
    def matrix(self) -> Matrix:
        """Launches as a matrix. A cell that cannot run is skipped in it; launches of a cell of which one failed are
        left out, as in :func:`pytest_ddl.bench.measure`."""
        failed = {name: parts["measuring"] for name, parts in self.failures.items() if "measuring" in parts}
        kept = tuple(item for item in self.launches if item.strategy not in failed)
        skipped = {cell.variant: cell.reason for cell in self.cells if cell.reason}
        return Matrix(kept, skipped, self.scaling, failed)

    @property
    def sweep(self) -> StepsToTarget | None:
        """Steps to the target by batch size; ``None`` if there are none."""
        return StepsToTarget(self.target, self.trials) if self.target is not None and self.trials else None

    def curves_of(self, variant: str, batch: int | None = None, *, moved: bool = False) -> list[TrainingCurve]:
        """Return the trainings of a variant by seed, of one global batch size or of all."""
        curves = [
            one
            for one in self.curves
            if one.variant == variant and one.moved == moved and (batch is None or one.batch == batch)
        ]
        return sorted(curves, key=lambda one: one.seed)

    def with_failure(self, variant: str, part: str, why: str) -> Evaluation:
        parts = {**self.failures.get(variant, {}), part: why}
        return replace(self, failures={**self.failures, variant: parts})

    def as_json(self) -> dict[str, Any]:
        """Return plain data. ``matrix`` holds the launches, for :meth:`pytest_ddl.bench.Matrix.from_json`."""
        plain = super().as_json()
        del plain["launches"]
        # Launches that the matrix leaves out are kept beside it, so that nothing that was measured is lost.
        left = [one.as_json() for one in self.launches if one not in self.matrix.launches]
        return {"format": FORMAT, **plain, "matrix": self.matrix.as_json(), "launches_left_out": left}

    @classmethod
    def from_json(cls, data: Any, *, other_version: bool = False) -> Evaluation:
        """Return the evaluation that :meth:`as_json` wrote.

        :raises FormatError: if the data is no evaluation, or one of another format.
        """
        if not isinstance(data, Mapping) or data.get("format") != FORMAT:
            found = data.get("format") if isinstance(data, Mapping) else None
            raise FormatError(f"it is no evaluation of format {FORMAT} (found: {found!r})")
        plain = {name: value for name, value in data.items() if name != "format"}
        try:
            launches = [*plain.pop("matrix")["launches"], *plain.pop("launches_left_out")]
            return super().from_json({**plain, "launches": launches}, other_version=other_version)
        except (KeyError, TypeError, ValueError) as error:
            raise FormatError(f"it is damaged: {type(error).__name__} {error}") from None


def one_line(why: str) -> str:
    """Return the reason of a failure in one line, without its traceback and the output of the ranks."""
    message = shortened(why.partition("\nTraceback")[0].strip())
    return textwrap.shorten(message, LINE, placeholder=" ...")
