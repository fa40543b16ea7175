"""Compare a training function under a strategy with the same function on one device.

The reference runs once and is shared by all strategies (by all xdist workers too). With ``precision="auto"``, float64
is tried first. Rounding noise is measured only if it could change the verdict.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_ddl.cluster import ship
from pytest_ddl.cluster.cluster import GRACE, Answer, ClusterError, Fate
from pytest_ddl.cluster.protocol import Kind
from pytest_ddl.equivalence.checks.registry import CHECKS, Check, select
from pytest_ddl.equivalence.checks.run import place_of
from pytest_ddl.equivalence.evidence.arithmetic import half_precision
from pytest_ddl.equivalence.probes.follow import states_of
from pytest_ddl.equivalence.runs.alignment import align
from pytest_ddl.equivalence.runs.references import ReferenceStore
from pytest_ddl.equivalence.runs.remote import run_training
from pytest_ddl.equivalence.runs.resuming import joined
from pytest_ddl.equivalence.runs.slices import slices_to_recompute
from pytest_ddl.equivalence.runs.watchdog import Watchdog
from pytest_ddl.equivalence.verdict.expectations import Expect, expectations_for
from pytest_ddl.equivalence.verdict.judge import judge, needs_noise, require
from pytest_ddl.equivalence.verdict.own_precision import judged_in_own_precision, replaced_policies
from pytest_ddl.equivalence.verdict.single_precision import is_of_single_precision
from pytest_ddl.messages import summary
from pytest_ddl.records import ErrorRecord, RankRecord, TrainingRecord
from pytest_ddl.tracebacks import own_frame_of_stacks, own_frame_of_traceback
from pytest_ddl.training import collective_log
from pytest_ddl.training.settings import RunSettings

if TYPE_CHECKING:
    from pytest_ddl.equivalence.report import Report
    from pytest_ddl.harness import Harness
    from pytest_ddl.items.selection import DdlMark
    from pytest_ddl.strategies.spec import StrategySpec

SEED = 20_201
PRECISIONS = ("auto", "float64", "native")
NOISE_RUNS = 3
"""Number of perturbed references that measure rounding noise; see :mod:`pytest_ddl.equivalence.evidence.tolerance`."""
TrainFunction = Callable[[Any], Any]


class Comparer:
    """Comparison of training functions with their references, on the clusters of a harness."""

    def __init__(self, harness: Harness, checks: Sequence[Check] = CHECKS) -> None:
        self._harness = harness
        self._checks = checks
        self._references = ReferenceStore(harness)
        self._test = ""

    def compare(
        self,
        train: TrainFunction,
        spec: StrategySpec,
        mark: DdlMark,
        *,
        global_batch_size: int | None = None,
        steps: int | None = None,
        precision: str = "auto",
        expect: Expect = (),
        strict: bool = False,
        checks: Collection[str] | None = None,
        timeout: float | None = None,
        seed: int = SEED,
        test: str = "",
    ) -> Report:
        """Run ``train`` on one device and under ``spec``, and judge the difference.

        :param test: name of the test; references are shared only by the comparisons of one test.
        :raises ValueError: for an argument that cannot be used, naming it.
        """
        from pytest_ddl.equivalence.probes.registry import PROBES

        _validate(train, global_batch_size, steps, precision, timeout, seed)
        # A wrong name is a mistake of the caller. Report it before anything runs.
        declared = expectations_for(spec, expect, self._harness.registry)
        select(checks, self._checks)
        deadline = time.monotonic() + (timeout if timeout is not None else self._harness.timeout(mark))
        self._test = test

        def compare_once(
            settings: RunSettings, checks: Collection[str] | None, runs: int = 1, repeated: bool = True
        ) -> Report:
            decide = partial(
                judge, expect=declared, strict=strict, checks=checks, known=self._checks, repeated=repeated
            )
            now = time.monotonic()
            until = now + (deadline - now) / runs
            return self._compare_once(train, spec, mark, settings, precision, decide, until)

        settings = RunSettings(global_batch_size=global_batch_size, steps=steps, seed=seed)
        report = compare_once(settings, checks, repeated=False)
        done = report.reference.num_steps if report.reference is not None else 0
        if steps is not None and 0 < done < steps:
            note = f"steps={steps} is the most that is compared: the program's loops ended after {done}"
            report = replace(report, notes=(*report.notes, note))
        for probe in PROBES:
            if report.comparable and probe.wanted(report, checks or ()):
                report = probe.run(report, replace(settings, neutralise=report.neutralised), compare_once)
        return report if checks is None else require(report, checks)

    def _compare_once(
        self,
        train: TrainFunction,
        spec: StrategySpec,
        mark: DdlMark,
        base: RunSettings,
        precision: str,
        decide: Callable[..., Report],
        deadline: float,
    ) -> Report:
        """Run one reference and one distributed run, and whatever else is needed to judge the difference."""
        for tried in ("float64", "native") if precision == "auto" else (precision,):
            settings = replace(base, precision=tried)
            reference = self._reference(train, settings, mark, deadline)
            if precision == "auto" and tried == "float64" and not _is_float64(reference):
                continue
            distributed = self._run(train, spec, mark, settings, deadline)
            if tried == "native" or precision != "auto" or not _raised(distributed):
                break
        reference, settings = self._tried_without_strategy(train, reference, settings, mark, deadline)
        runs = align(
            reference,
            distributed,
            settings,
            lambda other: self._reference(train, other, mark, deadline),
            lambda other: self._run(train, spec, mark, other, deadline),
            lambda other: self._on_one_device(train, other, mark, deadline),
        )
        reference, distributed, settings = runs.reference, runs.distributed, runs.settings
        if settings.follow and not reference.errors:
            settings = replace(settings, states=states_of(reference, distributed))
            reference = self._reference(train, settings, mark, deadline)
        report = decide(reference, distributed)
        if needs_noise(report):
            ulp_of = half_precision(reference) or ""
            perturbed = [
                self._reference(train, replace(settings, perturbation=number, ulp_of=ulp_of), mark, deadline)
                for number in range(1, NOISE_RUNS + 1)
            ]
            report = decide(reference, distributed, perturbed)
            for step, slices in slices_to_recompute(report):
                parts = {
                    replica: self._reference(train, replace(settings, slice_step=step, slice_rows=rows), mark, deadline)
                    for replica, rows in slices.items()
                }
                report = decide(reference, distributed, perturbed, slices=parts, slice_step=step)
            report = replace(report, notes=(*report.notes, *_failures("a run that measures rounding noise", perturbed)))
        compare = partial(self._compare_once, train, spec, mark, base, deadline=deadline)
        if precision == "auto" and settings.precision == "float64" and is_of_single_precision(report):
            return compare("float32" if replaced_policies(reference) else "native", decide)
        if reference.refused is not None and not reference.errors:
            why = summary(reference.refused.type, reference.refused.message)
            note = f"one device was run without a strategy, because the program raises under OneDeviceStrategy: {why}"
            report = replace(report, notes=(note, *report.notes))
        report = runs.told(report)
        if precision == "float32" and (reference.errors or _raised(distributed)):
            return compare("native", decide)
        if precision in ("auto", "float32") and replaced_policies(reference):
            decide = partial(decide, decided=report.passed)
            return judged_in_own_precision(report, lambda: compare("native", decide))
        return report

    def _tried_without_strategy(
        self, train: TrainFunction, reference: TrainingRecord, settings: RunSettings, mark: DdlMark, deadline: float
    ) -> tuple[TrainingRecord, RunSettings]:
        """Run a reference that raised once more without a strategy, before the program is blamed.

        A program that raises under every strategy may still train in a script that uses none. The new run is then the
        reference.
        """
        if not _raised(reference):
            return reference, settings
        plain = replace(settings, without_strategy=True)
        return replace(self._reference(train, plain, mark, deadline), refused=reference.errors[0][1]), plain

    def _reference(self, train: TrainFunction, settings: RunSettings, mark: DdlMark, deadline: float) -> TrainingRecord:
        settings = replace(settings, is_reference=True, one_by_one=False)
        spec = self._harness.registry.default("one_device")
        key = ship.pack(train), settings, self._harness.device_for(spec, mark), self._test
        return self._references.get(key, lambda: self._on_one_device(train, settings, mark, deadline))

    def _on_one_device(
        self, train: TrainFunction, settings: RunSettings, mark: DdlMark, deadline: float
    ) -> TrainingRecord:
        spec = self._harness.registry.default("one_device")
        return self._run(train, spec, mark, replace(settings, is_reference=True), deadline)

    def _run(
        self, train: TrainFunction, spec: StrategySpec, mark: DdlMark, settings: RunSettings, deadline: float
    ) -> TrainingRecord:
        """Run a training function on a cluster. Errors there become part of the record."""
        started = time.monotonic()
        folder = Path(tempfile.mkdtemp(prefix="run-", dir=self._harness.folder))
        plain = settings.is_reference and settings.without_strategy
        settings = replace(settings, tmp_path=str(folder), without_strategy=plain)
        if settings.one_by_one and "workers" in spec.shape:
            spec = replace(spec, shape={**spec.shape, "workers": 1})
        try:
            ranks, num_replicas = self._attempt(train, spec, mark, settings, deadline)
            restarting = [rank.rank for rank in ranks if rank.results.get("restart")]
            if restarting and len(restarting) < len(ranks):
                ranks = [_alone(rank) if rank.rank in restarting else rank for rank in ranks]
            elif restarting:
                again = replace(settings, attempt=2, first_step=min(rank.num_steps for rank in ranks))
                later, num_replicas = self._attempt(train, spec, mark, again, deadline, fresh=True)
                pairs = zip(ranks, later, strict=True)
                ranks = [joined(first, second, again.first_step) for first, second in pairs]
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        return TrainingRecord(
            strategy=str(spec),
            num_replicas=num_replicas,
            ranks=tuple(ranks),
            global_batch_size=settings.global_batch_size,
            precision=settings.precision,
            seed=settings.seed,
            perturbation=settings.perturbation,
            seconds=time.monotonic() - started,
            neutralised=settings.neutralise,
            taken_over=tuple(settings.states.values) if settings.states else (),
        )

    def _attempt(
        self,
        train: TrainFunction,
        spec: StrategySpec,
        mark: DdlMark,
        settings: RunSettings,
        deadline: float,
        fresh: bool = False,
    ) -> tuple[list[RankRecord], int]:
        job = ship.pack(run_training, (train, settings))
        with self._harness.cluster(spec, mark, fresh=fresh) as cluster:
            several = cluster.num_ranks > 1
            stuck = Watchdog(settings.tmp_path, settings.attempt, cluster.num_ranks) if several else None
            answers = cluster.ask(Kind.CALL, job, deadline=deadline, patience=_patience, stuck=stuck)
            ranks = [_rank_record(answer, settings) for answer in answers]
            if any(rank.failed for rank in ranks):
                cluster.retired = cluster.retired or "the training function failed in it"
            return ranks, cluster.num_replicas


def _alone(rank: RankRecord) -> RankRecord:
    """Return the record of a rank that called ``run.restart()`` while others continued, which is an error."""
    message = "run.restart() was called on this rank and not on all; interrupt the program on every rank or on none"
    return replace(rank, error=ErrorRecord("RuntimeError", message, "", rank.num_steps))


def _failures(what: str, records: Sequence[TrainingRecord]) -> tuple[str, ...]:
    """Describe the exceptions of runs that help to judge, each once."""
    errors = [error for record in records for _rank, error in record.errors]
    told = [(summary(error.type, error.message), place_of(error)) for error in errors]
    return tuple(dict.fromkeys(f"{what} failed: {why}" + (f" ({place})" if place else "") for why, place in told))


def _patience(body: ship.Shipped) -> float | None:
    return GRACE if body.failed else None


def _rank_record(answer: Answer, settings: RunSettings) -> RankRecord:
    if answer.ok:
        record = ship.unpack(answer.body)
        assert isinstance(record, RankRecord)
        output = answer.stdout + answer.stderr
        return replace(record, error=replace(record.error, output=output[-4000:])) if record.error else record
    failure = answer.failure
    # The log of executed collectives is all that is left of a rank that gave no answer.
    executed = collective_log.read(collective_log.path_of(settings.tmp_path, settings.attempt, answer.rank))
    fates = {Fate.DIED: "died", Fate.DEADLINE: "deadline", Fate.STOPPED: "stopped", Fate.STUCK: "stuck"}
    kind = fates.get(answer.fate)
    traces = failure.traceback if failure else answer.stacks
    frame = own_frame_of_traceback(traces) if failure else own_frame_of_stacks(traces)
    error = ErrorRecord(
        type=kind or (failure.type if failure else "unknown"),
        message=failure.message if failure else answer.describe_end(),
        traceback=traces,
        step=executed[-1].step if executed else 0,
        output=(answer.stdout + answer.stderr)[-4000:],
    )
    if frame is not None:
        error = replace(error, file=frame.file, line=frame.line, function=frame.function, source=frame.source)
    return RankRecord(rank=answer.rank, task=answer.task, replicas=(), error=error, collectives=executed)


def _is_float64(record: TrainingRecord) -> bool:
    """Return whether a run computed in float64: no error, float64 weights, and nothing in half precision."""
    trainable = [variable for variable in record.variables if variable.kind == "trainable"]
    wide = bool(trainable) and all(variable.dtype == "float64" for variable in trainable)
    return not record.errors and wide and half_precision(record) is None


def _raised(record: TrainingRecord) -> bool:
    """Return whether the program raised an exception, perhaps because of the precision or the strategy."""
    return any(error.type not in ("died", "deadline", "stopped", "stuck") for _rank, error in record.errors)


def _validate(
    train: object, global_batch_size: object, steps: object, precision: str, timeout: float | None, seed: object
) -> None:
    if not callable(train):
        raise ValueError(f"train={train!r} must be a function that takes the run, as in def train(run): …")
    for name, value in (("global_batch_size", global_batch_size), ("steps", steps)):
        if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
            raise ValueError(f"{name}={value!r} must be a whole number, at least 1")
    if precision not in PRECISIONS:
        raise ValueError(f"precision={precision!r} is not one of {', '.join(PRECISIONS)}")
    if timeout is not None and not timeout > 0:
        raise ValueError(f"timeout={timeout!r} must be a positive number of seconds")
    if not isinstance(seed, int) or isinstance(seed, bool) or not 0 <= seed < 2**32:
        raise ValueError(f"seed={seed!r} must be a whole number, at least 0 and below 2**32 (NumPy takes no other)")


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
) -> Report:
    """Compare ``train(run)`` under a strategy with the same function on one device, outside pytest.

    :param strategy: a name or variant, for example ``"mirrored[replicas=4]"``.
    :param global_batch_size: examples per step over all replicas, given to the function as ``run.global_batch_size``.
    :param steps: steps after which the loops of the function end; ``None`` for the end of its data.
    :param precision: ``"auto"`` compares in float64 if the program allows it; ``"float64"``, ``"native"``.
    :param expect: cause ids -> reason, for differences that are intended; under the name of a strategy or variant, only
        for that one: ``{"mirrored": {"cause-id": "reason"}}``.
    :param strict: fail on named approximations too.
    :param checks: names of the checks to run, all by default. A named check that does not apply is inconclusive.
    :param timeout: seconds for everything.
    :param seed: seed of Python, NumPy, TensorFlow and Keras in every run, given to the function as ``run.seed``.
    :raises ValueError: for an argument that cannot be used.
    :raises ClusterError: if the strategy cannot be built on this machine.
    """
    from pytest_ddl.harness import process_harness
    from pytest_ddl.items.selection import DdlMark

    harness = process_harness()
    spec = harness.registry.parse_variant(strategy)
    mark = DdlMark(device=device, timeout=timeout)
    reason = harness.unavailable(spec, mark)
    if reason is not None:
        raise ClusterError(f"strategy={strategy!r} cannot run here: {reason}")
    comparer = Comparer(harness)
    return comparer.compare(
        train,
        spec,
        mark,
        global_batch_size=global_batch_size,
        steps=steps,
        precision=precision,
        expect=expect,
        strict=strict,
        checks=checks,
        timeout=timeout,
        seed=seed,
    )
