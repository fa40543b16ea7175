"""Record how a program uses strategies, cluster and coordinator."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from pytest_ddl.run_facts import RunFacts
from pytest_ddl.training import current_call
from pytest_ddl.training.observer import Observer
from pytest_ddl.training.replacing import Replacements


class Setup(Observer):
    """Observer that fills the facts which LINT and PS judge."""

    @contextmanager
    def installed(self) -> Iterator[None]:
        import tensorflow as tf

        self._own: list[dict[str, Any]] = []
        self._before = os.environ.get("TF_CONFIG")
        self._scheduled = 0
        self._own_schedule = False
        self._made_data = False
        self._coordinator: Any = None
        self._running: dict[int, bool] = {}
        """Number of completed steps -> whether closures ran then."""
        self._dispatched = False
        self._lock = threading.Lock()
        made = self._noting(tf.distribute.Strategy.__init__)
        with Replacements().put(tf.distribute.Strategy, "__init__", made), self._watched_coordinator():
            yield

    def before_dispatch(self, traced: bool) -> None:
        self._dispatched = True

    def before_reading(self) -> None:
        if self._own_schedule:
            self._running[self.recorder.completed] = not _idle(self._coordinator)

    def end_run(self) -> Mapping[str, Any]:
        strategy = self.context.strategy
        facts: RunFacts = {
            "replicas": int(strategy.num_replicas_in_sync),
            "dispatched": self._dispatched,
            "own_strategies": [entry for entry in self._own if entry["used"]],
        }
        after = os.environ.get("TF_CONFIG")
        if after != self._before:
            facts["tf_config"] = (_workers(self._before), _workers(after))
        if self._scheduled:
            facts["scheduled"] = self._scheduled
            facts["workers"] = int(self.context.spec.shape.get("workers", 1))
            facts["own_schedule"] = self._own_schedule
            steps = self.recorder.completed
            facts["unfinished"] = self._running.get(steps - 1, False) and (
                steps == 1 or self._running.get(steps, False)
            )
            if self._made_data and self.settings.whole:  # else run.steps lets the workers take one dataset in turn
                facts["data_of_workers"] = True
        if self.recorder.epochs_as_steps:
            facts["epochs_as_steps"] = True
            facts["limit"] = self.settings.steps
        return {"facts": facts}

    def _noting(self, original: Any) -> Any:
        """Return a ``Strategy.__init__`` that also records the new strategy, and whether it is used."""

        def made(strategy: Any, *args: Any, **kwargs: Any) -> None:
            original(strategy, *args, **kwargs)
            name = type(strategy).__name__
            if name.startswith("_"):
                return  # TensorFlow's own default strategy
            entry = {"type": name, "replicas": 0, "used": False}
            self._own.append(entry)
            for method in ("scope", "run"):
                _mark_use(strategy, method, entry)

        return made

    @contextmanager
    def _watched_coordinator(self) -> Iterator[None]:
        """Count closures; more than one at a time means that steps run concurrently."""
        import tensorflow as tf

        from pytest_ddl.training.coordinator import uses_coordinator

        if not uses_coordinator(self.context.strategy):
            yield
            return
        owner = tf.distribute.coordinator.ClusterCoordinator
        original, making = owner.schedule, owner.create_per_worker_dataset

        def create_per_worker_dataset(coordinator: Any, *args: Any, **kwargs: Any) -> Any:
            self._made_data = True
            return making(coordinator, *args, **kwargs)

        def schedule(coordinator: Any, *args: Any, **kwargs: Any) -> Any:
            with self._lock:
                self._coordinator = coordinator
                self._scheduled += 1
                waiting = self._scheduled > 1 and not self.recorder.asynchronous
            if waiting and not _idle(coordinator):
                self.recorder.asynchronous = self._own_schedule = True
            self.recorder.lines.add("schedule")
            with current_call.scheduling():
                pending = original(coordinator, *args, **kwargs)
            if self.settings.one_by_one:
                coordinator.join()
            return pending

        with Replacements() as replaced:
            replaced.put(owner, "schedule", schedule)
            replaced.put(owner, "create_per_worker_dataset", create_per_worker_dataset)
            yield


def _idle(coordinator: Any) -> bool:
    """Return True if a coordinator has nothing to do; an error of an earlier closure is left for the program."""
    try:
        return bool(coordinator.done())
    except Exception:
        return True


def _mark_use(strategy: Any, method: str, entry: dict[str, Any]) -> None:
    original = getattr(strategy, method)

    def used(*args: Any, **kwargs: Any) -> Any:
        entry["used"] = True
        entry["replicas"] = int(strategy.num_replicas_in_sync)
        return original(*args, **kwargs)

    setattr(strategy, method, used)


def _workers(config: str | None) -> int | None:
    """Return the number of training tasks in a ``TF_CONFIG``, or ``None`` if there is none or it is not readable."""
    try:
        cluster = json.loads(config or "").get("cluster", {})
        return sum(len(cluster.get(job, ())) for job in ("chief", "worker"))
    except (ValueError, AttributeError, TypeError):
        return None
