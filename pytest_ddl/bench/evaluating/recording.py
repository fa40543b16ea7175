"""Train a cell with several seeds in the processes of one cluster, and keep the course of each training."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from pytest_ddl.bench.evaluating.records import EvaluatedCell, TrainingCurve
from pytest_ddl.bench.launching.course import RankCourse, train_once
from pytest_ddl.training.settings import RunSettings

if TYPE_CHECKING:
    from pytest_ddl.bench.launching.ranks import Ranks
    from pytest_ddl.harness import Harness


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
                results: list[RankCourse] = ranks.call(
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
