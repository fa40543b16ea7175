"""How far rounding alone may move a value: bounds from arithmetic, never a constant tolerance.

*A priori.* A sum of n terms evaluated in any order has a relative backward error of at most

    gamma(n) = exp(lambda * sqrt(n) * u + n * u**2 / (1 - u)) - 1

with probability at least ``1 - 2 * n * exp(-lambda**2 * (1 - u)**2 / 2)`` (N. J. Higham and T. Mary,
"A new approach to probabilistic rounding error analysis", SIAM J. Sci. Comput. 41(5), 2019); u is the
unit roundoff. We fix the probability of one false alarm in a whole comparison, ``FAILURE``, and solve for
lambda over all sums compared. Reference and distributed run both round, hence a factor 2. Storing a weight
rounds once per step, hence ``gamma(steps) * |W|``; updates are sums, hence ``gamma(n) * sum |dW|``.

*Measured.* Cancellation and unstable training amplify rounding by a condition number that no a-priori
formula knows. By the same theorem, a re-ordered sum equals the exact sum of data moved by at most
``gamma(n)``, that is ``lambda * sqrt(n)`` units of roundoff. A perturbed run moves weights and data by one
unit, so ``2 * lambda * sqrt(n)`` times its distance from the reference is added to the a-priori bound.

*Undecided.* A difference within the bound still may be a defect where the bound is wide: wider than the
effect of one example handled wrongly, ``|dW| / global batch`` (or the spacing of the format, below which
nothing shows). Such a bound decides nothing, unless the difference is within the a-priori part and below
that effect.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import pairwise

import numpy as np

from pytest_ddl.checks.arrays import difference, magnitude
from pytest_ddl.records import Array, TrainingRecord, VariableKind, VariableRecord

FAILURE = 1e-9
"""Probability that rounding alone fails one comparison of two trainings."""

UNMEASURED = "a-priori rounding bound, noise not measured"

_UNIT_ROUNDOFF = {
    "float64": 2.0**-53,
    "float32": 2.0**-24,
    "float16": 2.0**-11,
    "bfloat16": 2.0**-8,
    "float8_e4m3fn": 2.0**-4,
    "float8_e5m2": 2.0**-3,
    "complex64": 2.0**-24,
    "complex128": 2.0**-53,
}


class Decision(Enum):
    """What a bound says about a difference."""

    WITHIN = "within the bound"
    UNDECIDED = "the bound is too wide"
    BEYOND = "beyond the bound"


@dataclass(frozen=True)
class Bound:
    """How far rounding may move one value, where that comes from, and what one example would do."""

    value: float
    origin: str
    effect: float = 0.0
    """The difference that a single example handled wrongly would make."""
    measured: bool = False
    unamplified: float = 0.0
    """The a-priori part: what rounding does where nothing amplifies it."""

    def too_wide(self, error: float) -> bool:
        """Say whether a difference inside the bound could be a defect all the same."""
        return self.effect < self.value and min(self.effect, self.unamplified) < error <= self.value

    def judge(self, error: float) -> Decision:
        """Decide on an observed difference; a non-finite one is beyond any bound."""
        if not error <= self.value:
            return Decision.BEYOND
        return Decision.UNDECIDED if self.too_wide(error) else Decision.WITHIN


def unit_roundoff(dtype: str) -> float:
    """The unit roundoff of a dtype by name; 0 for exact ones (integers, booleans, strings)."""
    return _UNIT_ROUNDOFF.get(dtype, 0.0)


class Tolerance:
    """Bounds for every variable, loss and named value of one reference run."""

    def __init__(
        self,
        reference: TrainingRecord,
        perturbed: Sequence[TrainingRecord] = (),
        slices: Mapping[int, TrainingRecord] | None = None,
        slice_step: int | None = None,
    ) -> None:
        self.reference = reference
        self.perturbed = tuple(perturbed)
        self.slices = dict(slices or {})
        self.slice_step = slice_step
        self._batch = _global_batch(reference)
        self._length = _reduction_length(reference, self._batch)
        self._compute = _compute_roundoff(reference)
        self._scalars: dict[str | None, float] = {}
        elements = sum(math.prod(variable.shape) for variable in reference.variables)
        self._sums = 2 * (elements + 1) * (reference.num_steps + 1)
        self._paths: dict[int, list[float]] = {}
        self._magnitudes: dict[tuple[int, int], float] = {}
        self._bounds: dict[tuple[int, int], Bound] = {}

    @property
    def length(self) -> int:
        """An upper estimate of the length of the longest sum of the program."""
        return self._length

    @property
    def compute_roundoff(self) -> float:
        """The unit roundoff of the coarsest arithmetic in the program."""
        return self._compute

    @property
    def confidence(self) -> float:
        """lambda: 2 * sums * n * exp(-lambda**2 / 2) = FAILURE, solved for lambda."""
        return math.sqrt(2 * math.log(2 * self._sums * self._length / FAILURE))

    @property
    def amplification(self) -> float:
        """By how much a re-ordered sum may differ more than a run perturbed by one ulp."""
        return 2 * self.confidence * math.sqrt(self._length)

    def gamma(self, length: int, roundoff: float) -> float:
        """The probabilistic bound of Higham and Mary on the relative error of a sum."""
        if roundoff == 0.0:
            return 0.0
        exponent = self.confidence / (1 - roundoff) * math.sqrt(length) * roundoff
        return math.expm1(min(exponent + length * roundoff**2 / (1 - roundoff), 700.0))

    def variable(self, index: int, step: int) -> Bound:
        """The bound on a variable's value after a step."""
        key = (index, step)
        if key not in self._bounds:
            self._bounds[key] = self._bound(index, step)
        return self._bounds[key]

    def loss(self, step: int) -> Bound:
        """The bound on the reported loss of a step."""
        return self._scalar(
            self.reference.ranks[0].steps[step - 1].loss,
            [run.ranks[0].steps[step - 1].loss for run in self.perturbed if run.num_steps >= step],
            self._roundoff_of(None),
        )

    def value(self, name: str, step: int) -> Bound:
        """The bound on a named value that the program recorded for a step."""
        return self._scalar(
            self.reference.ranks[0].steps[step - 1].values.get(name),
            [run.ranks[0].steps[step - 1].values.get(name) for run in self.perturbed if run.num_steps >= step],
            self._roundoff_of(name),
        )

    def result(self, desired: Array, noisy: Sequence[Array]) -> Bound:
        """The bound on an array that the program returned, given what perturbed references returned."""
        if not np.issubdtype(desired.dtype, np.inexact):
            return Bound(0.0, f"{desired.dtype} values are exact")
        numbers = desired.astype(np.float64)
        with np.errstate(over="ignore", invalid="ignore"):
            narrow = bool(np.all(numbers.astype(np.float32) == numbers))
        roundoff = max(self._compute, unit_roundoff("float32" if narrow else "float64"))
        scale = magnitude(desired)
        bound = tight = 2 * self.gamma(self._length, roundoff) * scale
        noise = [difference(other, desired).error for other in noisy if other.shape == desired.shape]
        origin = UNMEASURED
        if noise:
            bound += self.amplification * max(noise)
            origin = f"rounding noise measured in {len(noise)} perturbed run(s), x{self.amplification:.3g}"
        return Bound(bound, origin, scale / self._batch, bool(noise), tight)

    def moved(self, index: int, steps: int) -> bool:
        """Say whether the reference changes a variable by more than rounding up to a step."""
        return any(change > self.variable(index, at).value for at, change in enumerate(self._path(index)[: steps + 1]))

    def slices_at(self, step: int) -> Mapping[int, TrainingRecord]:
        """Reference runs of each replica's examples alone, if the driver made them for this step."""
        return self.slices if self.slice_step == step else {}

    def _bound(self, index: int, step: int) -> Bound:
        record = self.reference.variables[index]
        storage = unit_roundoff(record.dtype)
        if storage == 0.0:
            return Bound(0.0, f"{record.dtype} values are exact")
        if step == 0:
            return Bound(0.0, "no arithmetic before the first step: initial values must be identical")
        compute = max(storage, self._compute)
        scale = max(self._magnitude(index, at) for at in range(step + 1))
        path = self._path(index)[: step + 1]
        value = tight = 2 * (self.gamma(step, storage) * scale + self.gamma(self._length, compute) * sum(path))
        noise = [_distance(self.reference, run, index, step) for run in self.perturbed if run.num_steps >= step]
        origin = UNMEASURED
        if noise:
            value += self.amplification * max(noise)
            origin = f"rounding noise measured in {len(noise)} perturbed run(s), x{self.amplification:.3g}"
        largest_step = max(path, default=0.0)
        if largest_step <= value:
            # A variable that stands still by cancellation says nothing about the effect of one example; the
            # others, which go through the same sums, do.
            largest_step = max([largest_step, *self._steps_of_trainables(step)])
        spacing = 2 * storage * scale
        return Bound(value, origin, max(largest_step / self._batch, spacing), bool(noise), tight)

    def _scalar(self, value: float | None, noisy: Sequence[float | None], roundoff: float) -> Bound:
        if value is None:
            return Bound(0.0, "there is no reference value")
        scale = abs(value) if math.isfinite(value) else 0.0
        bound = tight = 2 * self.gamma(self._length, roundoff) * scale
        # Infinite where rounding decides whether the value is finite.
        noise = [difference(np.asarray(other), np.asarray(value)).error for other in noisy if other is not None]
        origin = UNMEASURED
        if noise:
            bound += self.amplification * max(noise)
            origin = f"rounding noise measured in {len(noise)} perturbed run(s), x{self.amplification:.3g}"
        return Bound(bound, origin, scale / self._batch, bool(noise), tight)

    def _roundoff_of(self, name: str | None) -> float:
        """The coarsest arithmetic on the way to a named value, or to the loss (``None``)."""
        if name not in self._scalars:
            self._scalars[name] = max(self._compute, _scalar_roundoff(self.reference, name))
        return self._scalars[name]

    def _trainable(self) -> list[VariableRecord]:
        return [v for v in self.reference.variables if v.kind is VariableKind.TRAINABLE]

    def _steps_of_trainables(self, step: int) -> list[float]:
        return [max(self._path(v.index)[: step + 1], default=0.0) for v in self._trainable()]

    def _magnitude(self, index: int, step: int) -> float:
        key = (index, step)
        if key not in self._magnitudes:
            self._magnitudes[key] = magnitude(self.reference.value(index, step))
        return self._magnitudes[key]

    def _path(self, index: int) -> list[float]:
        """The largest change of the variable in each step of the reference; entry 0 is 0."""
        if index not in self._paths:
            values = [self.reference.value(index, step) for step in range(self.reference.num_steps + 1)]
            since = self.reference.variables[index].since
            if since and since < len(values):
                values[since] = values[0]
            changes = [0.0]
            for before, after in pairwise(values):
                comparable = before is not None and after is not None and before.shape == after.shape
                change = after.astype(np.float64) - before.astype(np.float64) if comparable else None  # type: ignore[union-attr]
                changes.append(magnitude(change))
            # What a weight did before it was watched was not seen; it was no more than what it did since, or all
            # that follows would be its own noise.
            changes[1 : since + 1] = [max(changes)] * len(changes[1 : since + 1])
            self._paths[index] = changes
        return self._paths[index]


def _distance(reference: TrainingRecord, perturbed: TrainingRecord, index: int, step: int) -> float:
    """Return how far a perturbed run is from the reference: infinitely if only one of them is finite."""
    left, right = perturbed.value(index, step), reference.value(index, step)
    if left is None or right is None:
        return 0.0
    return difference(left, right).error


def _global_batch(reference: TrainingRecord) -> int:
    observed = [sum(b.size for b in reference.batches(step)) for step in range(1, reference.num_steps + 1)]
    return max([*observed, reference.global_batch_size or 0, 1])


def _reduction_length(reference: TrainingRecord, batch: int) -> int:
    """An upper estimate of the length of the longest sum: over the batch and over one dimension."""
    return batch * max((size for variable in reference.variables for size in variable.shape), default=1)


def _compute_roundoff(reference: TrainingRecord) -> float:
    """The coarsest arithmetic in the program: of its weights, or of a layer that computes in less."""
    weights = [v.dtype for v in reference.variables if v.kind in (VariableKind.TRAINABLE, VariableKind.FROZEN)]
    layers = [str(layer.settings.get("compute_dtype")) for rank in reference.ranks[:1] for layer in rank.layers]
    return max((unit_roundoff(dtype) for dtype in (*weights, *layers)), default=0.0)


def _scalar_roundoff(reference: TrainingRecord, name: str | None) -> float:
    """The format of a reported number, which is recorded without it; ``None`` names the loss.

    A float64 result fits into float32 once in 2**29 times by chance: where all do, they went through it.
    """
    steps = [step for rank in reference.ranks[:1] for step in rank.steps]
    found = [step.loss if name is None else step.values.get(name) for step in steps]
    numbers = [number for number in found if number is not None and math.isfinite(number)]
    with np.errstate(over="ignore"):
        narrow = all(float(np.float32(number)) == number for number in numbers)
    return unit_roundoff("float32" if narrow else "float64")
