"""L-BFGS as a coordinator that sends small commands to a machine, which keeps all vectors; and one machine in NumPy."""

from __future__ import annotations

import math
import time
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[Any]
POINT, GRADIENT, DIRECTION, TRIAL, TRIAL_GRADIENT = range(5)
_PAIRS = 5
"""First register of the pairs of steps and differences of gradients."""
SUFFICIENT, CURVATURE = 1e-4, 0.9
"""Constants of the weak Wolfe conditions (Nocedal and Wright 2006, Numerical optimization, section 3.1)."""
LONGEST_SEARCH = 40
OPERATION_BYTES, REGISTER_BYTES, NUMBER_BYTES = 1, 1, 8


class SearchError(ArithmeticError):
    """Raised if no step satisfies the Wolfe conditions, for example because the gradient is wrong."""


class Machine(Protocol):
    """Holder of vectors in numbered registers. Each method is a command; only numbers are sent and answered."""

    def gradient(self, point: int, out: int) -> float:
        """Write the gradient at the vector ``point`` into ``out``, and return the objective there."""

    def dot(self, one: int, other: int) -> float:
        """Return the inner product of two vectors."""

    def combine(self, out: int, factor: float, one: int, other_factor: float, other: int) -> None:
        """Write ``factor * one + other_factor * other`` into ``out``."""

    def start(self, registers: int) -> None:
        """Set this number of registers to zero."""

    def read(self, register: int) -> Vector:
        """Return a vector. The method itself never reads one; this is for its observer."""


@dataclass
class Trace:
    """Course of one minimization."""

    points: list[Vector] = field(default_factory=list)
    """Point after each iteration, from the start on."""
    objectives: list[float] = field(default_factory=list)
    norms: list[float] = field(default_factory=list)
    """Norm of the gradient at each point."""
    decisions: list[str] = field(default_factory=list)
    """Branches that the line search of each iteration took: ``s`` shortened, ``l`` lengthened."""
    seconds: list[float] = field(default_factory=list)
    """Seconds of each iteration, without reading the point."""
    commands: Counter[str] = field(default_factory=Counter)
    command_bytes: int = 0
    """Bytes of all commands and answers of the coordinator: an operation, registers and numbers."""
    converged: bool = False

    @property
    def iterations(self) -> int:
        return len(self.decisions)


def minimize(machine: Machine, *, iterations: int, memory: int = 10, tolerance: float = 1e-7) -> Trace:
    """Minimize the machine's objective from zero by L-BFGS with a bisecting line search.

    Sources: Nocedal 1980, Updating quasi-Newton matrices with limited storage (two-loop recursion); Lewis and Overton
    2013, Nonsmooth optimization via quasi-Newton methods (line search); Dean et al. 2012 (a coordinator that sends
    commands such as inner products and scalings, while shards keep the vectors).

    :param memory: number of pairs of steps and differences of gradients.
    :param tolerance: norm of the gradient at which the minimization ends.
    :raises SearchError: if a line search fails.
    """
    coordinator = _Coordinator(machine, memory)
    coordinator.run(iterations, tolerance)
    return coordinator.trace


class _Coordinator:
    """Sender of the commands, which counts them."""

    def __init__(self, machine: Machine, memory: int) -> None:
        self._machine = machine
        self._memory = memory
        self._pairs: deque[tuple[int, int, float, float]] = deque(maxlen=memory)
        """Registers of a step and of its difference of gradients, their inner product, and the latter's square."""
        self.trace = Trace()

    def run(self, iterations: int, tolerance: float) -> None:
        trace = self.trace
        self._machine.start(_PAIRS + 2 * self._memory)
        objective = self._gradient(POINT, GRADIENT)
        square = self._dot(GRADIENT, GRADIENT)
        self._observe(objective, square)
        for iteration in range(iterations):
            if math.sqrt(square) <= tolerance:
                break
            began = time.perf_counter()
            self._find_direction()
            first = 1.0 if self._pairs else 1.0 / math.sqrt(square)
            objective, branches = self._search(objective, first)
            slot = _PAIRS + 2 * (iteration % self._memory)
            self._combine(slot, 1.0, TRIAL, -1.0, POINT)
            self._combine(slot + 1, 1.0, TRIAL_GRADIENT, -1.0, GRADIENT)
            self._pairs.append((slot, slot + 1, self._dot(slot, slot + 1), self._dot(slot + 1, slot + 1)))
            self._combine(POINT, 1.0, TRIAL, 0.0, TRIAL)
            self._combine(GRADIENT, 1.0, TRIAL_GRADIENT, 0.0, TRIAL_GRADIENT)
            square = self._dot(GRADIENT, GRADIENT)
            trace.seconds.append(time.perf_counter() - began)
            trace.decisions.append(branches)
            self._observe(objective, square)
        trace.converged = math.sqrt(square) <= tolerance

    def _find_direction(self) -> None:
        self._combine(DIRECTION, -1.0, GRADIENT, 0.0, GRADIENT)
        weights = []
        for step, change, product, _square in reversed(self._pairs):
            weight = self._dot(step, DIRECTION) / product
            weights.append(weight)
            self._combine(DIRECTION, 1.0, DIRECTION, -weight, change)
        if self._pairs:
            _step, _change, product, square = self._pairs[-1]
            self._combine(DIRECTION, product / square, DIRECTION, 0.0, DIRECTION)
        for (step, change, product, _square), weight in zip(self._pairs, reversed(weights), strict=True):
            other = self._dot(change, DIRECTION) / product
            self._combine(DIRECTION, 1.0, DIRECTION, weight - other, step)

    def _search(self, objective: float, length: float) -> tuple[float, str]:
        """Find a step that satisfies the weak Wolfe conditions, and leave it in the registers of the trial."""
        slope = self._dot(GRADIENT, DIRECTION)
        low, high, branches = 0.0, math.inf, ""
        for _ in range(LONGEST_SEARCH):
            self._combine(TRIAL, 1.0, POINT, length, DIRECTION)
            found = self._gradient(TRIAL, TRIAL_GRADIENT)
            if not found <= objective + SUFFICIENT * length * slope:
                high, branches = length, branches + "s"
            elif self._dot(TRIAL_GRADIENT, DIRECTION) < CURVATURE * slope:
                low, branches = length, branches + "l"
            else:
                return found, branches
            length = 2 * low if math.isinf(high) else (low + high) / 2
        raise SearchError(
            f"iteration {self.trace.iterations + 1}: no step satisfies the Wolfe conditions (objective {objective!r}, "
            f"slope {slope!r}): the gradient does not belong to the objective, or rounding is as large as the decrease"
        )

    def _observe(self, objective: float, square: float) -> None:
        self.trace.points.append(self._machine.read(POINT))
        self.trace.objectives.append(objective)
        self.trace.norms.append(math.sqrt(square))

    def _gradient(self, point: int, out: int) -> float:
        self._count("gradient", registers=2, numbers=1)
        return self._machine.gradient(point, out)

    def _dot(self, one: int, other: int) -> float:
        self._count("dot", registers=2, numbers=1)
        return self._machine.dot(one, other)

    def _combine(self, out: int, factor: float, one: int, other_factor: float, other: int) -> None:
        self._count("combine", registers=3, numbers=2)
        self._machine.combine(out, factor, one, other_factor, other)

    def _count(self, command: str, *, registers: int, numbers: int) -> None:
        self.trace.commands[command] += 1
        self.trace.command_bytes += OPERATION_BYTES + registers * REGISTER_BYTES + numbers * NUMBER_BYTES


@dataclass(frozen=True)
class Problem:
    """Softmax regression with a penalty, in float64: the mean cross-entropy plus ``penalty / 2`` times the square norm.

    The objective is strongly convex with the constant ``penalty``: two points are never farther apart than the sum of
    their gradients' norms divided by it (Nesterov 2004, Introductory lectures on convex optimization, theorem 2.1.10).
    """

    features: Vector
    """``[examples, features]``, float64."""
    labels: Vector
    """``[examples]``, whole numbers from 0."""
    classes: int
    penalty: float

    @property
    def size(self) -> int:
        """Number of parameters: a weight for each feature and class."""
        return int(self.features.shape[1]) * self.classes

    def gradient(self, point: Vector) -> tuple[float, Vector]:
        """Return objective and gradient at ``point`` ``[size]``, computed in the dtype of ``point``."""
        weights = point.reshape(-1, self.classes)
        scores = self.features.astype(point.dtype) @ weights
        scores -= scores.max(axis=1, keepdims=True)
        totals = np.exp(scores).sum(axis=1, keepdims=True)
        rows = np.arange(len(self.labels))
        loss = (np.log(totals[:, 0]) - scores[rows, self.labels]).mean() + self.penalty / 2 * (point @ point)
        errors = np.exp(scores) / totals
        errors[rows, self.labels] -= 1
        slopes = self.features.astype(point.dtype).T @ errors / len(self.labels)
        return float(loss), slopes.ravel() + self.penalty * point

    def permuted(self, seed: int) -> tuple[Problem, Vector]:
        """Return the same problem with its examples and features in another order, which changes only roundings.

        The second result takes parameters back: ``point[order]`` belongs to this problem.
        """
        generator = np.random.default_rng(seed)
        rows = generator.permutation(len(self.labels))
        columns = generator.permutation(self.features.shape[1])
        back = np.argsort(columns)
        order = np.arange(self.size).reshape(-1, self.classes)[back].ravel()
        shuffled = self.features[rows][:, columns]
        return Problem(shuffled, self.labels[rows], self.classes, self.penalty), order


def digits_problem(penalty: float) -> Problem:
    """Return the problem of scikit-learn's digits: 1797 examples, 64 features and a constant one, 10 classes."""
    from sklearn.datasets import load_digits

    found = load_digits()
    features = np.hstack([found.data / 16.0, np.ones((len(found.data), 1))])
    return Problem(features.astype(np.float64), found.target.astype(np.int64), 10, penalty)


class OneMachine:
    """Machine that keeps all vectors and data in this process, in NumPy's float64."""

    def __init__(self, problem: Problem) -> None:
        self._problem = problem
        self._registers: list[Vector] = []

    def start(self, registers: int) -> None:
        self._registers = [np.zeros(self._problem.size) for _ in range(registers)]

    def gradient(self, point: int, out: int) -> float:
        objective, self._registers[out] = self._problem.gradient(self._registers[point])
        return objective

    def dot(self, one: int, other: int) -> float:
        return float(self._registers[one] @ self._registers[other])

    def combine(self, out: int, factor: float, one: int, other_factor: float, other: int) -> None:
        self._registers[out] = factor * self._registers[one] + other_factor * self._registers[other]

    def read(self, register: int) -> Vector:
        return self._registers[register].copy()


def put_back(trace: Trace, order: Sequence[int] | Vector) -> Trace:
    """Return the trace of a permuted problem with its points in the order of the original one."""
    trace.points = [point[np.asarray(order)] for point in trace.points]
    return trace
