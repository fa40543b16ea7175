"""Choose a strategy from launches that took turns, or from those of an evaluation."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from pytest_ddl.bench.advice.facts.evidence import Contender, Measured
from pytest_ddl.bench.advice.facts.gains import Gain, noise_of, resampled, step_time
from pytest_ddl.bench.advice.turns import take_turns
from pytest_ddl.bench.launching.records import BenchSpec
from pytest_ddl.bench.matrix import Matrix
from pytest_ddl.bench.metrics.estimates import Estimate, estimate
from pytest_ddl.bench.metrics.registry import NoNumberError
from pytest_ddl.harness import Harness


@dataclass(frozen=True)
class Rated:
    """Speed of one variant."""

    variant: str
    replicas: int
    examples_per_second: float
    best: Gain | None
    """Factor by which the fastest variant is faster than this one; ``None`` for the fastest itself."""


@dataclass(frozen=True)
class Choice:
    """Variant to use, and the reason."""

    variant: str
    because: str
    rated: tuple[Rated, ...]
    """All variants that were measured, the fastest first."""
    skipped: dict[str, str]
    """Variant -> reason why it was not measured."""


def compare(
    harness: Harness, train: Callable[[Any], Any], variants: Sequence[str], bench: BenchSpec
) -> tuple[Choice, dict[str, Measured]]:
    """Launch the training function under each variant, let the launches take turns, and choose one.

    :raises BenchError: if the first variant cannot be measured.
    """
    measured, failed = take_turns(harness, [Contender(name, train, name, bench) for name in variants])
    examples = {name: one.launch.global_batch_size or 1 for name, one in measured.items()}
    speed = {name: examples[name] / float(step_time(one.steps)) for name, one in measured.items()}
    fastest = max(speed, key=speed.__getitem__)
    rated = []
    for name in sorted(speed, key=speed.__getitem__, reverse=True):
        factor = examples[fastest] / examples[name]

        def ratio(times: Any, factor: float = factor) -> Any:
            return factor * step_time(times[1]) / step_time(times[0])

        best = None if name == fastest else resampled(ratio, [measured[fastest].steps, measured[name].steps])
        rated.append(Rated(name, measured[name].launch.replicas, speed[name], best))
    return choose(rated, failed), measured


def choose(rated: Sequence[Rated], skipped: dict[str, str]) -> Choice:
    """Choose the fastest variant; of those that differ from it by no more than noise, the one with fewest replicas.

    :param rated: variants, the fastest first.
    """
    noise = noise_of(None)
    fastest = rated[0]
    # A wide interval is no proof of equality, so its upper bound decides.
    equal = [one for one in rated if one.best is None or one.best.high <= noise]
    chosen = min(equal, key=lambda one: one.replicas)
    because = f"{chosen.examples_per_second:.0f} examples/s"
    slower = [one for one in rated if one not in equal]
    unclear = [one.variant for one in slower if one.best is not None and one.best.low <= noise]
    if chosen is not fastest:
        because += f", no slower than {fastest.variant} beyond noise, with fewer replicas"
    if slower:
        because += f"; {slower[0].variant} has {slower[0].examples_per_second:.0f}"
        because += f" ({fastest.variant} is {slower[0].best})" if slower[0].best else ""
    if unclear:
        because += f"; not told apart from {', '.join(unclear)}, so give more launches"
    if len(rated) == 1:
        because += "; no other one was measured"
    return Choice(chosen.variant, because, tuple(rated), skipped)


def from_matrix(matrix: Matrix) -> Choice:
    """Choose a variant by the throughput of an evaluation's launches.

    :raises NoNumberError: if no variant has a throughput.
    """
    skipped = {**matrix.skipped, **matrix.failed}
    speeds = {}
    for variant in matrix.variants:
        speed = estimate("throughput", matrix, variant)
        if speed.value is None:
            skipped[variant] = speed.note
        else:
            speeds[variant] = speed
    if not speeds:
        raise NoNumberError("; ".join(skipped.values()) or "the evaluation has no launches")
    fastest, *others = sorted(speeds, key=lambda name: speeds[name].value or 0.0, reverse=True)
    gains: dict[str, Gain | None] = {fastest: None, **{name: _gain(speeds[fastest], speeds[name]) for name in others}}
    rated = [Rated(name, matrix.of(name)[0].replicas, speeds[name].value or 0.0, gain) for name, gain in gains.items()]
    return choose(rated, skipped)


def _gain(fastest: Estimate, other: Estimate) -> Gain:
    """Return how many times faster the fastest variant is, without an interval if one of both has none."""
    factor = (fastest.value or math.nan) / (other.value or math.nan)
    if fastest.low is None or fastest.high is None or other.low is None or other.high is None:
        return Gain(factor, factor, factor)
    return Gain(factor, fastest.low / other.high, fastest.high / other.low if other.low > 0 else math.inf)
