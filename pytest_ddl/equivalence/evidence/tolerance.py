"""Bounds on the rounding error of a value. They follow from arithmetic and are never a constant.

*A priori.* A sum of n terms evaluated in any order has a relative backward error of at most

    gamma(n) = exp(lambda * sqrt(n) * u + n * u**2 / (1 - u)) - 1

with probability at least ``1 - 2 * n * exp(-lambda**2 * (1 - u)**2 / 2)`` (N. J. Higham and T. Mary, "A new approach to
probabilistic rounding error analysis", SIAM J. Sci. Comput. 41(5), 2019). Here u is the unit roundoff. ``FAILURE``
fixes the probability of one false alarm in a whole comparison, and lambda is solved for over all sums that are
compared. A factor 2 is needed because both the reference and the distributed run round. Storing a weight rounds once
per step, which gives ``gamma(steps) * |W|``. Updates are sums, which gives ``gamma(n) * sum |dW|``.

*Measured.* Cancellation and unstable training amplify rounding by a condition number that no a-priori formula knows. By
the same theorem, a re-ordered sum equals the exact sum of data moved by at most ``gamma(n)``, that is
``lambda * sqrt(n)`` units of roundoff. A perturbed run moves weights and data by one unit. So ``2 * lambda * sqrt(n)``
times its distance from the reference is added to the a-priori bound.

*Half precision.* The formulas above would let one sum of n terms be off by ``lambda * sqrt(n) * u``. With u of float16
or bfloat16 that is as much as a step changes. TensorFlow sums products of half precision in float32 and rounds the
result (its matrix products and convolutions do so). So two other terms replace ``gamma(n)``:

* ``gamma(k)`` of the k half precision operations that follow on each other (the same theorem, for products), plus
  ``gamma(n)`` of float32.
* ``2 * lambda`` times the distance of perturbed runs. They are moved by one ulp of the half precision type, which the
  casts do not erase. The operands of every rounding then differ, so under the theorem's model its error is drawn anew.
  The distance is therefore a sample of the rounding error, and lambda is the factor that the theorem gives for the
  probability ``FAILURE``. The factor 2 is there because the largest of few samples may be less than one standard
  deviation. Only the change since the first step counts, because the perturbation itself is no rounding. All weights
  share the largest relative distance, because a single number may be close by chance.

*Vocabularies.* The sums that a strategy takes in another order are those over the batch. Sums within one example, such
as those of a softmax over a vocabulary, have the same terms on a replica as on one device. Perturbed runs redraw their
rounding, and ``2 * lambda`` times the distance covers it. So the rows of an embedding table do not count in n.

The type is the coarsest type of weights, layers and casts in the program; see
:mod:`pytest_ddl.equivalence.evidence.arithmetic`.

*Before the first watch.* If a program runs steps before it watches, these steps also round, but they are not perturbed.
They count as steps that changed as much as the observed steps.

*Cancelled slots.* If the terms of a gradient cancel, its rounding follows from the terms, and not from their small sum.
A perturbed run does not show it if an ulp of weights and data does not reach the terms. So if a slot is beyond its
bound, runs on copies of one example show the slot that one term gives, and ``gamma(n)`` of it is added. This is the
bound of a slot that follows the gradient. It is more than the bound of a slot that follows the square. An optimizer
that divides by the gradient shows this rounding in the weight. Runs on batches in another order draw it anew, and
``2 * lambda`` times their distance is added.

*Undecided.* If a bound is wide, a difference within it may still be a defect. A bound is wide if it exceeds the effect
of one example handled wrongly, ``|dW| / global batch``. (The effect is at least the spacing of the format and of half
precision updates, because nothing smaller is visible.) Such a bound decides nothing, unless the difference is within
the a-priori part and below that effect.

*Standing still.* A variable that moves only by rounding, because its gradient cancels, shows no effect of one example.
Its steps are no longer than ``2 * lambda`` times the distance of perturbed runs, which redraw every rounding error. A
variable with longer steps does move, also if its bound is wider than its steps.

*Decided before.* If the same program agrees with one device in float64, half precision is judged only for what float64
cannot show: an overflow, a scale, a sum in the wrong type. Such a defect changes a step by a factor of two at least. A
difference is then undecided only if its norm exceeds a quarter of the norm of the step (``GROSS``).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from pytest_ddl.equivalence.evidence.arithmetic import (
    compute_roundoff,
    half_precision,
    longest_chain,
    reduction_length,
    scalar_roundoff,
    unit_roundoff,
)
from pytest_ddl.equivalence.evidence.arrays import all_finite, difference, magnitude, norm
from pytest_ddl.equivalence.evidence.bounds import Bound
from pytest_ddl.equivalence.evidence.movement import Movement
from pytest_ddl.equivalence.evidence.slices import Slices
from pytest_ddl.records import Array, TrainingRecord, VariableKind

FAILURE = 1e-9
"""Probability that one comparison of two trainings fails only because of rounding."""

GROSS = 0.25
"""Half of the smallest relative change that a factor of two makes: ``|1 - 1/2| / 2``."""

_UNMEASURED = "a formula for rounding; how far it moves this program was not measured"


class Tolerance:
    """Bounds for every variable, loss and named value of one reference run."""

    def __init__(
        self,
        reference: TrainingRecord,
        perturbed: Sequence[TrainingRecord] = (),
        slices: Slices | None = None,
        decided: bool = False,
        again: TrainingRecord | None = None,
        made_apart: bool = False,
    ) -> None:
        """Prepare the bounds of a reference run.

        :param perturbed: runs of the same program with weights and data moved by one ulp; they measure the noise.
        :param slices: reference runs on a part of the examples of one step.
        :param decided: True if the same program agrees with one device in float64.
        :param again: a second run of the unchanged reference. What differs there is random, or depends on the time.
        :param made_apart: True if different kernels made the initial values of the two runs.
        """
        self.reference = reference
        self.again = again
        self.perturbed = tuple(perturbed)
        self._slices = slices
        self._batch = _global_batch(reference)
        self._length = reduction_length(reference, self._batch)
        self._compute = compute_roundoff(reference)
        self._half = half_precision(reference)
        self._chain = longest_chain(reference) if self._half else 0
        self._decided = decided
        self._made_apart = made_apart
        self._movement = Movement(reference, self.perturbed, since_start=self._half is not None)
        self._trained_before = max((int(rank.facts.get("trained_before", 0)) for rank in reference.ranks), default=0)
        self._scalars: dict[str | None, float] = {}
        elements = sum(math.prod(variable.shape) for variable in reference.variables)
        self._sums = 2 * (elements + 1) * (reference.num_steps + 1)
        self._bounds: dict[tuple[int, int], Bound] = {}

    @property
    def length(self) -> int:
        """Upper estimate of the length of the longest sum in the program."""
        return self._length

    @property
    def compute_roundoff(self) -> float:
        """Unit roundoff of the coarsest arithmetic in the program."""
        return self._compute

    @property
    def confidence(self) -> float:
        """Lambda of the module's formula: ``2 * sums * n * exp(-lambda**2 / 2) = FAILURE``, solved for lambda."""
        return math.sqrt(2 * math.log(2 * self._sums * self._length / FAILURE))

    @property
    def amplification(self) -> float:
        """Factor between the noise of a run perturbed by one ulp and the largest error of a re-ordered sum."""
        return 2 * self.confidence * (1.0 if self._half else math.sqrt(self._length))

    def gamma(self, length: int, roundoff: float) -> float:
        """Return the probabilistic bound of Higham and Mary on the relative error of a sum."""
        if roundoff == 0.0:
            return 0.0
        exponent = self.confidence / (1 - roundoff) * math.sqrt(length) * roundoff
        return math.expm1(min(exponent + length * roundoff**2 / (1 - roundoff), 700.0))

    def relative(self, roundoff: float) -> float:
        """Bound the relative error of a sum over the batch whose terms were computed at ``roundoff``."""
        if self._half is None or roundoff <= unit_roundoff("float32"):
            return self.gamma(self._length, roundoff)
        return self.gamma(self._chain, roundoff) + self.gamma(self._length, unit_roundoff("float32"))

    def is_gross(self, index: int, step: int, actual: Array, desired: Array) -> bool:
        """Return whether an undecided difference counts. If float64 has decided, only a gross difference does."""
        if not self._decided:
            return True
        before = self.reference.value(index, step - 1) if step else None
        if before is None or not before.shape == desired.shape == actual.shape or not all_finite(actual):
            return True
        error, change = (np.asarray(one, np.float64) - desired for one in (actual, before))
        return not norm(error) <= GROSS * norm(change)

    def variable(self, index: int, step: int) -> Bound:
        """Return the bound on a variable's value after a step."""
        key = (index, step)
        if key not in self._bounds:
            self._bounds[key] = self._bound(index, step)
        return self._bounds[key]

    def loss(self, step: int) -> Bound:
        """Return the bound on the reported loss of a step."""
        return self._scalar(
            self.reference.ranks[0].steps[step - 1].loss,
            [run.ranks[0].steps[step - 1].loss for run in self.perturbed if run.num_steps >= step],
            self._roundoff_of(None),
        )

    def value(self, name: str, step: int) -> Bound:
        """Return the bound on a named value that the program recorded for a step."""
        return self._scalar(
            self.reference.ranks[0].steps[step - 1].values.get(name),
            [run.ranks[0].steps[step - 1].values.get(name) for run in self.perturbed if run.num_steps >= step],
            self._roundoff_of(name),
        )

    def result(self, desired: Array, noisy: Sequence[Array]) -> Bound:
        """Return the bound on an array that the program returned, given the results of the perturbed references."""
        if not np.issubdtype(desired.dtype, np.inexact):
            return Bound(0.0, f"{desired.dtype} values are exact")
        numbers = desired.astype(np.float64)
        with np.errstate(over="ignore", invalid="ignore"):
            narrow = bool(np.all(numbers.astype(np.float32) == numbers))
        roundoff = max(self._compute, unit_roundoff("float32" if narrow else "float64"))
        scale = magnitude(desired)
        bound = tight = 2 * self.relative(roundoff) * scale
        noise = [difference(other, desired).error for other in noisy if other.shape == desired.shape]
        if noise:
            bound += self.amplification * max(noise)
        return self._with_origin(bound, len(noise), self._share(scale), tight)

    def moved(self, index: int, steps: int) -> bool:
        """Return whether the reference changes a variable by more than rounding within the first ``steps`` steps."""
        if self._half is None:
            return any(
                change > self._still(self.variable(index, at).value, self._movement.noise(index, at))
                for at, change in enumerate(self._movement.path(index)[: steps + 1])
            )
        # In half precision the bound grows with the change itself. It cannot show that a variable stands still.
        storage = unit_roundoff(self.reference.variables[index].dtype)
        return any(
            change > 2 * self.gamma(at, storage) * self._movement.magnitude(index, at)
            for at, change in enumerate(self._movement.path(index)[: steps + 1])
        )

    def parts_at(self, step: int) -> Mapping[int, TrainingRecord]:
        """Return for each replica a reference run on only its examples of a step; empty if the driver made none."""
        return self.slices_at(step).replicas or (self._slices.uneven if self._slices is not None else {})

    @property
    def far(self) -> tuple[TrainingRecord, ...]:
        """Runs that show how a count jumps within rounding: it stands still if only an ulp moves its inputs.

        One that ended early, for example at the deadline, shows nothing.
        """
        runs = self._slices.far if self._slices is not None else ()
        return tuple(run for run in runs if run.num_steps >= self.reference.num_steps)

    @property
    def equal_parts(self) -> TrainingRecord | None:
        """Reference run in which all replicas count equally in uneven steps, if the driver made one."""
        return self._slices.equal if self._slices is not None else None

    @property
    def shared(self) -> TrainingRecord | None:
        """Run whose metrics are multiplied before each batch, if it was needed."""
        return self._slices.shared if self._slices is not None else None

    def slices_at(self, step: int) -> Slices:
        """Return the reference runs on parts of the batch of a step; empty if the driver made none for this step."""
        return self._slices if self._slices is not None and self._slices.step == step else Slices(step)

    def _bound(self, index: int, step: int) -> Bound:
        record = self.reference.variables[index]
        storage = unit_roundoff(record.dtype)
        if storage == 0.0:
            return Bound(0.0, f"{record.dtype} values are exact")
        before = self._trained_before
        compute = max(storage, self._compute)
        scale = max(self._movement.magnitude(index, at) for at in range(step + 1))
        apart = 2 * self.relative(storage) * scale if self._made_apart else 0.0
        if step == 0 and not before:
            if not self._made_apart:
                return Bound(0.0, "no arithmetic before the first step: initial values must be identical")
            return Bound(apart, "rounding of initial values, which CPUs and GPUs make differently", math.inf)
        # The steps before the first watch were not seen. Assume that they changed no more than the later ones.
        path = [*[max(self._movement.path(index))] * before, *self._movement.path(index)[: step + 1]]
        value = tight = 2 * (self.gamma(step + before, storage) * scale + self.relative(compute) * sum(path)) + apart
        noise = self._movement.noise(index, min(step + before, self.reference.num_steps))
        if noise:
            shared = self._movement.shared_noise(record.kind, step) * sum(path) if self._half else 0.0
            value += self.amplification * max(*noise, shared)
        term = self._term(index, step) if record.kind is VariableKind.SLOT else 0.0
        drawn = self._movement.noise(index, step, self._slices.reordered if self._slices is not None else ())
        value += 2 * self.relative(compute) * term + 2 * self.confidence * max(drawn, default=0.0)
        largest_step = max(path, default=0.0)
        # Steps before a variable was seen are taken for as long as a later one, whose noise is not in this step yet.
        seen = [*path[:before], *path[before + record.since + 1 :]]
        if max(seen, default=0.0) <= self._still(value, noise):
            # A variable that stands still by cancellation does not show the effect of one example. The other variables
            # go through the same sums, and they show it.
            largest_step = max([largest_step, *self._movement.largest_steps(VariableKind.TRAINABLE, step)])
        spacing = 2 * max(storage * scale, compute * largest_step if self._half else 0.0)
        # The slot may follow the square of the gradient, and so the square of the share of one example.
        effect = max(largest_step / self._batch, spacing, term / self._batch**2)
        return self._with_origin(value, len(noise), effect, tight)

    def _term(self, index: int, step: int) -> float:
        """Return how far a single example moves a slot, if that was measured in this step or an earlier one."""
        if self._slices is None or not 0 < self._slices.step <= step:
            return 0.0
        at = self._slices.step
        before = self.reference.value(index, at - 1)
        values = [run.value(index, at) for run in self._slices.terms if run.num_steps >= at]
        start = 0.0 if before is None else before.astype(np.float64)
        return max((magnitude(value - start) for value in values if value is not None), default=0.0)

    def _still(self, value: float, noise: Sequence[float]) -> float:
        """Return the largest step of a variable that only rounding moves, given its bound and its measured noise.

        The operands of every rounding differ between a perturbed run and the reference. So their distance is a sample
        of the rounding error, as in half precision. A wide bound would take small steps for rounding.
        """
        return min(value, 2 * self.confidence * max(noise)) if noise and self._half is None else value

    def _with_origin(self, value: float, measured: int, effect: float, tight: float) -> Bound:
        """Build a bound with its origin and with advice on how to narrow it."""
        computed = f" in {self._half}" if self._half else ""
        origin = _UNMEASURED.replace("rounding", f"rounding{computed}")
        if measured:
            origin = f"how far {measured} run(s){computed} moved when the last digit of their inputs was changed"
            origin += f", times {self.amplification:.3g}"
        if self._half:
            advice = (
                f"that is the rounding of {self._half}: use a larger learning rate, a smaller batch or fewer steps, or "
                'check the program in float32 too: keras.config.set_dtype_policy("float32"), casts to float32'
            )
        elif self.reference.precision == "float64":
            advice = "use fewer steps"
        else:
            advice = Bound.advice
        lost = (bool(self.perturbed) and not measured) or (self._slices is not None and self._slices.unended)
        if lost:
            advice = "the runs that measure rounding ended before this step: see the notes"
        return Bound(value, origin, effect, bool(measured), tight, not measured, lost, advice)

    def _share(self, scale: float) -> float:
        """Estimate the effect of one example on a number, or of a gross mistake if float64 has decided."""
        return scale * GROSS if self._decided else scale * max(1 / self._batch, 2 * self._compute if self._half else 0)

    def _scalar(self, value: float | None, noisy: Sequence[float | None], roundoff: float) -> Bound:
        if value is None:
            return Bound(0.0, "there is no reference value")
        scale = abs(value) if math.isfinite(value) else 0.0
        bound = tight = 2 * self.relative(roundoff) * scale
        # The noise is infinite if rounding decides whether the value is finite.
        noise = [difference(np.asarray(other), np.asarray(value)).error for other in noisy if other is not None]
        if noise:
            bound += self.amplification * max(noise)
        return self._with_origin(bound, len(noise), self._share(scale), tight)

    def _roundoff_of(self, name: str | None) -> float:
        """Return the coarsest roundoff on the way to a named value, or to the loss (``None``)."""
        if name not in self._scalars:
            self._scalars[name] = max(self._compute, scalar_roundoff(self.reference, name))
        return self._scalars[name]


def _global_batch(reference: TrainingRecord) -> int:
    observed = [sum(b.size for b in reference.batches(step)) for step in range(1, reference.num_steps + 1)]
    return max([*observed, reference.global_batch_size or 0, 1])
