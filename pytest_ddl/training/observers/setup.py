"""Facts about the set-up of a run: strategies, cluster and coordinator, as the program uses them."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from pytest_ddl.training.observers.base import Observer
from pytest_ddl.training.replacing import Replacements


class Setup(Observer):
    """Fills ``RankRecord.facts``; LINT and PS judge them.

    ``replicas``: of the strategy that the run is under. ``own_strategies``: what the program made for itself
    and used, as ``{"type": …, "replicas": …}``. ``tf_config``: the cluster in ``TF_CONFIG`` before and after,
    where the program changed it. ``scheduled``: closures given to a coordinator. ``own_schedule``: whether the
    program itself scheduled several at a time, so that its recorded steps are no single closures. ``dispatched``:
    whether the strategy of the run was used to run anything.
    """

    @contextmanager
    def installed(self) -> Iterator[None]:
        import tensorflow as tf

        self._own: list[dict[str, Any]] = []
        self._before = os.environ.get("TF_CONFIG")
        self._scheduled = 0
        self._own_schedule = False
        self._dispatched = False
        self._lock = threading.Lock()
        with Replacements() as replaced, self._watched_coordinator():
            replaced.put(tf.distribute.Strategy, "__init__", self._noting(tf.distribute.Strategy.__init__))
            yield

    def before_dispatch(self) -> None:
        self._dispatched = True

    def end_run(self) -> Mapping[str, Any]:
        strategy = self.context.strategy
        facts: dict[str, Any] = {
            "replicas": int(strategy.num_replicas_in_sync),
            "expected_replicas": self.context.num_replicas,
            "dispatched": self._dispatched,
            "own_strategies": [entry for entry in self._own if entry["used"]],
        }
        after = os.environ.get("TF_CONFIG")
        if after != self._before:
            facts["tf_config"] = (_workers(self._before), _workers(after))
        if self._scheduled:
            facts["scheduled"] = self._scheduled
            facts["workers"] = self._number_of_workers()
            facts["own_schedule"] = self._own_schedule
        if self.recorder.epochs_as_steps:
            facts["epochs_as_steps"] = True
            facts["limit"] = self.settings.steps
        return {"facts": facts}

    def _noting(self, original: Any) -> Any:
        """``Strategy.__init__`` that keeps note of what is made, and whether it is used."""

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
        observer = self

        def counting(original: Any) -> Any:
            def schedule(coordinator: Any, *args: Any, **kwargs: Any) -> Any:
                with observer._lock:
                    observer._scheduled += 1
                    waiting = observer._scheduled > 1 and not observer.recorder.asynchronous
                if waiting and not _idle(coordinator):
                    observer.recorder.asynchronous = observer._own_schedule = True
                pending = original(coordinator, *args, **kwargs)
                if observer.settings.one_by_one:
                    coordinator.join()
                return pending

            return schedule

        owner = tf.distribute.coordinator.ClusterCoordinator
        with Replacements() as replaced:
            replaced.put(owner, "schedule", counting(owner.schedule))
            yield

    def _number_of_workers(self) -> int:
        return int(self.context.spec.shape.get("workers", 1))


def _idle(coordinator: Any) -> bool:
    """Whether a coordinator has nothing to do; an error of an earlier closure is for the program to see."""
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
    """Number of training tasks that a ``TF_CONFIG`` names, ``None`` without one or where it cannot be read."""
    try:
        cluster = json.loads(config or "").get("cluster", {})
        return sum(len(cluster.get(job, ())) for job in ("chief", "worker"))
    except (ValueError, AttributeError, TypeError):
        return None
