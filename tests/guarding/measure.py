"""Count alarms and misses of the guard over planted bugs and their right twins: ``python -m tests.guarding.measure``.

The program of each planted bug runs with a guard that checks after each step. What a recorder saw beside it is the
truth: the guard must speak exactly if copies of one variable differ, or if weights are not finite.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np

from pytest_ddl.cluster import ship
from pytest_ddl.cluster.explain import explain
from pytest_ddl.cluster.protocol import RequestKind
from pytest_ddl.equivalence.evidence.arrays import same
from pytest_ddl.equivalence.evidence.observe import read_locally
from pytest_ddl.equivalence.runs.remote import run_training
from pytest_ddl.harness import process_harness
from pytest_ddl.items.selection import DdlMark
from pytest_ddl.records import RankRecord, TrainingRecord, VariableKind
from pytest_ddl.training.settings import RunSettings

DEADLINE = 60.0
"""Seconds for one program. Some planted bugs make ranks wait for each other."""
NOT_JUDGED = ("unequal-steps", "examples-duplicated")
"""Causes that the record of variables does not show."""


class GuardedRun:
    """The object ``run`` with a guard that gets each step."""

    def __init__(self, run: Any, every: int) -> None:
        import pytest_ddl

        self._run, self._every = run, every
        self._guard = pytest_ddl.guard(run.strategy, every=every, on_finding="log")
        self.found: list[Any] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._run, name)

    def watch(self, model: Any = None, optimizer: Any = None, variables: Any = None, metrics: Any = None) -> None:
        self._run.watch(model, optimizer, variables, metrics)
        self._guard._copies._watcher.add(model, optimizer, variables)

    def steps(self, *args: Any, **kwargs: Any) -> Iterator[Any]:
        for loss in self._run.steps(*args, **kwargs):
            self._guard.step()
            yield loss

    def record(self, *args: Any, **kwargs: Any) -> None:
        self._run.record(*args, **kwargs)
        self._guard.step()

    def fit(self, model: Any, *args: Any, **kwargs: Any) -> Any:
        from pytest_ddl.keras import ReplicaGuard

        guard = ReplicaGuard(every=self._every, on_finding="log")
        kwargs["callbacks"] = [*(kwargs.get("callbacks") or ()), guard]
        try:
            return self._run.fit(model, *args, **kwargs)
        finally:
            self.found += guard.findings

    def causes(self) -> list[tuple[Any, ...]]:
        """Return cause, step and variable of all findings."""
        return [(one.cause, one.step, one.variable) for one in (*self._guard.findings, *self.found)]


def guarded(train: Callable[[Any], None], every: int, settings: RunSettings) -> tuple[RankRecord, list[Any]]:
    """Run a program on this rank, and return its record and what the guard found."""
    runs: list[GuardedRun] = []

    def wrapped(run: Any) -> None:
        runs.append(GuardedRun(run, every))
        train(runs[-1])

    record = run_training(wrapped, settings)
    return record, [one for run in runs for one in run.causes()]


def truth(records: Sequence[RankRecord]) -> tuple[str, int] | None:
    """Return the first variable whose copies differ, with the step."""
    run = TrainingRecord("any", sum(len(one.replicas) for one in records), tuple(records), None, "native", 0)
    of_batch_normalization = ("moving_mean", "moving_variance")
    for step in range(run.num_steps + 1):
        for variable in run.variables:
            if read_locally(variable) or variable.name.rsplit("/", 1)[-1] in of_batch_normalization:
                continue
            copies = [np.asarray(value) for _rank, _replica, value in run.components(variable.index, step)]
            finite = variable.kind not in (VariableKind.TRAINABLE, VariableKind.SLOT) or all(
                copy.dtype.kind != "f" or bool(np.all(np.isfinite(copy))) for copy in copies
            )
            if any(not same(copy, copies[0]) for copy in copies) or not finite:
                return variable.name, step
    return None


def main(arguments: Sequence[str] | None = None) -> int:
    from tests.planted.catalogue import PLANTED

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--strategy", nargs="+", default=["mirrored", "multi_worker_mirrored"])
    parser.add_argument("--only", default="", help="a part of names")
    parser.add_argument("--which", nargs="+", default=["twin", "sin"])
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=60.0)
    options = parser.parse_args(arguments)
    harness, begun = process_harness(), time.monotonic()
    counts = dict.fromkeys(("right, silent", "FALSE ALARM", "caught", "MISSED", "not run"), 0)
    for strategy in options.strategy:
        for which in options.which:
            for entry in PLANTED:
                if strategy not in entry.strategies or options.only not in entry.name:
                    continue
                if time.monotonic() - begun > 60 * options.minutes:
                    break
                outcome, details = _outcome(harness, strategy, entry, which, options.every)
                counts[outcome] += 1
                if outcome.isupper() or outcome == "not run":
                    print(f"{outcome}: {strategy} {which} {entry.name}: {details}", flush=True)
    print(counts)
    return 0


def _outcome(harness: Any, strategy: str, entry: Any, which: str, every: int) -> tuple[str, str]:
    train = getattr(entry, which)
    with tempfile.TemporaryDirectory() as folder:
        settings = RunSettings(global_batch_size=entry.batch, steps=entry.steps, seed=7, tmp_path=folder)
        job = ship.pack(partial(guarded, train, every), (settings,))
        with harness.cluster(harness.registry.parse_variant(strategy), DdlMark()) as cluster:
            answers = cluster.ask(RequestKind.CALL, job, deadline=time.monotonic() + DEADLINE)
            if not all(answer.ok for answer in answers):
                cluster.retired = "the program failed in it"
                return "not run", explain(answers).strip().splitlines()[0]
            results = [ship.unpack(answer.body) for answer in answers]
            if any(record.failed for record, _found in results):
                cluster.retired = "the program failed in it"
    records = [record for record, _found in results]
    found = [one for one in results[0][1] if one[0] not in NOT_JUDGED]
    wrong = truth(records)
    failed = next((record.error for record in records if record.error is not None), None)
    if wrong is None:
        return (
            ("FALSE ALARM", f"{found}") if found else ("right, silent" if not failed else "not run", f"{failed}"[:200])
        )
    return ("caught", "") if found else ("MISSED", f"{wrong} {f'{failed}'[:200] if failed else ''}")


if __name__ == "__main__":
    raise SystemExit(main())
