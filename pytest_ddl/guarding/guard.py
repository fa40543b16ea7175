"""Guard a real job: every few steps, compare what the replicas and workers hold."""

from __future__ import annotations

import logging
import math
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

from pytest_ddl.equivalence.causes import fix_of
from pytest_ddl.equivalence.expectations import Expectations, parse_expectations
from pytest_ddl.equivalence.findings import Finding
from pytest_ddl.guarding.copies import Copies, Rows
from pytest_ddl.guarding.judging import CHECK, Moment, in_order, of_numbers, of_variables, text_of
from pytest_ddl.records import VariableKind
from pytest_ddl.training import fingerprint
from pytest_ddl.training.watching import Watched

NUMBER = 64
"""Number of hashes of a batch: the smallest ones, so that equal batches in another order have the same."""
_COLUMNS = 1024
"""Number of elements of an example that are hashed, evenly spaced, so that images need not leave the device."""
_FEWEST = 2
"""Smallest number of different examples of a batch that is judged. A single one may be equal by chance."""
NOTHING = np.zeros(NUMBER, np.int64)
"""Row of a batch that is not known. A hash is never 0."""


def hashes(strategy: Any, batch: Any, local: int) -> list[Rows]:
    """Return a row of hashes for each replica of this process."""
    import tensorflow as tf

    parts: list[list[Any]] = [[] for _replica in range(local)]
    for leaf in tf.nest.flatten(batch):
        found = strategy.experimental_local_results(leaf)
        if len(found) != local:
            return [NOTHING] * local  # a batch that is not split over the replicas yet
        for replica, value in enumerate(found):
            parts[replica].append(value)
    return [_of_replica(tensors) for tensors in parts]


def _of_replica(tensors: list[Any]) -> Rows:
    import tensorflow as tf

    dense = [one for one in tensors if isinstance(one, tf.Tensor | np.ndarray) and len(one.shape) and one.shape[0]]
    if not dense or any(one.shape[0] != dense[0].shape[0] for one in dense):
        return NOTHING
    examples = fingerprint.combine(
        [fingerprint.hash_rows(_narrowed(one), position) for position, one in enumerate(dense)]
    )
    row = np.array(NOTHING)
    smallest = sorted(set(examples) - {0})[:NUMBER]
    row[: len(smallest)] = np.array(smallest, np.uint64).view(np.int64)
    return row


def _narrowed(tensor: Any) -> Any:
    """Return some elements of each example."""
    import tensorflow as tf

    flat = tf.reshape(tensor, [tensor.shape[0], -1])
    width = int(flat.shape[1])
    if width > _COLUMNS:
        flat = tf.gather(flat, np.linspace(0, width - 1, _COLUMNS).astype(np.int64), axis=1)
    return flat.numpy()


def duplicated(now: Rows, before: Rows, moment: Moment) -> Finding | None:
    """Return a finding if replicas consume the same examples.

    :param now: hashes of the batch of each replica in this step.
    :param before: those in the step before.
    """
    batches, earlier = ([set(row.tolist()) - {0} for row in rows] for rows in (now, before))
    judged = [
        at
        for at, batch in enumerate(batches)
        if len(batch) >= _FEWEST and len(earlier[at]) >= _FEWEST and not batch & earlier[at]
    ]
    for at, replica in enumerate(judged):
        for other in judged[:at]:
            shared, size = len(batches[replica] & batches[other]), min(len(batches[replica]), len(batches[other]))
            if 2 * shared >= size:
                cause = "examples-duplicated"
                return Finding(
                    CHECK,
                    f"replicas {other} and {replica} consume the same examples in step {moment.step}",
                    cause,
                    step=moment.step,
                    replica=replica,
                    worker=moment.worker(replica),
                    fix=fix_of(cause),
                    evidence=f"{shared} of {size} examples have the same contents, and none was in the batch before",
                )
    return None


_LOGGER = logging.getLogger("pytest_ddl.guard")
_OFTEN = 16.0
"""Number of standard deviations that rounding may reach on a device whose sums have no fixed order."""

_UNITS = {1: 2.0**-3, 2: 2.0**-7, 4: 2.0**-23, 8: 2.0**-52}
"""Bytes of a floating dtype -> distance from 1 to the next number. Of 16 bits, it is that of bfloat16."""


class GuardError(RuntimeError):
    """Replicas of a running job no longer agree. ``findings`` names the variable, the place and the reason."""

    def __init__(self, findings: Collection[Finding]) -> None:
        super().__init__(text_of(list(findings)))
        self.findings = tuple(findings)


# Python prints the module of an exception in front of its message.
GuardError.__module__ = "pytest_ddl"


class Guard:
    """Guard of a training loop; :func:`pytest_ddl.guard` makes one."""

    def __init__(
        self,
        strategy: Any,
        model: Any,
        optimizer: Any,
        variables: Any,
        every: int,
        on_finding: str,
        tolerance: float | None,
        expect: Mapping[str, str] | Collection[str],
    ) -> None:
        if isinstance(every, bool) or not isinstance(every, int) or every < 1:
            raise ValueError(f"every={every!r} must be a number of steps, 1 or more")
        if on_finding not in ("raise", "log"):
            raise ValueError(f'on_finding={on_finding!r} must be "raise" or "log"')
        if tolerance is not None and not 0 <= tolerance < 1:
            raise ValueError(f"tolerance={tolerance!r} must be a fraction of the largest value of a variable, or None")
        self._strategy = _with_copies(strategy)
        self._copies = Copies(self._strategy, model, optimizer, variables)
        self._every = every
        self._raises = on_finding == "raise"
        self._tolerance = _usual_tolerance(self._strategy) if tolerance is None else tolerance
        self._grows = tolerance is None
        self._expected: Expectations = parse_expectations(expect)
        self._before = self._nothing()
        self._seen: set[tuple[str | None, str | None]] = set()
        self.steps = 0
        """Number of steps that the guard was told of."""
        self.findings: list[Finding] = []
        """All findings so far. With ``on_finding="log"`` there may be several."""

    def step(self, batch: Any = None) -> None:
        """Count a step, and check after the first one and after each ``every`` steps. Call it on each worker.

        :param batch: the distributed batch of the step, to see whether the replicas get different examples.
        :raises GuardError: if replicas do not agree, unless ``on_finding="log"``.
        """
        self.steps += 1
        if self.steps == 1 or not self.steps % self._every:
            self.check(batch)
        if batch is not None and not (self.steps + 1) % self._every:
            self._before = self._hashes(batch)

    def reached(self, steps: int) -> None:
        """Say that some steps are done, for a loop that makes several at once. Checks if a check is due."""
        due = (steps > 0 and self.steps == 0) or steps // self._every > self.steps // self._every
        self.steps = steps
        if due:
            self.check()

    def check(self, batch: Any = None) -> tuple[Finding, ...]:
        """Check now, and return what was found. Call it on each worker.

        :raises GuardError: if replicas do not agree, unless ``on_finding="log"``.
        """
        now, before = self._hashes(batch) if batch is not None else self._nothing(), self._before
        self._before = self._nothing()
        steps = np.array([self.steps], np.int64)
        given, suspects = self._copies.look([np.concatenate([steps, *pair]) for pair in zip(now, before, strict=True)])
        moment = Moment(self.steps, self._copies.local, self._tolerance_of)
        end = 1 + 2 * NUMBER
        rates = given[:, end:].view(np.float64)
        named = [(item.record.name, rates[:, at]) for at, item in enumerate(self._copies.rates)]
        twice = duplicated(given[:, 1 : 1 + NUMBER], given[:, 1 + NUMBER : end], moment)
        findings = [
            *of_numbers(given[:, 0], named, moment),
            *of_variables(self._copies.held(suspects, self._tolerance_of), moment),
            *([twice] if twice is not None else []),
        ]
        return self._report(findings)

    def _report(self, found: list[Finding]) -> tuple[Finding, ...]:
        excused = self._expected.excusing(found)
        findings = in_order(finding for at, finding in enumerate(found) if at not in excused)
        new = [finding for finding in findings if (finding.cause, finding.variable) not in self._seen]
        self._seen |= {(finding.cause, finding.variable) for finding in new}
        self.findings += new
        if findings and self._raises:
            raise GuardError(findings)
        if new:
            _LOGGER.error("%s", text_of(new))
        return tuple(findings)

    def _hashes(self, batch: Any) -> list[Rows]:
        return hashes(self._strategy, batch, self._copies.local)

    def _nothing(self) -> list[Rows]:
        return [NOTHING] * self._copies.local

    def _tolerance_of(self, item: Watched) -> float:
        """Return by how much copies may differ. Whole numbers and learning rates must be equal."""
        if not self._tolerance or item.record.kind is VariableKind.LEARNING_RATE:
            return 0.0
        dtype = item.variable.dtype
        if not dtype.is_floating:
            return 0.0
        if not self._grows:
            return self._tolerance
        return self._tolerance * math.sqrt(max(self.steps, 1)) * _UNITS[dtype.size]


def guard(
    strategy: Any = None,
    model: Any = None,
    optimizer: Any = None,
    *,
    variables: Any = None,
    every: int = 100,
    on_finding: str = "raise",
    tolerance: float | None = None,
    expect: Mapping[str, str] | Collection[str] = (),
) -> Guard:
    """Guard a training loop of a real job: call ``step()`` of the result after each step, on each worker.

    It checks that all replicas and workers hold the same weights, slots, counters, learning rates and other state.
    Weights and slots must be finite, and the workers must have made the same number of steps. It needs no pytest.

    :param strategy: strategy of the job; ``None`` for that of the scope, or one device.
    :param model: a model of Keras, a ``tf.Module``, or a list of them.
    :param optimizer: optimizers, if the model was not compiled with them.
    :param variables: further variables or modules.
    :param every: number of steps between two checks. The first step is checked too.
    :param on_finding: ``"raise"`` for a :class:`GuardError`, or ``"log"`` for a record of the logger
        ``pytest_ddl.guard``, once for each finding.
    :param tolerance: by how much copies may differ, as a fraction of the largest value of the variable. ``0`` compares
        bits. ``None`` compares bits on CPUs. On other devices it allows the rounding of sums without a fixed order.
    :param expect: causes that are intended, with reasons, as for ``ddl_equivalence``.
    :raises ValueError: for a wrong argument, or a strategy whose replicas hold no copies.
    """
    return Guard(strategy, model, optimizer, variables, every, on_finding, tolerance, expect)


def _with_copies(strategy: Any) -> Any:
    """Return the strategy to guard.

    :raises ValueError: for one whose replicas share each variable, or split it.
    """
    import tensorflow as tf

    strategy = tf.distribute.get_strategy() if strategy is None else strategy
    if isinstance(strategy, tf.distribute.ParameterServerStrategy) or not hasattr(strategy, "extended"):
        raise ValueError(f"nothing to guard under {type(strategy).__name__}: its workers hold no copies of variables")
    return strategy


def _usual_tolerance(strategy: Any) -> float:
    """Return the number of standard deviations for devices whose sums have no fixed order; 0 if all are CPUs."""
    import tensorflow as tf

    if int(strategy.num_replicas_in_sync) == 1:
        return 0.0
    kinds = {tf.DeviceSpec.from_string(name).device_type for name in strategy.extended.worker_devices}
    return 0.0 if kinds == {"CPU"} else _OFTEN
