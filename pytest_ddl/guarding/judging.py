"""Judge what the replicas hold: which copies differ that must be equal, and the cause in the words of the checks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from pytest_ddl.equivalence.causes import CAUSES, fix_of
from pytest_ddl.equivalence.causes.cause import Form
from pytest_ddl.equivalence.evidence.arrays import Difference, difference, same
from pytest_ddl.equivalence.findings import Finding
from pytest_ddl.guarding.copies import Holding, Rows
from pytest_ddl.hints import FrontEnd
from pytest_ddl.messages import listed
from pytest_ddl.records import Array, VariableKind
from pytest_ddl.training.watching import Watched

CHECK = "GUARD"

_CAUSES = (
    "unequal-steps",
    "examples-duplicated",
    "iteration-count-wrong",
    "learning-rate-differs",
    "non-finite-not-synchronised",
    "loss-scale-not-synchronised",
    "state-not-aggregated",
    "initial-weights-differ",
    "replicas-diverged",
    "workers-diverged",
    None,
)
"""Causes in the order in which one may explain those after it. Findings without a cause come last."""


@dataclass(frozen=True)
class Moment:
    """Step at which copies are compared, the number of replicas of each worker, and the tolerance."""

    step: int
    local: int
    """Number of replicas of each worker."""
    tolerance: Callable[[Watched], float]
    """Returns by how much copies of a variable may differ, as a fraction of its largest value."""

    def worker(self, replica: int) -> int:
        """Return the worker of a replica."""
        return replica // self.local

    @property
    def when(self) -> str:
        """When it is, in words."""
        return f"after step {self.step}" if self.step else "before the first step"


def in_order(findings: Iterable[Finding]) -> list[Finding]:
    """Return one finding for each cause, that which may explain others first. The largest difference is shown."""
    worst: dict[str | None, Finding] = {}
    for finding in findings:
        other = worst.get(finding.cause)
        if other is None:
            worst[finding.cause] = finding
            continue
        first, second = (finding, other) if (finding.error or 0) > (other.error or 0) else (other, finding)
        others = (*first.others, *([second.variable] if second.variable else []), *second.others)
        worst[finding.cause] = replace(first, others=others)
    return sorted(worst.values(), key=lambda finding: _CAUSES.index(finding.cause))


def of_variables(held: Iterable[Holding], moment: Moment) -> Iterator[Finding]:
    """Yield what is wrong with variables."""
    for one in held:
        finite = [bool(np.all(np.isfinite(copy))) for copy in one.copies] if one.group.finite else [True]
        if not all(finite):
            yield _not_finite(one, finite, moment)
        elif one.group.alike and (finding := _unlike(one, moment)):
            yield finding


def _not_finite(held: Holding, finite: Sequence[bool], moment: Moment) -> Finding:
    name, on_some = held.item.record.name, any(finite)
    cause = "non-finite-not-synchronised" if on_some else None
    where = "not on all replicas" if on_some else "on no replica"
    replica = finite.index(False)
    return Finding(
        CHECK,
        f"{name} is finite {where} {moment.when}",
        cause,
        step=moment.step,
        variable=name,
        replica=replica,
        worker=moment.worker(replica),
        error=np.inf,
        tolerance=0.0,
        fix=fix_of(cause),
    )


def _unlike(held: Holding, moment: Moment) -> Finding | None:
    first, *others = held.copies
    unlike = [(at, difference(copy, first)) for at, copy in enumerate(others, 1) if not same(copy, first)]
    tolerance = moment.tolerance(held.item)
    bound = tolerance * float(np.max(np.abs(first), initial=0.0)) if tolerance else 0.0
    if not unlike or all(found.error <= bound for _at, found in unlike):
        return None
    replica, worst = max(unlike, key=lambda pair: pair[1].error)
    within = any(
        not same(held.copies[at], held.copies[at - at % moment.local])
        for at in range(len(held.copies))
        if at % moment.local
    )
    return _differing(held, _cause(held, moment, within), replica, worst, bound, moment, within)


def _cause(held: Holding, moment: Moment, within: bool) -> str:
    record = held.item.record
    if record.kind is VariableKind.LEARNING_RATE:
        return "learning-rate-differs"
    if not moment.step:
        return "initial-weights-differ"
    if record.kind is VariableKind.ITERATIONS:
        return "iteration-count-wrong"
    if record.kind is VariableKind.STATE:
        return "loss-scale-not-synchronised" if record.is_loss_scale else "state-not-aggregated"
    return "replicas-diverged" if within else "workers-diverged"


def _differing(
    held: Holding, cause: str, replica: int, worst: Difference, bound: float, moment: Moment, within: bool
) -> Finding:
    record, fix = held.item.record, fix_of(cause)
    name, copies = record.name, "replicas" if within else "workers"
    if fix is not None and record.of_keras and record.kind is VariableKind.STATE:
        fix = fix.of((Form.LAYER,))
    return Finding(
        CHECK,
        f"{name} is not the same on all {copies} {moment.when}",
        cause,
        step=moment.step,
        variable=name,
        replica=replica,
        worker=moment.worker(replica),
        error=worst.error,
        tolerance=bound,
        fix=fix,
        observed=f"{worst.actual} at {list(worst.index)}" if worst.index else worst.actual,
        expected=f"{worst.desired} at {list(worst.index)}" if worst.index else worst.desired,
    )


def of_numbers(steps: Rows, rates: Sequence[tuple[str, Array]], moment: Moment) -> Iterator[Finding]:
    """Yield what is wrong with numbers that each worker keeps in Python: its steps, and rates that are no variables.

    :param steps: number of steps of each replica's worker.
    :param rates: name and values, one for each replica, of each rate.
    """
    for name, numbers, cause, text in (
        ("", steps, "unequal-steps", "the workers have not made the same number of steps"),
        *((name, rate, "learning-rate-differs", f"{name} is not the same on all workers") for name, rate in rates),
    ):
        unlike = [at for at, number in enumerate(numbers) if not same(np.asarray(number), np.asarray(numbers[0]))]
        if unlike:
            yield Finding(
                CHECK,
                f"{text} {moment.when}",
                cause,
                step=moment.step,
                variable=name or None,
                replica=unlike[0],
                worker=moment.worker(unlike[0]),
                error=float(abs(numbers[unlike[0]] - numbers[0])),
                tolerance=0.0,
                fix=fix_of(cause),
                observed=str(numbers[unlike[0]]),
                expected=str(numbers[0]),
            )


def text_of(findings: Sequence[Finding]) -> str:
    """Return the text of some findings, the first cause in front."""
    head = findings[0].cause or "not finite"
    lines = [f"{head}: {findings[0].message}"]
    for finding in findings:
        lines += ["", *_lines(finding)]
    if any(finding.variable for finding in findings):
        lines += ["", "To find the line of the mistake, compare with one device: pytest-ddl try train.py"]
    return "\n".join(lines)


def _lines(finding: Finding) -> Iterator[str]:
    more = f" (with {len(finding.others)} other variable(s))" if finding.others else ""
    yield f"{finding.check}: {finding.message}{more}"
    variable = f"variable {finding.variable}, " if finding.variable else ""
    yield f"  where:       step {finding.step}, {variable}replica {finding.replica}, worker {finding.worker}"
    if finding.observed is not None:
        yield f"  copy:        {finding.observed}"
        yield f"  replica 0:   {finding.expected}"
        yield f"  difference:  max absolute difference {finding.error:.4g}, bound {finding.tolerance:.4g}"
    if finding.evidence:
        yield f"  evidence:    {finding.evidence}"
    if finding.cause:
        yield f"  cause:       {finding.cause}: {CAUSES[finding.cause].title}"
    if finding.fix:
        first, *rest = FrontEnd.TEST.render(finding.fix).splitlines()
        yield f"  fix:         {first}"
        yield from (f"  {line}" for line in rest)
    if finding.others:
        yield f"  others:      {listed(finding.others, 5)}"
