"""Machine of L-BFGS under a ``tf.distribute`` strategy: each replica keeps a part of the vectors and of the data."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from asv_bench.studies.lbfgs_method import Problem, Trace, Vector, minimize, put_back
from pytest_ddl.cluster.worker import own_rank


@dataclass(frozen=True)
class Orders:
    """Instructions that are sent to a rank."""

    problem: Problem
    iterations: int
    tolerance: float
    seeds: tuple[int, ...] = ()
    """Orders of examples and features in which the problem is solved again; see :meth:`Problem.permuted`."""


@dataclass(frozen=True)
class RankCourse:
    """Courses of one rank."""

    course: Trace
    permuted: tuple[Trace, ...]
    build_seconds: float
    """Seconds from the first tensor to the end of the first gradient, which traces all functions."""


def solve(orders: Orders) -> RankCourse:
    """Minimize on this rank; all ranks run the same coordinator, and get the same numbers from their collectives."""
    context = own_rank()
    began = time.perf_counter()
    machine = ShardedMachine(context.strategy, orders.problem)
    # Two iterations trace all functions, so that no time of an iteration includes tracing.
    minimize(machine, iterations=2, tolerance=orders.tolerance)
    built = time.perf_counter() - began
    course = minimize(machine, iterations=orders.iterations, tolerance=orders.tolerance)
    permuted = []
    for seed in orders.seeds:
        problem, order = orders.problem.permuted(seed)
        machine.load(problem)
        found = minimize(machine, iterations=orders.iterations, tolerance=orders.tolerance)
        permuted.append(put_back(found, order))
    return RankCourse(course, tuple(permuted), built)


class ShardedMachine:
    """Machine whose vectors are split evenly over the replicas, and whose examples too.

    A gradient gathers the point, computes the part of each replica's examples, and sums these parts. An inner product
    sums one number of each replica. A combination of vectors needs no communication.
    """

    def __init__(self, strategy: Any, problem: Problem) -> None:
        self._strategy = strategy
        self._replicas: int = strategy.num_replicas_in_sync
        self._size = problem.size
        self._part = -(-problem.size // self._replicas)
        """Elements of a vector that each replica keeps; the last ones of the last replicas are zeros."""
        self._registers: list[Any] = []
        self._features: Any = None
        self._labels: Any = None
        self.load(problem)
        self._gradient, self._dot, self._combine, self._gather = self._functions(problem)

    def load(self, problem: Problem) -> None:
        """Give each replica its part of the examples. The problem must have the shape of the first one."""
        count = len(problem.labels)
        edges = [count * place // self._replicas for place in range(self._replicas + 1)]

        def rows(of: Vector) -> Callable[[Any], Any]:
            def part(context: Any) -> Any:
                import tensorflow as tf

                place = int(context.replica_id_in_sync_group)
                return tf.constant(of[edges[place] : edges[place + 1]])

            return part

        distribute = self._strategy.experimental_distribute_values_from_function
        self._features, self._labels = distribute(rows(problem.features)), distribute(rows(problem.labels))

    def start(self, registers: int) -> None:
        import tensorflow as tf

        zeros = tf.zeros([self._part], tf.float64)
        self._registers = [
            self._strategy.experimental_distribute_values_from_function(lambda _context: tf.identity(zeros))
            for _ in range(registers)
        ]

    def gradient(self, point: int, out: int) -> float:
        objective, self._registers[out] = self._gradient(self._registers[point], self._features, self._labels)
        return float(objective.numpy())

    def dot(self, one: int, other: int) -> float:
        return float(self._dot(self._registers[one], self._registers[other]).numpy())

    def combine(self, out: int, factor: float, one: int, other_factor: float, other: int) -> None:
        import tensorflow as tf

        numbers = tf.constant([factor, other_factor], tf.float64)
        self._registers[out] = self._combine(numbers, self._registers[one], self._registers[other])

    def read(self, register: int) -> Vector:
        return np.asarray(self._gather(self._registers[register]).numpy())[: self._size]

    def _functions(self, problem: Problem) -> tuple[Any, Any, Any, Any]:
        """Return the traced commands: gradient, inner product, combination, and reading a vector."""
        import tensorflow as tf

        strategy, part, size, classes, penalty = (
            self._strategy, self._part, self._size, problem.classes, problem.penalty,
        )  # fmt: skip
        examples, padding = float(len(problem.labels)), part * self._replicas - size
        total = tf.distribute.ReduceOp.SUM

        def own_gradient(point: Any, features: Any, labels: Any) -> Any:
            context = tf.distribute.get_replica_context()
            # A device is needed: MultiWorkerMirroredStrategy puts the result there, and an argument has none.
            whole = context.all_gather(tf.identity(point), axis=0)[:size]
            weights = tf.reshape(whole, [-1, classes])
            scores = features @ weights
            scores -= tf.reduce_max(scores, axis=1, keepdims=True)
            totals = tf.reduce_sum(tf.exp(scores), axis=1, keepdims=True)
            chosen = tf.one_hot(labels, classes, dtype=tf.float64)
            losses = tf.math.log(totals[:, 0]) - tf.reduce_sum(scores * chosen, axis=1)
            errors = tf.exp(scores) / totals - chosen
            slopes = tf.reshape(tf.matmul(features, errors, transpose_a=True), [-1]) / examples
            loss = tf.reduce_sum(losses) / examples + penalty / 2 * tf.reduce_sum(point * point)
            summed = context.all_reduce(total, tf.pad(slopes, [[0, padding]]))
            first = tf.cast(context.replica_id_in_sync_group, tf.int32) * part
            return loss, summed[first : first + part] + penalty * point

        def gradient(point: Any, features: Any, labels: Any) -> Any:
            losses, slopes = strategy.run(own_gradient, args=(point, features, labels))
            return strategy.reduce(total, losses, axis=None), slopes

        def dot(one: Any, other: Any) -> Any:
            products = strategy.run(lambda a, b: tf.reduce_sum(a * b), args=(one, other))
            return strategy.reduce(total, products, axis=None)

        def combine(numbers: Any, one: Any, other: Any) -> Any:
            return strategy.run(lambda n, a, b: n[0] * a + n[1] * b, args=(numbers, one, other))

        def gather(vector: Any) -> Any:
            gathered = strategy.run(
                lambda one: tf.distribute.get_replica_context().all_gather(tf.identity(one), axis=0), args=(vector,)
            )
            return strategy.experimental_local_results(gathered)[0]

        return tf.function(gradient), tf.function(dot), tf.function(combine), tf.function(gather)
