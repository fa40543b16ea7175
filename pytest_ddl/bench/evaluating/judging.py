"""Judge trainings: their result against one device, their steps to the target, and the rank of each cell.

Nothing here uses a fixed tolerance. A difference counts if it is larger than the spread over seeds, the effect of
rounding, and the resolution of the number itself. A cell ranks after those that are shown to be faster.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pytest_ddl.bench.evaluating.records import REFERENCE, EvaluatedCell, Evaluation, TrainingCurve
from pytest_ddl.bench.launching import course
from pytest_ddl.bench.metrics.registry import statistics_package

LEVEL = 0.95
FEWEST_SEEDS = 3
"""Fewest pairs of a test. With two, the 95 % t bound is 12.7 times the standard error, and hides any real effect."""
LOSS = "training loss"
"""Name of the number that is compared if the program reports no other."""
_HIGHER = (
    "accuracy", "acc", "auc", "precision", "recall", "f1", "fbeta", "iou", "dice", "r2", "bleu", "map", "similarity",
    "psnr", "ssim", "score", "reward",
)  # fmt: skip
_HELD_OUT = ("val", "test", "evaluate")


def higher_is_better(name: str) -> bool:
    """Return whether a larger number is better, judged by the words of its name."""
    # Keras names MeanIoU mean_io_u.
    words = name.lower().replace("-", "_").replace("io_u", "iou").split("_")
    return any(word in _HIGHER for word in words)


def choose_metric(curves: Sequence[TrainingCurve], wanted: str = "") -> str:
    """Return the number that is compared: the wanted one, else a held-out accuracy, accuracy, held-out loss, or the
    training loss.

    :raises ValueError: if no training reported the wanted number.
    """
    names = list(dict.fromkeys(name for curve in curves for name in curve.values))
    if wanted:
        if wanted not in (*names, LOSS):
            raise ValueError(f"no training reported {wanted!r}; reported: {', '.join([*names, LOSS])}")
        return wanted

    def order(name: str) -> tuple[bool, bool]:
        words = name.lower().replace("-", "_").split("_")
        return not higher_is_better(name), not any(word in _HELD_OUT for word in words)

    good = [name for name in names if higher_is_better(name) or "loss" in name.lower()]
    return min(good, key=order, default=LOSS)


def final(curve: TrainingCurve, metric: str) -> float | None:
    """Return the last value of a number in a training; for the training loss, its mean over the last window."""
    if metric == LOSS:
        return smoothed(curve, curve.steps, window_of(curve))
    value = curve.values.get(metric)
    return value[-1][1] if value else None


def window_of(curve: TrainingCurve) -> int:
    """Return the examples over which the loss is averaged: an epoch, or a tenth of a training without epochs."""
    epochs = curve.epochs
    steps = epochs[0][1] - epochs[0][0] if len(epochs) > 1 else max(1, curve.steps // 10)
    return steps * curve.batch


def smoothed(curve: TrainingCurve, step: int, window: int) -> float | None:
    """Return the mean loss over the last ``window`` examples up to a step; ``None`` if a loss is missing.

    The losses that Keras shows are means over the epoch so far already.
    """
    if curve.running_mean:
        return curve.losses[step - 1] if step else None
    return course.averaged(curve.losses[:step], max(1, -(-window // curve.batch)))


def steps_to(curve: TrainingCurve, target: float, window: int) -> int | None:
    """Return the first step at which the smoothed loss is at the target; ``None`` if it never is.

    A window that is not full does not count. Of a training with Keras' running means, only ends of epochs count.
    """
    if curve.running_mean:
        ends = [end for _start, end in curve.epochs]
        shown = ((end, curve.losses[end - 1]) for end in ends)
        return next((end for end, loss in shown if loss is not None and loss <= target), None)
    return course.steps_to(curve.losses, target, max(1, -(-window // curve.batch)))


def default_target(reference: Sequence[TrainingCurve], window: int) -> float | None:
    """Return the loss that one device has reached with every seed in the middle of its training, rounded up.

    A target in the middle leaves room for a larger batch, which takes fewer steps in as many epochs.
    """
    found = [smoothed(curve, max(1, curve.steps // 2), window) for curve in reference]
    if not found or any(value is None or not math.isfinite(value) for value in found):
        return None
    worst = max(value for value in found if value is not None)
    if worst <= 0:
        return worst
    unit = 10.0 ** (math.floor(math.log10(worst)) - 2)
    return float(f"{math.ceil(worst / unit) * unit:.3g}")


@dataclass(frozen=True)
class PairedDifference:
    """Test of the final results of a cell against those of one device with the same seeds and the same global batch."""

    mean: float | None
    low: float | None = None
    high: float | None = None
    p: float | None = None
    """Adjusted for the number of cells that were tested (Holm)."""
    differs: bool | None = None
    """``None`` if the test is inconclusive."""
    words: str = ""


def differences(evaluation: Evaluation, metric: str) -> dict[str, PairedDifference]:
    """Test each cell against one device, by a paired t test over seeds, adjusted for their number by Holm's method.

    The standard deviation of the differences is at least the effect of rounding, which is measured: the reference
    trains once more with data that are moved by one unit in the last place. So equal programs that differ by rounding
    do not differ. If the number comes in steps, as an accuracy on 100 examples has steps of 0.01, only what exceeds one
    step counts. All seeds are tested on the same examples, so one example at the border may change with most seeds.
    """
    by_variant: dict[str, PairedDifference] = {}
    tests: dict[str, tuple[float, float, float, float]] = {}
    step = _resolution(evaluation, metric)
    for cell in evaluation.cells:
        if cell.is_reference or cell.reason:
            continue
        pairs = _pairs(evaluation.curves_of(cell.variant), evaluation.curves_of(REFERENCE, cell.batch), metric)
        if not pairs:
            by_variant[cell.variant] = PairedDifference(
                None, words="no result of one device with the same seed to compare with"
            )
            continue
        mean = statistics.fmean(pairs)
        if len(pairs) < FEWEST_SEEDS:
            by_variant[cell.variant] = PairedDifference(
                mean, words=f"inconclusive: {len(pairs)} seed(s) are too few for a test (at least {FEWEST_SEEDS})"
            )
        elif not any(pairs):
            by_variant[cell.variant] = PairedDifference(0.0, 0.0, 0.0, 1.0, False, f"equal with all {len(pairs)} seeds")
        elif not all(map(math.isfinite, pairs)):
            by_variant[cell.variant] = PairedDifference(None, words="inconclusive: a result is not finite")
        else:
            noise = _pairs(
                evaluation.curves_of(REFERENCE, cell.batch, moved=True),
                evaluation.curves_of(REFERENCE, cell.batch),
                metric,
            )
            rounding = math.sqrt(statistics.fmean(one * one for one in noise)) if noise else 0.0
            # The last term is the spread of the difference of two numbers that are rounded to steps.
            spread = max(statistics.stdev(pairs), rounding, step / math.sqrt(6))
            if spread > 0:
                tests[cell.variant] = _t_test(mean, spread, len(pairs), step)
            else:
                words = f"inconclusive: {mean:+.2g} with each seed, and no result depends on the seed"
                by_variant[cell.variant] = PairedDifference(mean, words=words)
    for variant, adjusted in _holm({name: test[0] for name, test in tests.items()}).items():
        _p, mean, low, high = tests[variant]
        by_variant[variant] = _worded(mean, low, high, adjusted, higher_is_better(metric), step)
    return by_variant


def _pairs(cell: Sequence[TrainingCurve], reference: Sequence[TrainingCurve], metric: str) -> list[float]:
    known = {curve.seed: final(curve, metric) for curve in reference}
    pairs = [(final(curve, metric), known.get(curve.seed)) for curve in cell]
    return [mine - its for mine, its in pairs if mine is not None and its is not None]


def _resolution(evaluation: Evaluation, metric: str) -> float:
    """Return the smallest gap between two final results of one device if numbers come in steps, as accuracies do.

    They come in steps if all gaps, also those of other cells, are multiples of the smallest one; else return 0. Other
    cells do not define the step, because it excuses them.
    """
    least = min(_gaps(evaluation.curves_of(REFERENCE), metric), default=0.0)
    gaps = _gaps(evaluation.curves, metric)
    in_steps = least and all(abs(gap / least - max(1, round(gap / least))) < 1e-3 for gap in gaps)
    return least if in_steps else 0.0


def _gaps(curves: Sequence[TrainingCurve], metric: str) -> list[float]:
    values = sorted({value for curve in curves if (value := final(curve, metric)) is not None})
    return [b - a for a, b in itertools.pairwise(values) if math.isfinite(b - a) and b - a > 1e-9]


def _t_test(mean: float, spread: float, number: int, least: float = 0.0) -> tuple[float, float, float, float]:
    """Return p, the mean, and the bounds of its 95 % interval.

    :param least: difference that does not count.
    """
    t = statistics_package("scipy.stats").t
    error = spread / math.sqrt(number)
    half = float(t.ppf((1 + LEVEL) / 2, number - 1)) * error
    return float(2 * t.sf(max(0.0, abs(mean) - least) / error, number - 1)), mean, mean - half, mean + half


def _holm(tests: Mapping[str, float]) -> dict[str, float]:
    """Return p-values adjusted for their number, so that one false alarm in all of them is rare (Holm 1979)."""
    adjusted: dict[str, float] = {}
    largest = 0.0
    for place, (name, p) in enumerate(sorted(tests.items(), key=lambda pair: pair[1])):
        largest = max(largest, min(1.0, p * (len(tests) - place)))
        adjusted[name] = largest
    return adjusted


def _worded(mean: float, low: float, high: float, p: float, higher: bool, step: float) -> PairedDifference:
    text = f"{mean:+.2g} ({low:+.2g} to {high:+.2g}), p = {p:.2g}"
    if p >= 1 - LEVEL and low * high > 0 and step:
        text += f"; the number has steps of {step:.2g}, and one step does not count"
    if p >= 1 - LEVEL:
        return PairedDifference(mean, low, high, p, False, f"no difference shown: {text}")
    return PairedDifference(mean, low, high, p, True, f"{'better' if (mean > 0) == higher else 'worse'}: {text}")


@dataclass(frozen=True)
class ToTarget:
    """Steps and time of a cell to the target loss."""

    steps: tuple[int, ...] = ()
    """Steps of each seed that reached it."""
    missed: int = 0
    """Seeds that did not reach it."""
    last: float | None = None
    """Mean of the last smoothed losses, if a seed did not reach it."""
    seconds: float | None = None
    low: float | None = None
    high: float | None = None
    reason: str = ""
    """Why there is no time."""


def to_target(evaluation: Evaluation, cell: EvaluatedCell) -> ToTarget:
    """Return steps to the target, and time: their geometric mean, times the time of a steady step.

    The time leaves out start-up, tracing and evaluation. Its interval comes from the spreads over seeds and launches,
    which are independent: the standard errors of the logarithms add up as squares.
    """
    window = window_for(evaluation)
    if evaluation.target is None or window is None:
        return ToTarget(reason="no loss of a step was reported")
    each = [steps_to(curve, evaluation.target, window) for curve in evaluation.curves_of(cell.variant, cell.batch)]
    steps = tuple(step for step in each if step is not None)
    if not each or len(steps) < len(each):
        curves = evaluation.curves_of(cell.variant, cell.batch)
        lasts = [value for curve in curves if (value := smoothed(curve, curve.steps, window)) is not None]
        last = statistics.fmean(lasts) if lasts else None
        what = f"{len(each) - len(steps)} of {len(each)} seeds did not reach it" if each else "it was not trained"
        return ToTarget(steps, len(each) - len(steps), last, reason=what)
    times = step_times(evaluation, cell.variant)
    if not times:
        return ToTarget(steps, reason="its steps were not measured")
    logs, means = _errors([math.log(step) for step in steps]), _errors([math.log(time) for time in times])
    centre = logs[0] + means[0]
    error = math.hypot(logs[1], means[1])
    if len(steps) < 2 or len(times) < 2:
        return ToTarget(steps, seconds=math.exp(centre))
    degrees = _degrees([(logs[1], len(steps)), (means[1], len(times))])
    half = float(statistics_package("scipy.stats").t.ppf((1 + LEVEL) / 2, degrees)) * error
    return ToTarget(steps, seconds=math.exp(centre), low=math.exp(centre - half), high=math.exp(centre + half))


def window_for(evaluation: Evaluation) -> int | None:
    """Return the examples over which losses are averaged: the same for all cells and batch sizes."""
    reference = next((one for one in evaluation.cells if one.is_reference), None)
    curves = evaluation.curves_of(REFERENCE, reference.batch) if reference is not None else []
    return window_of(curves[0]) if curves else None


def step_times(evaluation: Evaluation, variant: str) -> list[float]:
    """Return the seconds of a steady step in each launch of a cell."""
    return [one.median_step_seconds for one in evaluation.matrix.launches if one.strategy == variant]


def _errors(logs: Sequence[float]) -> tuple[float, float]:
    error = statistics.stdev(logs) / math.sqrt(len(logs)) if len(logs) > 1 else 0.0
    return statistics.fmean(logs), error


def _degrees(parts: Sequence[tuple[float, int]]) -> float:
    """Return the degrees of freedom of a sum of means (Welch and Satterthwaite)."""
    total = sum(error**2 for error, _number in parts)
    below = sum(error**4 / (number - 1) for error, number in parts if number > 1)
    return total**2 / below if below > 0 else float(max(number for _error, number in parts) - 1)
