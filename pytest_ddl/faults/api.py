"""Inject faults into a training function whose comparison with one device has not failed."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from pytest_ddl.equivalence.expectations import Expect
from pytest_ddl.equivalence.findings import Symptom
from pytest_ddl.equivalence.runs.api import question_of
from pytest_ddl.equivalence.runs.comparer import Comparer
from pytest_ddl.equivalence.runs.question import (
    SEED,
    ArgumentError,
    Question,
    TrainFunction,
    explains_arguments,
    is_whole,
)
from pytest_ddl.equivalence.verdict.report import Report
from pytest_ddl.faults.rank.fault import FaultError
from pytest_ddl.faults.report import FaultReport, Limits
from pytest_ddl.faults.sweep import Faults, Injector, NotInjectedError, Plan, Sweep, inject, parsed
from pytest_ddl.faults.tasks import Tasks
from pytest_ddl.faults.trials import Restarts
from pytest_ddl.hints import Hint
from pytest_ddl.items.selection import is_seconds
from pytest_ddl.records import TrainingRecord
from pytest_ddl.strategies.registry import StrategyRegistry
from pytest_ddl.strategies.spec import StrategySpec


@explains_arguments("check_training")
def check_training(
    train: TrainFunction,
    strategy: str = "mirrored",
    *,
    global_batch_size: int | None = None,
    steps: int | None = None,
    precision: str = "auto",
    expect: Expect = (),
    strict: bool = False,
    checks: Collection[str] | None = None,
    timeout: float | None = None,
    device: str = "auto",
    seed: int = SEED,
    faults: Faults | None = None,
    exact: bool = False,
    max_lost_steps: int | None = None,
    detected_within: float | None = None,
    always_loadable: bool = False,
    restart_on: str | None = None,
) -> Report | FaultReport:
    """Compare ``train(run)`` under a strategy with the same function on one device, outside pytest.

    :param strategy: a name or variant, for example ``"mirrored[replicas=4]"``.
    :param global_batch_size: examples per step over all replicas, given to the function as ``run.global_batch_size``.
    :param steps: steps after which the loops of the function end; ``None`` for the end of its data.
    :param precision: ``"auto"`` compares in float64 if the program allows it; ``"float64"``, ``"native"``.
    :param expect: cause ids -> reason, for differences that are intended; under the name of a strategy or variant, only
        for that one: ``{"mirrored": {"cause-id": "reason"}}``.
    :param strict: fail on named approximations too.
    :param checks: names of the checks to run, all by default. A named check that does not apply is inconclusive.
    :param timeout: seconds for everything; with ``faults=``, for the comparison and for each attempt.
    :param seed: seed of Python, NumPy, TensorFlow and Keras in every run, given to the function as ``run.seed``.
    :param faults: faults to inject after a comparison that has not failed: a text such as
        ``"kill worker:1 before step 3"``, a list of them, a :class:`Fault`, a :class:`Sweep`, a generator, or
        ``"every point"``. The program is then started again, and a :class:`FaultReport` is returned.
    :param exact: with ``faults=``: a resumed run must end with the same bits as an uninterrupted one.
    :param max_lost_steps: maximum number of steps that a fault may cost.
    :param detected_within: maximum seconds from a fault to the end of all ranks.
    :param always_loadable: a resumed run must continue at the last complete save, or later.
    :param restart_on: variant on which the program continues, for example with another number of workers.
    :return: a :class:`Report`, or a :class:`FaultReport` if faults were injected.
    :raises ValueError: for an argument that cannot be used.
    :raises ClusterError: if the strategy cannot be built on this machine.
    """
    harness, question = question_of(
        train,
        strategy,
        device,
        global_batch_size=global_batch_size,
        steps=steps,
        precision=precision,
        expect=expect,
        strict=strict,
        checks=checks,
        timeout=timeout,
        seed=seed,
    )
    further = {
        "faults": faults,
        "exact": exact,
        "max_lost_steps": max_lost_steps,
        "detected_within": detected_within,
        "always_loadable": always_loadable,
        "restart_on": restart_on,
    }
    injection = injection_of(further, question.spec, harness.registry)
    comparer = Comparer(harness)
    report = comparer.compare(question)
    if injection is None or _fails(report):
        return report
    return with_faults(comparer, question, report, injection)


def _fails(report: Report) -> bool:
    """Return whether the comparison without faults has a result that no fault can add to."""
    if report.expected_end is not None:
        return False
    return report.verdict == "fail" or not report.comparable or bool(report.program_reasons)


@dataclass(frozen=True)
class Injection:
    """Faults to inject after a comparison that has not failed, with what the program must keep."""

    plan: Plan
    limits: Limits
    tasks: Tasks
    restart_on: StrategySpec | None = None


def injection_of(given: Mapping[str, Any], spec: StrategySpec, registry: StrategyRegistry) -> Injection | None:
    """Return the faults that arguments ask for, or ``None`` if they ask for none.

    :param given: arguments of :func:`check_training` that do not belong to the comparison itself, by name.
    :raises ArgumentError: for a limit without faults, a text that is no fault, or a task that does not exist.
    """
    faults, restart_on = given.get("faults"), given.get("restart_on")
    limits = {one.name: given[one.name] for one in fields(Limits) if one.name in given}
    if faults is not None:
        try:
            plan, tasks = parsed(faults), Tasks.of(spec, registry)
            if isinstance(plan, Sweep):
                tasks.refuse_others(plan.tasks or ())
                tasks.refuse_kind(plan.kind)
            elif isinstance(plan, tuple):
                tasks.refuse(plan)
        except FaultError as error:
            raise ArgumentError(f"{Hint.FAULTS}: {error}") from None
        return Injection(plan, _limits(limits), tasks, _variant(restart_on, registry))
    named = next((name for name, value in given.items() if value is not None and value is not False), None)
    if named is not None:
        raise ArgumentError(f"{named}={given[named]!r} concerns faults: give faults= too, for example 'every point'")
    return None


def _limits(given: Mapping[str, Any]) -> Limits:
    for name in ("exact", "always_loadable"):
        if not isinstance(given.get(name, False), bool):
            raise ArgumentError(f"{name}={given[name]!r} must be True or False")
    steps, seconds = given.get("max_lost_steps"), given.get("detected_within")
    if steps is not None and not (is_whole(steps) and steps >= 0):
        raise ArgumentError(f"{Hint.MAX_LOST_STEPS(repr(steps))} must be a whole number, at least 0")
    if seconds is not None and seconds != 0 and not is_seconds(seconds):
        raise ArgumentError(f"{Hint.DETECTED_WITHIN(repr(seconds))} must be a number of seconds, at least 0")
    return Limits(**given)


def _variant(restart_on: str | None, registry: StrategyRegistry) -> StrategySpec | None:
    try:
        return None if restart_on is None else registry.parse_variant(restart_on)
    except ValueError as error:
        raise ArgumentError(f"{Hint.RESTART_ON(repr(restart_on))}: {error}") from None


def with_faults(comparer: Comparer, question: Question, report: Report, injection: Injection) -> FaultReport:
    """Inject faults into a program whose comparison has not failed.

    :param report: report of the comparison. If the run that it compared has ended by itself, nothing can be injected.
    :raises ArgumentError: for faults that do not exist.
    """
    spec, tasks = question.spec, injection.tasks.every
    if ends := [one for one in report.excused if one.symptom in (Symptom.CRASH, Symptom.HANG)]:
        why = f"the run without a fault ends by itself, by {ends[0].cause or ends[0].known}: {ends[0].message}"
        return FaultReport(str(spec), tasks, (), injection.limits, report, 0, not_injected=why)
    asked = comparer.asked(question)
    comparison = replace(asked, base=replace(asked.base, precision=report.distributed.precision), repeated=True)
    timeout = comparer.harness.timeout(question.mark) if question.timeout is None else question.timeout

    def judged(record: TrainingRecord) -> Report:
        timed = replace(comparison.program, deadline=time.monotonic() + timeout)
        return replace(comparison, program=timed).of_record(record)

    restarts = Restarts(on=injection.restart_on)
    injector = Injector(comparison.program, comparison.base, report, judged, timeout, restarts, injection.tasks)
    try:
        return inject(injector, injection.plan, injection.limits)
    except NotInjectedError as error:
        return FaultReport(str(spec), tasks, (), injection.limits, report, 0, not_injected=str(error))
    except FaultError as error:
        raise ArgumentError(f"faults: {error}") from None
