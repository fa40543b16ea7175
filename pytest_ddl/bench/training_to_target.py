"""Count the steps to a target loss for several global batch sizes, each at its best learning rate."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pytest_ddl.bench.launching.course import CourseToTarget, run_course
from pytest_ddl.bench.launching.records import SEED
from pytest_ddl.bench.metrics.batch_size import BatchScaling, batch_regimes
from pytest_ddl.bench.metrics.registry import NoNumberError
from pytest_ddl.strategies.base import StrategyDefinition, capabilities_of
from pytest_ddl.strategies.registry import StrategyRegistry
from pytest_ddl.strategies.spec import StrategySpec
from pytest_ddl.training.settings import RunSettings


@dataclass(frozen=True)
class TargetTrial:
    """Result of one training to the target loss."""

    batch: int
    """Global batch size."""
    learning_rate: float
    steps: int | None
    """Steps until the smoothed loss reached the target; ``None`` if it never did."""
    taken: int
    """Number of steps that were run."""
    last: float
    """Last smoothed loss; not finite if training diverged."""


@dataclass(frozen=True)
class StepsToTarget:
    """Trials with several global batch sizes and learning rates, and the best trial of each batch size."""

    target: float
    trials: tuple[TargetTrial, ...]

    @property
    def best(self) -> dict[int, TargetTrial]:
        """Batch size -> its trial with the fewest steps; without batch sizes that never reached the target."""
        trials: dict[int, TargetTrial] = {}
        for trial in self.trials:
            if trial.steps is not None:
                known = trials.get(trial.batch)
                if known is None or known.steps is None or trial.steps < known.steps:
                    trials[trial.batch] = trial
        return dict(sorted(trials.items()))

    @property
    def scaling(self) -> BatchScaling:
        """Regimes of the batch sizes; see :func:`~pytest_ddl.bench.metrics.batch_size.batch_regimes`.

        :raises NoNumberError: if fewer than 3 batch sizes reached the target.
        """
        return batch_regimes([(batch, trial.steps or 0) for batch, trial in self.best.items()])

    @property
    def notes(self) -> tuple[str, ...]:
        """Warnings about the results: batch sizes that never reached the target, and best learning rates at the edge of
        those that were tried."""
        notes = []
        for batch in sorted({trial.batch for trial in self.trials}):
            rates = sorted(trial.learning_rate for trial in self.trials if trial.batch == batch)
            best = self.best.get(batch)
            if best is None:
                notes.append(f"batch {batch} never reached {self.target:g}: try more steps or other learning rates")
            elif len(rates) == 1:
                notes.append(f"batch {batch}: only one learning rate was tried, so its steps cannot be compared")
            elif best.learning_rate in (rates[0], rates[-1]):
                notes.append(
                    f"batch {batch}: its best learning rate {best.learning_rate:g} is the "
                    f"{'smallest' if best.learning_rate == rates[0] else 'largest'} one tried: try values beyond it"
                )
        return tuple(notes)

    def __str__(self) -> str:
        lines = [
            f"batch {batch}: {trial.steps} steps to {self.target:g} (learning rate {trial.learning_rate:g})"
            for batch, trial in self.best.items()
        ]
        try:
            lines.append(str(self.scaling))
        except NoNumberError as error:
            lines.append(str(error))
        return "\n".join([*lines, *self.notes])


def steps_to_target(
    train: Callable[..., Any],
    target: float,
    batch_sizes: Sequence[int],
    learning_rates: Sequence[float] | Mapping[int, Sequence[float]],
    *,
    variant: str = "one_device",
    max_steps: int = 1000,
    window: int | None = None,
    device: str = "auto",
    timeout: float = 600.0,
) -> StepsToTarget:
    """Train to a target loss with several global batch sizes and learning rates, and count the steps.

    Steps are counted until the mean training loss over the last ``window`` examples is at the target. The window has
    the same number of examples for each batch size, so that small batches do not reach the target by luck. It lags by
    half its steps. Before it is full, nothing counts.

    Metaparameters must be tuned for every batch size. With one learning rate, or one that is scaled by a rule, the
    steps depend more on the rate than on the batch (Shallue et al. found no rule that holds for all). So give several
    rates, and widen them if :attr:`StepsToTarget.notes` reports that the best one was at the edge. This function tunes
    only the learning rate; tune schedules and momentum yourself. Each trial uses one seed, so small differences between
    rates are noise.

    Steps depend on the global batch and not on the number of replicas, so one device is enough.

    Source: Shallue et al. 2019, JMLR 20(112).

    :param train: ``train(run, learning_rate)``; it reports the loss of each step with ``run.steps`` or ``run.record``.
    :param target: target loss.
    :param batch_sizes: global batch sizes.
    :param learning_rates: rates for every batch size, or batch size -> its rates.
    :param variant: variant of a strategy with a single process.
    :param max_steps: steps after which a trial is given up.
    :param window: number of examples (default: the largest batch size).
    :param device: ``cpu``, ``gpu`` or ``auto``.
    :param timeout: seconds for all trials together.
    :raises BenchError: if a trial fails.
    :raises ValueError: if an argument is invalid.
    """
    from pytest_ddl.bench.launching.ranks import fresh_ranks, scratch_folder
    from pytest_ddl.harness import process_harness

    rates = _rates(batch_sizes, learning_rates)
    harness = process_harness()
    spec = _spec(harness.registry, variant)
    if max_steps < 1:
        raise ValueError(f"max_steps={max_steps!r} must be at least 1")
    deadline = time.monotonic() + timeout
    examples = window if window is not None else max(rates)
    trials = []
    with scratch_folder(harness.shared_folder, "steps-") as folder, fresh_ranks(harness, spec, device) as ranks:
        for batch, rate in ((batch, rate) for batch, several in rates.items() for rate in several):
            settings = RunSettings(batch, max_steps, SEED, tmp_path=str(folder), observe=False, repeat=True)
            program = functools.partial(train, learning_rate=rate)
            doing = f"in training with batch {batch} and learning rate {rate:g}"
            (trial,) = ranks.call(run_trial, program, settings, target, examples, deadline=deadline, doing=doing)
            trials.append(TargetTrial(batch, rate, *trial))
    return StepsToTarget(target, tuple(trials))


def _spec(registry: StrategyRegistry, variant: str) -> StrategySpec:
    """Return a variant under which a run can end at the target.

    :raises ValueError: if it cannot.
    """
    spec = registry.parse_variant(variant)
    if not _ends_at_target(registry[spec.name], spec):
        names = [one.name for one in registry if _ends_at_target(one, registry.default(one.name))]
        raise ValueError(f"variant={variant!r}: steps depend on the global batch, so give one of {', '.join(names)}")
    return spec


def _ends_at_target(definition: StrategyDefinition, spec: StrategySpec) -> bool:
    """Return whether a run can end at the target.

    Several ranks would have to agree on it, and workers report late to a coordinator.
    """
    capabilities = capabilities_of(definition)
    several = len(definition.topology(spec).ranks) > 1 or capabilities.coordinator
    return not several and not capabilities.global_view


def run_trial(
    train: Callable[[Any], Any], settings: RunSettings, target: float, window: int
) -> tuple[int | None, int, float]:
    """Train on this rank until the target.

    Return the steps to the target or ``None``, the number of steps that were run, and the last smoothed loss.
    """
    assert settings.global_batch_size is not None
    length = max(1, -(-window // settings.global_batch_size))
    course = run_course(train, settings, lambda context: CourseToTarget(context, settings.steps, target, length))
    if not course.losses:
        raise ValueError(
            "the training function reported no loss: train with run.steps, or run.record(loss=…) after each step"
        )
    return course.reached, course.completed, course.averaged


def _rates(
    batch_sizes: Sequence[int], learning_rates: Sequence[float] | Mapping[int, Sequence[float]]
) -> dict[int, tuple[float, ...]]:
    wrong = [batch for batch in batch_sizes if not isinstance(batch, int) or batch < 1]
    if wrong or not batch_sizes:
        raise ValueError(f"batch_sizes={list(batch_sizes)!r} must be whole numbers, at least 1")
    rates = {}
    for batch in batch_sizes:
        several = learning_rates.get(batch, ()) if isinstance(learning_rates, Mapping) else learning_rates
        if not several or any(not rate > 0 for rate in several):
            raise ValueError(f"learning_rates={learning_rates!r} has no positive learning rates for batch {batch}")
        rates[batch] = tuple(several)
    return rates
