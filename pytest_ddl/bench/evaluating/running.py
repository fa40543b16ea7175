"""Run the parts of an evaluation one after the other, and keep the results of each before the next one begins."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from pytest_ddl.bench.evaluating import judging
from pytest_ddl.bench.evaluating.plan import EvaluationPlan, cores_for, learning_rate_of
from pytest_ddl.bench.evaluating.ranking import noisy
from pytest_ddl.bench.evaluating.recording import Trainer
from pytest_ddl.bench.evaluating.records import (
    REFERENCE,
    CellVerdict,
    EvaluatedCell,
    Evaluation,
    TrainingCurve,
    one_line,
)
from pytest_ddl.bench.launching.ranks import BenchError
from pytest_ddl.bench.outcome import UsageError
from pytest_ddl.bench.training_to_target import TargetTrial

if TYPE_CHECKING:
    from pytest_ddl.equivalence.verdict.report import Report
    from pytest_ddl.harness import Harness

FACTORS = (0.5, 1.0, 2.0, 4.0)
"""Learning rates of the sweep, as multiples of the program's own."""
MORE_LAUNCHES = 3
"""Most further launches of a cell whose launches differ more than those of the others."""
MOVED = 3
"""Most seeds with which one device trains once more with moved data. Their mean square is the effect of rounding."""
WIDENED = 3
"""Number of times that the sweep goes on beyond the smallest or the largest learning rate, if that one was the best."""


class EvaluationError(RuntimeError):
    """Raised if the program cannot be evaluated at all. The message says why."""


class AtItsOwnRate:
    """Training function without a learning rate to tune, with the signature that the sweep calls."""

    def __init__(self, train: Callable[[Any], Any]) -> None:
        self.func = train

    def __call__(self, run: Any, learning_rate: float) -> Any:
        return self.func(run)


@dataclass(frozen=True)
class EvaluationPart:
    """Part of an evaluation whose results are kept together."""

    name: str
    """Text of the progress line."""
    run: Callable[[Evaluation], Evaluation]


class EvaluationRunner:
    """Runner of an evaluation, from the results that are there already to its end.

    :param tell: function that shows a line to the user.
    :param keep: function that keeps the results so far.
    """

    def __init__(
        self,
        harness: Harness,
        train: Callable[[Any], Any],
        plan: EvaluationPlan,
        tell: Callable[[str], None],
        keep: Callable[[Evaluation], None],
    ) -> None:
        self._harness, self._train, self._plan = harness, train, plan
        self._tell, self._keep = tell, keep
        self._trainer: tuple[str, Trainer] | None = None
        self._given_up: set[str] = set()
        """Variants of which a further launch has failed."""

    def run(self, evaluation: Evaluation) -> Evaluation:
        """Run all parts that are missing.

        :raises EvaluationError: if one device cannot train, so that there is nothing to compare with.
        :raises UsageError: if the program does not report the number that is to be compared.
        """
        started, before, done = time.monotonic(), evaluation.seconds, 0
        self._tell_skipped(evaluation)
        try:
            while missing := list(self._missing(evaluation)):
                total = done + len(missing)
                self._tell(
                    f"[{done + 1}/{total}] {missing[0].name}{_time_left(time.monotonic() - started, done, total)}"
                )
                found = missing[0].run(evaluation)
                evaluation = replace(found, seconds=before + time.monotonic() - started)
                self._keep(evaluation)
                done += 1
        finally:
            self._end_trainer()
        evaluation = replace(evaluation, complete=True)
        self._keep(evaluation)
        return evaluation

    # -- the parts, in order ---------------------------------------------------------------------

    def _missing(self, now: Evaluation) -> Iterator[EvaluationPart]:
        """Yield the parts that are missing, as far as the results so far show it."""
        yield from self._reference_parts(now)
        for cell in now.cells:
            if not cell.reason and not cell.is_reference:
                yield from self._cell_parts(now, cell)
        yield from self._launch_parts(now)
        for batch in self._plan.batch_sizes:
            if batch not in now.swept and not now.sweep_failure:
                yield EvaluationPart(f"steps to the target with a batch of {batch}", partial(self._swept, batch=batch))

    def _reference_parts(self, now: Evaluation) -> Iterator[EvaluationPart]:
        """Train one device with the global batch of every cell, and once more with moved data."""
        reference = next(cell for cell in now.cells if cell.is_reference)
        batches = [reference.batch, *(cell.batch for cell in now.cells if not cell.reason)]
        for batch in dict.fromkeys(batches):
            for seeds, moved, what in (
                (self._seeds, False, ""),
                (self._seeds[:MOVED], True, ", data moved by rounding"),
            ):
                known = {one.seed for one in now.curves_of(REFERENCE, batch, moved=moved)}
                for seed in seeds:
                    if seed not in known:
                        yield EvaluationPart(
                            f"{REFERENCE}: training with a batch of {batch}, seed {seed}{what}",
                            partial(self._reference_trained, cell=reference, batch=batch, seed=seed, moved=moved),
                        )

    def _cell_parts(self, now: Evaluation, cell: EvaluatedCell) -> Iterator[EvaluationPart]:
        failed = now.failures.get(cell.variant, {})
        if cell.variant not in now.verdicts and "comparing" not in failed:
            yield EvaluationPart(f"{cell.variant}: comparing with one device", partial(self._compared, cell=cell))
        known = {one.seed for one in now.curves_of(cell.variant, cell.batch)}
        for seed in self._seeds:
            if seed not in known and "training" not in failed:
                yield EvaluationPart(
                    f"{cell.variant}: training with seed {seed}", partial(self._trained, cell=cell, seed=seed)
                )

    def _launch_parts(self, now: Evaluation) -> Iterator[EvaluationPart]:
        """Measure all cells in turns, so that a slow phase of the machine affects all of them."""
        launched = {cell: sum(one.strategy == cell.variant for one in now.launches) for cell in now.cells}
        planned, complete = self._plan.launches, True
        for number in range(1, planned + 1):
            for cell in now.cells:
                if _can_be_measured(now, cell) and launched[cell] < number:
                    complete = False
                    name = f"{cell.variant}: measuring launch {number} of {planned}"
                    yield EvaluationPart(name, partial(self._measured, cell=cell))
        # A disturbed launch would leave its cell without a place among the others.
        disturbed = set(noisy(now)) - self._given_up if complete else set()
        for cell in sorted((cell for cell in now.cells if cell.variant in disturbed), key=launched.__getitem__):
            if launched[cell] < planned + MORE_LAUNCHES:
                name = f"{cell.variant}: measuring launch {launched[cell] + 1}, because the others differ"
                yield EvaluationPart(name, partial(self._measured_again, cell=cell))

    # -- what a part does ------------------------------------------------------------------------

    def _reference_trained(
        self, evaluation: Evaluation, cell: EvaluatedCell, batch: int, seed: int, moved: bool
    ) -> Evaluation:
        from pytest_ddl.cluster.cluster import ClusterError

        try:
            curve = self._train_once(cell, batch, seed, moved)
        except (BenchError, ClusterError) as error:
            raise EvaluationError(f"the program does not train on one device: {error}") from None
        try:
            judging.choose_metric([curve], self._plan.metric)
        except ValueError as error:
            raise UsageError(f"--metric={self._plan.metric}: {error}") from None
        evaluation = replace(evaluation, curves=(*evaluation.curves, curve))
        if evaluation.target is None and not moved and batch == cell.batch:
            evaluation = replace(evaluation, target=self._target(evaluation, cell))
        return evaluation

    def _target(self, evaluation: Evaluation, reference: EvaluatedCell) -> float | None:
        if self._plan.target is not None:
            return self._plan.target
        curves = evaluation.curves_of(REFERENCE, reference.batch)
        if len(curves) < self._plan.seeds:
            return None
        return judging.default_target(curves, judging.window_of(curves[0]))

    def _compared(self, evaluation: Evaluation, cell: EvaluatedCell) -> Evaluation:
        from pytest_ddl.cluster.cluster import ClusterError
        from pytest_ddl.equivalence.runs.api import check_training

        self._end_trainer()
        started = time.monotonic()
        try:
            report = check_training(
                self._train,
                cell.variant,
                global_batch_size=cell.batch,
                steps=self._plan.check_steps,
                device=self._plan.device,
                timeout=self._plan.timeout,
            )
        except ClusterError as error:
            self._tell(f"  {cell.variant}: {one_line(str(error))}")
            return evaluation.with_failure(cell.variant, "comparing", str(error))
        verdict = verdict_of(report, time.monotonic() - started)
        self._tell(f"  {cell.variant}: {verdict.verdict}: {verdict.headline}")
        return replace(evaluation, verdicts={**evaluation.verdicts, cell.variant: verdict})

    def _trained(self, evaluation: Evaluation, cell: EvaluatedCell, seed: int) -> Evaluation:
        from pytest_ddl.cluster.cluster import ClusterError

        try:
            curve = self._train_once(cell, cell.batch, seed)
        except (BenchError, ClusterError) as error:
            self._tell(f"  {cell.variant}: {one_line(str(error))}")
            return evaluation.with_failure(cell.variant, "training", str(error))
        return replace(evaluation, curves=(*evaluation.curves, curve))

    def _measured(self, evaluation: Evaluation, cell: EvaluatedCell) -> Evaluation:
        from pytest_ddl.bench.launching.launch import launch
        from pytest_ddl.cluster.cluster import ClusterError

        self._end_trainer()
        cores = cores_for(self._harness, cell, evaluation.cells)
        spec = self._harness.registry.parse_variant(cell.variant)
        try:
            launched = launch(self._harness, self._train, spec, self._plan.bench(cell), cores_per_replica=cores)
        except (BenchError, ClusterError) as error:
            self._tell(f"  {cell.variant}: {one_line(str(error))}")
            return evaluation.with_failure(cell.variant, "measuring", str(error))
        return replace(evaluation, launches=(*evaluation.launches, launched))

    def _measured_again(self, evaluation: Evaluation, cell: EvaluatedCell) -> Evaluation:
        """Measure a cell that has all of its planned launches. It keeps these if this one fails."""
        extended = self._measured(evaluation, cell)
        if len(extended.launches) > len(evaluation.launches):
            return extended
        self._given_up.add(cell.variant)
        return evaluation

    def _swept(self, evaluation: Evaluation, batch: int) -> Evaluation:
        from pytest_ddl.bench.training_to_target import steps_to_target

        window = judging.window_for(evaluation)
        if evaluation.target is None or window is None:
            return replace(evaluation, sweep_failure="no loss of a step was reported, so there is no target")
        base = learning_rate_of(self._train)
        train = self._train if base is not None else AtItsOwnRate(self._train)
        rates = [factor * base for factor in FACTORS] if base is not None else [1.0]
        trials: list[TargetTrial] = []
        # As many examples as the longest training of a cell, so that a target is not given up too early.
        longest = max(curve.steps * curve.batch for curve in evaluation.curves)
        try:
            for _ in range(1 + WIDENED):
                found = steps_to_target(
                    train,
                    evaluation.target,
                    [batch],
                    rates,
                    max_steps=max(1, longest // batch),
                    window=window,
                    device=self._plan.device,
                    timeout=self._plan.timeout,
                )
                trials += found.trials
                rates = _beyond(trials)
                if base is None or not rates:
                    break
        except (BenchError, ValueError) as error:
            self._tell(f"  steps to the target: {one_line(str(error))}")
            return replace(evaluation, sweep_failure=one_line(str(error)))
        return replace(evaluation, trials=(*evaluation.trials, *trials), swept=(*evaluation.swept, batch))

    # --------------------------------------------------------------------------------------------

    def _train_once(self, cell: EvaluatedCell, batch: int, seed: int, moved: bool = False) -> TrainingCurve:
        if self._trainer is None or self._trainer[0] != cell.variant:
            self._end_trainer()
            trainer = Trainer(self._harness, self._train, cell, self._plan.device, self._plan.timeout)
            self._trainer = (cell.variant, trainer)
        return self._trainer[1](batch, seed, self._plan.steps_for(batch), moved=moved)

    def _end_trainer(self) -> None:
        if self._trainer is not None:
            self._trainer[1].close()
            self._trainer = None

    @property
    def _seeds(self) -> range:
        return range(self._plan.first_seed, self._plan.first_seed + self._plan.seeds)

    def _tell_skipped(self, evaluation: Evaluation) -> None:
        for cell in evaluation.cells:
            if cell.reason:
                self._tell(f"{cell.variant} cannot run here: {cell.reason}")


def _can_be_measured(evaluation: Evaluation, cell: EvaluatedCell) -> bool:
    """Return False for a cell that cannot run, or that failed in training or in an earlier launch."""
    return not cell.reason and not {"training", "measuring"} & set(evaluation.failures.get(cell.variant, {}))


def _time_left(elapsed: float, done: int, total: int) -> str:
    # The first parts say little about the others.
    if done < 3:
        return ""
    return f" ({_clock(elapsed)}, about {_clock(elapsed / done * (total - done))} left)"


def verdict_of(report: Report, seconds: float) -> CellVerdict:
    """Return the verdict of a comparison with its reason in one line."""
    causes = tuple(dict.fromkeys(finding.cause for finding in report.findings if finding.cause))
    first = next((line for line in str(report).splitlines() if line.strip()), "")
    headline = first
    if report.verdict == "fail":
        worst = report.findings[0]
        headline = ": ".join(filter(None, (worst.cause, " ".join(worst.message.split()))))
    elif report.verdict == "inconclusive" and report.inconclusive:
        headline = " ".join(report.inconclusive[0].split())
    return CellVerdict(report.verdict, headline, causes, "" if report.passed else str(report), seconds)


def _beyond(trials: list[TargetTrial]) -> list[float]:
    """Return the next learning rate beyond the best one, if that is the smallest or the largest that was tried."""
    reached = [trial for trial in trials if trial.steps is not None]
    if not reached:
        return []
    best = min(reached, key=lambda trial: trial.steps or 0)
    tried = sorted(trial.learning_rate for trial in trials)
    if best.learning_rate == tried[-1]:
        return [2 * tried[-1]]
    return [tried[0] / 2] if best.learning_rate == tried[0] else []


def _clock(seconds: float) -> str:
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"
