"""Record whole trainings of a cell: losses, reported numbers and staleness; the first half runs in the ranks."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_ddl.bench.evaluating.records import EvaluatedCell, TrainingCurve
from pytest_ddl.cluster.worker import current_rank
from pytest_ddl.notes import NoteKind
from pytest_ddl.strategies.base import RankContext
from pytest_ddl.training import environment, values
from pytest_ddl.training.coordinator import STALENESS
from pytest_ddl.training.fitting import RUNNING_MEAN
from pytest_ddl.training.listener import StepListener
from pytest_ddl.training.run import Run
from pytest_ddl.training.settings import RunSettings

if TYPE_CHECKING:
    from pytest_ddl.bench.launching.ranks import Ranks
    from pytest_ddl.harness import Harness


@dataclass(frozen=True)
class RankCurve:
    """Observations of one rank in a training; the fields are those of :class:`TrainingCurve`."""

    losses: tuple[float | None, ...]
    marks: tuple[int, ...]
    values: dict[str, tuple[tuple[int, float], ...]]
    running_mean: bool
    staleness: dict[str, int] | None
    skipped: str = ""
    """Why the training function trained nothing; empty if it trained."""


class CurveRecorder(StepListener):
    """Listener that keeps the loss of each step and every number that the program reports."""

    def __init__(self, context: RankContext, limit: int | None) -> None:
        self._context = context
        self._limit = limit
        self._losses: list[float | None] = []
        self._marks: list[int] = []
        self._values: dict[str, list[tuple[int, float]]] = {}
        self._staleness: dict[str, int] = {}
        self._running_mean = False
        self._notes: list[str] = []

    @property
    def completed(self) -> int:
        return len(self._losses)

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
        self._losses.append(number)
        for name, value in (shown or {}).items():
            if name == RUNNING_MEAN:
                self._running_mean = True
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

    def curve(self) -> RankCurve:
        return RankCurve(
            losses=tuple(self._losses),
            marks=tuple(self._marks),
            values={name: tuple(found) for name, found in self._values.items()},
            running_mean=self._running_mean,
            staleness=self._staleness or None,
            skipped="; ".join(self._notes) if not self._losses else "",
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


def train_once(train: Callable[[Any], Any], settings: RunSettings) -> RankCurve:
    """Run a training function on this rank to its end, and return what it reported."""
    context = current_rank()
    assert context is not None
    folder = Path(settings.tmp_path) / f"rank-{context.rank}"
    folder.mkdir(parents=True, exist_ok=True)
    with environment.prepared(settings, context.rank):
        recorder = CurveRecorder(context, settings.steps)
        run = Run(replace(settings, rank_path=str(folder)), context, recorder)
        train(run)
        run.end()
    return recorder.curve()


# -- in the process of the command -----------------------------------------------------------------


class Trainer:
    """Trains a cell with several seeds in the processes of one fresh cluster."""

    def __init__(
        self, harness: Harness, train: Callable[[Any], Any], cell: EvaluatedCell, device: str, timeout: float
    ) -> None:
        self._harness, self._train, self._cell = harness, train, cell
        self._device, self._timeout = device, timeout
        self._stack = ExitStack()
        self._ranks: Ranks | None = None

    def __call__(self, batch: int, seed: int, steps: int | None, *, moved: bool = False) -> TrainingCurve:
        """Train once.

        :param moved: move every number of the data by one unit in the last place.
        :raises BenchError: if a rank fails, or nothing was trained.
        """
        from pytest_ddl.bench.launching.ranks import BenchError, scratch_folder

        ranks = self._ranks = self._ranks or self._start()
        overlaps = self._cell.kind == "asynchronous"
        with scratch_folder(self._harness.shared_folder, "evaluate-") as folder:
            settings = RunSettings(
                global_batch_size=batch,
                steps=steps,
                seed=seed,
                perturbation=seed if moved else 0,
                tmp_path=str(folder),
                observe=False,
                overlap=overlaps,
                staleness=overlaps,
            )
            try:
                results: list[RankCurve] = ranks.call(
                    train_once,
                    self._train,
                    settings,
                    deadline=time.monotonic() + self._timeout,
                    doing=f"in training with seed {seed}",
                )
            except BenchError:
                # Ranks that failed may wait for each other, so the next training gets new ones.
                self.close()
                raise
        best = max(results, key=lambda one: sum(loss is not None for loss in one.losses))
        if not best.losses:
            raise BenchError(
                f"the training function trained no step{f' ({best.skipped})' if best.skipped else ''}: train with "
                "run.steps, run.batches and run.record, or run.fit"
            )
        merged = {name: found for one in reversed(results) for name, found in one.values.items()}
        return TrainingCurve(
            variant=self._cell.variant,
            batch=batch,
            seed=seed,
            losses=best.losses,
            marks=best.marks,
            values=merged,
            running_mean=best.running_mean,
            staleness=best.staleness,
            moved=moved,
        )

    def close(self) -> None:
        """End the processes."""
        self._stack.close()
        self._ranks = None

    def _start(self) -> Ranks:
        from pytest_ddl.bench.launching.ranks import fresh_ranks

        spec = self._harness.registry.parse_variant(self._cell.variant)
        return self._stack.enter_context(fresh_ranks(self._harness, spec, self._device))
