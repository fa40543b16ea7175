"""Compute a gradient from parts: weighted sums of the replicas' gradients, and clipping."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from pytest_ddl.equivalence.evidence.arrays import Float, difference, magnitude, norm

Values = Mapping[int, Float]
"""Variable index -> value."""
_MOST = 20_000
"""Maximum number of equations to solve. A handful of weights needs no more."""

_ROUNDED = 1e-12
"""Rounding of a solution in float64, in relation to its largest weight."""


@dataclass(frozen=True)
class Weights:
    """Weights of a weighted sum, with the largest rounding error of each."""

    values: tuple[float, ...]
    slack: tuple[float, ...]

    @property
    def total(self) -> float:
        return sum(self.values)

    @property
    def all_positive(self) -> bool:
        """True if every weight is larger than 0 by more than rounding."""
        return all(value > slack for value, slack in zip(self.values, self.slack, strict=True))

    @property
    def omitted(self) -> list[int]:
        """Positions of the parts whose weight is 0 within rounding."""
        return [i for i, (v, s) in enumerate(zip(self.values, self.slack, strict=True)) if abs(v) <= s]

    def are(self, desired: Sequence[float]) -> bool:
        """Return whether the weights are the desired ones within rounding."""
        return all(abs(v - d) <= s for v, d, s in zip(self.values, desired, self.slack, strict=True))

    def total_is(self, desired: float) -> bool:
        return abs(self.total - desired) <= sum(self.slack)


def weighted_sum(parts: Sequence[Values], weights: Sequence[float], index: int) -> Float | None:
    """Sum the parts of one variable. A part without the variable counts as zero; ``None`` if all parts lack it."""
    terms = [weight * part[index] for part, weight in zip(parts, weights, strict=True) if index in part]
    return np.sum(terms, axis=0) if terms else None


def solve(target: Values, parts: Sequence[Values], slack: Mapping[int, float]) -> Weights | None:
    """Solve for the weights that make the target from the parts, within rounding and for all variables at once.

    Return ``None`` if no weights do. Return ``None`` too if several weights do (parts that are multiples of each
    other), because such weights prove nothing. Equations are divided by the slack of their variable, so that each may
    be violated by one unit.
    """
    rows, desired = [], []
    for index, value in target.items():
        unit = slack[index]
        if unit == 0 and not np.any(value) and not any(np.any(part[index]) for part in parts if index in part):
            continue  # zero everywhere, so that any weights fit
        if unit <= 0 or not all(part[index].shape == value.shape for part in parts if index in part):
            return None
        zero = np.zeros_like(value)
        rows.append(np.stack([part.get(index, zero).ravel() for part in parts], axis=1) / unit)
        desired.append(value.ravel() / unit)
    matrix = np.concatenate(rows) if rows else np.zeros((0, len(parts)))
    vector = np.concatenate(desired) if desired else np.zeros(0)
    stride = 1 + len(vector) // _MOST
    matrix, vector = matrix[::stride], vector[::stride]
    if not (np.all(np.isfinite(matrix)) and np.all(np.isfinite(vector))) or len(vector) <= len(parts):
        return None
    solution, _residual, rank, _singular = np.linalg.lstsq(matrix, vector, rcond=None)
    if rank < len(parts):
        return None
    # If each equation may be violated by one unit, the pseudo-inverse limits the resulting error of each weight.
    allowed = np.abs(np.linalg.pinv(matrix)).sum(axis=1) * max(1.0, float(np.abs(solution).sum()))
    # The solution is rounded, too: a weight of 0 can have any sign.
    largest = float(np.max(np.abs(solution), initial=0.0))
    allowed += _ROUNDED * largest
    if np.any(allowed >= 0.5 * largest):
        return None
    residual = float(np.max(np.abs(matrix @ solution - vector), initial=0.0))
    if residual > 2 * max(1.0, float(np.abs(solution).sum())):
        return None
    return Weights(tuple(map(float, solution)), tuple(map(float, allowed)))


# -- clipping ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Clip:
    """Limit on gradients, with the meaning of an optimizer's ``clipnorm``, ``global_clipnorm`` or ``clipvalue``."""

    kind: str
    limit: float

    def apply(self, gradients: Values) -> dict[int, Float]:
        if self.kind == "clipvalue":
            return {index: np.clip(value, -self.limit, self.limit) for index, value in gradients.items()}
        if self.kind == "global_clipnorm":
            factor = self.limit / max(global_norm(gradients), self.limit)
            return {index: factor * value for index, value in gradients.items()}
        return {index: value * (self.limit / max(norm(value), self.limit)) for index, value in gradients.items()}

    def size(self, gradients: Values) -> float:
        """Return the number that the limit is compared with."""
        if self.kind == "clipvalue":
            return max((magnitude(value) for value in gradients.values()), default=0.0)
        if self.kind == "global_clipnorm":
            return global_norm(gradients)
        return max((norm(value) for value in gradients.values()), default=0.0)

    def active(self, gradients: Values) -> bool:
        return self.size(gradients) > self.limit

    def __str__(self) -> str:
        return f"{self.kind}={self.limit:.4g}"

    @property
    def words(self) -> str:
        """Values that the limit allows, for a program that clips without an option of its optimizer."""
        return _ALLOWED[self.kind].format(f"at most {self.limit:.4g}")


_ALLOWED = {
    "clipvalue": "numbers of {}",
    "clipnorm": "a norm of {} for each variable",
    "global_clipnorm": "a norm of {} for all variables",
}


def global_norm(gradients: Values) -> float:
    return norm(np.array([norm(value) for value in gradients.values()], np.float64)) if gradients else 0.0


def clips_between(before: Values, after: Values, close: Callable[[int, Float, Float], bool]) -> Iterator[Clip]:
    """Yield the limits that turn some gradients into others and change at least one of them."""
    if not before or set(before) != set(after):
        return
    changed = [index for index in before if not close(index, after[index], before[index])]
    if not changed:
        return
    values = {index: after[index] for index in before}
    for clip in (
        Clip("clipnorm", max(norm(after[index]) for index in changed)),
        Clip("global_clipnorm", global_norm(values)),
        Clip("clipvalue", max(magnitude(after[index]) for index in changed)),
    ):
        if clip.limit > 0 and clip.active(before):
            cut = clip.apply(before)
            if all(close(index, after[index], cut[index]) for index in before):
                yield clip


def close_by(slack: Mapping[int, float], factor: float = 1.0) -> Callable[[int, Float, Float], bool]:
    """Return a function that compares two gradients of a variable within its slack."""
    return lambda index, left, right: difference(left, right).error <= factor * slack.get(index, 0.0)
