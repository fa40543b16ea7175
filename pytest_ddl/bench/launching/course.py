"""Record the course of a training on a rank: the loss of each step, and every number that the program reports."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from pytest_ddl.cluster.worker import own_rank
from pytest_ddl.notes import NoteKind
from pytest_ddl.strategies.base import RankContext
from pytest_ddl.training import environment, values
from pytest_ddl.training.coordinator import STALENESS
from pytest_ddl.training.fitting import RUNNING_MEAN
from pytest_ddl.training.listener import StepListener
from pytest_ddl.training.run import Run
from pytest_ddl.training.settings import RunSettings


@dataclass(frozen=True)
class RankCourse:
    """Observations of one rank in a training."""

    losses: tuple[float | None, ...]
    """Loss of each step; ``None`` if the program does not report one number."""
    marks: tuple[int, ...]
    """Steps after which a loop over the data, or an epoch of ``fit``, began; the first is 0."""
    values: dict[str, tuple[tuple[int, float], ...]]
    """Name -> (completed steps, number) of each number that the program reported."""
    running_mean: bool
    """True if the losses are those that Keras shows: means over the epoch so far."""
    staleness: dict[str, int] | None
    """Other steps that ended while a step ran -> number of such steps; ``None`` if steps do not overlap."""
    skipped: str = ""
    """Why the training function trained nothing; empty if it trained."""


class CourseRecorder(StepListener):
    """Listener that keeps the loss of each step and every number that the program reports."""

    def __init__(self, context: RankContext, limit: int | None) -> None:
        self._context = context
        self._limit = limit
        self.losses: list[float | None] = []
        self._marks: list[int] = []
        self._values: dict[str, list[tuple[int, float]]] = {}
        self._staleness: dict[str, int] = {}
        self._running_mean = False
        self._notes: list[str] = []

    @property
    def completed(self) -> int:
        return len(self.losses)

    @property
    def reached_limit(self) -> bool:
        return self._limit is not None and self.completed >= self._limit

    def note(self, kind: NoteKind, text: str) -> None:
        self._notes.append(text)

    def begin(self) -> None:
        if not self._marks or self._marks[-1] != self.completed:
            self._marks.append(self.completed)

    def end_step(
        self, loss: Any = None, shown: Mapping[str, Any] | None = None, traces: int | None = None, left: int = 0
    ) -> float | None:
        number = self._read(loss)
        self.losses.append(number)
        for name, value in (shown or {}).items():
            if name == RUNNING_MEAN:
                self._running_mean = self._running_mean or loss is not None
            elif name == STALENESS:
                key = str(int(value))
                self._staleness[key] = self._staleness.get(key, 0) + 1
            else:
                self._keep(name, value)
        return number

    def value(self, name: str, number: Any, step: str | None) -> None:
        self._keep(name, number, later=step == "next")

    def result(self, name: str, value: Any) -> None:
        """Keep the numbers of ``fit`` (one for each epoch), and those of ``evaluate``."""
        if name == "fit" and isinstance(value, Mapping):
            for key, found in value.items():
                ends = [*self._marks[1:], self.completed][-len(found) :] if isinstance(found, list) else []
                for step, number in zip(ends, found if ends else (), strict=False):
                    self._keep(key, number, at=step)
        elif name == "evaluate":
            named = value if isinstance(value, Mapping) else dict(zip(_names(value), _listed(value), strict=True))
            for key, number in named.items():
                self._keep(f"evaluate_{key}", number)

    def course(self) -> RankCourse:
        return RankCourse(
            losses=tuple(self.losses),
            marks=tuple(self._marks),
            values={name: tuple(found) for name, found in self._values.items()},
            running_mean=self._running_mean,
            staleness=self._staleness or None,
            skipped="; ".join(self._notes) if not self.losses else "",
        )

    def _read(self, loss: Any) -> float | None:
        """Return the loss as a number; of a distributed value, the mean over this rank's replicas."""
        number = values.scalar(loss)
        if number is not None or loss is None:
            return number
        parts = [values.scalar(part) for part in self._context.strategy.experimental_local_results(loss)]
        known = [part for part in parts if part is not None]
        return sum(known) / len(known) if known and len(known) == len(parts) else None

    def _keep(self, name: str, value: Any, *, later: bool = False, at: int | None = None) -> None:
        number = self._read(value)
        if number is not None:
            step = self.completed + later if at is None else at
            self._values.setdefault(name, []).append((step, number))


def _listed(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list | tuple) else [value]


def _names(value: Any) -> list[str]:
    """Return names for the results of ``evaluate``: Keras puts the loss first, and does not name a list's numbers."""
    return ["loss", *(str(place) for place in range(1, len(_listed(value))))]


class CourseToTarget(CourseRecorder):
    """Course that ends at a target, or as soon as it cannot reach it any more.

    :param length: number of steps over which the loss is averaged.
    """

    def __init__(self, context: RankContext, limit: int | None, target: float, length: int) -> None:
        super().__init__(context, limit)
        self._target, self._length = target, length
        self.reached: int | None = None
        """Step at which the averaged loss reached the target."""

    @property
    def averaged(self) -> float:
        mean = averaged(self.losses, self._length)
        return math.nan if mean is None else mean

    @property
    def reached_limit(self) -> bool:
        diverged = bool(self.losses) and not math.isfinite(self.losses[-1] or 0.0)
        return self.reached is not None or diverged or super().reached_limit

    def end_step(
        self, loss: Any = None, shown: Mapping[str, Any] | None = None, traces: int | None = None, left: int = 0
    ) -> float | None:
        if loss is not None and RUNNING_MEAN in (shown or {}):
            raise ValueError(
                "Keras shows the mean loss over the epoch so far, not the loss of a step: train with run.steps, or "
                "with run.batches and run.record(loss=…)"
            )
        number = super().end_step(loss, shown, traces, left)
        if number is None:
            raise ValueError("a step has no loss: give run.record(loss=…) one number, or return it from train_step")
        if self.reached is None and self.completed >= self._length and self.averaged <= self._target:
            self.reached = self.completed
        return number


def averaged(losses: Sequence[float | None], length: int) -> float | None:
    """Return the mean of the last ``length`` losses: ``None`` if one is missing, NaN if one is not finite."""
    last = losses[-length:]
    known = [loss for loss in last if loss is not None]
    if not last or len(known) < len(last):
        return None
    return math.fsum(known) / len(known) if all(map(math.isfinite, known)) else math.nan


def steps_to(losses: Sequence[float | None], target: float, length: int) -> int | None:
    """Return the first step at which the averaged loss is at the target; ``None`` if it never is.

    Before ``length`` steps, nothing counts.
    """
    for step in range(length, len(losses) + 1):
        mean = averaged(losses[step - length : step], length)
        if mean is not None and mean <= target:
            return step
    return None


AnyCourse = TypeVar("AnyCourse", bound=CourseRecorder)


def run_course(
    train: Callable[[Any], Any], settings: RunSettings, recorder_of: Callable[[RankContext], AnyCourse]
) -> AnyCourse:
    """Run a training function on this rank to its end, and return the recorder with what it reported."""
    context = own_rank()
    with environment.prepared(settings, context.rank):
        recorder = recorder_of(context)
        run = Run(settings.of_rank(context.rank), context, recorder)
        train(run)
        run.end()
    return recorder


def train_once(train: Callable[[Any], Any], settings: RunSettings) -> RankCourse:
    """Run a training function on this rank to its end, and return what it reported."""
    return run_course(train, settings, lambda context: CourseRecorder(context, settings.steps)).course()
