"""Run a user's training function on one rank and return its record, also if it fails."""

from __future__ import annotations

import os
import re
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

from pytest_ddl.notes import Note, NoteKind
from pytest_ddl.records import ErrorRecord, GradientRecord, GradientStage, RankRecord, StepRecord
from pytest_ddl.strategies.base import RankContext
from pytest_ddl.strategies.parameter_server import join_scheduled
from pytest_ddl.tracebacks import Frame, own_frame, package_of
from pytest_ddl.training import environment, layouts, notice
from pytest_ddl.training.callback_ops import refuses_callbacks
from pytest_ddl.training.coordinator import uses_coordinator
from pytest_ddl.training.host_generators import HostGenerators
from pytest_ddl.training.kernels import deterministic, refuses_determinism
from pytest_ddl.training.observer import Observer
from pytest_ddl.training.recorder import Recorder
from pytest_ddl.training.replica_arguments import ReplicaArguments
from pytest_ddl.training.replica_functions import observed
from pytest_ddl.training.run import RestartRequested, Run
from pytest_ddl.training.settings import RunSettings

_PACKAGE = os.path.dirname(os.path.dirname(__file__))
_OWN = (os.path.join(_PACKAGE, "training", ""), os.path.join(_PACKAGE, "faults", ""))
"""Folders of this package whose code calls the program, or is called by it."""
_COLORS = re.compile(r"\x1b\[[0-9;]*m")


def execute(
    train: Callable[[Run], Any], settings: RunSettings, context: RankContext, observers: Sequence[type[Observer]]
) -> RankRecord:
    """Call ``train(run)`` and return its record, which includes an error of the program.

    :param observers: what observes the run, if ``settings.observe`` is true.
    """
    if settings.without_strategy:
        import tensorflow as tf

        context = replace(context, strategy=tf.distribute.get_strategy())
    if context.capabilities.global_view:
        # DTensor has no kernel for the observing operation, and its replica functions see the global batch anyway.
        settings = replace(settings, observe=False)
    record, error = _attempt(train, settings, context, observers)
    if error is not None and settings.deterministic and context.device == "gpu" and refuses_determinism(error):
        settings = replace(settings, deterministic=False)
        why = _first_line(error)
        record, error = _attempt(train, settings, context, observers)
        if error is None:
            record = replace(record, facts={**record.facts, "not_deterministic": why})
    # An injected exception in a callback looks like one.
    disturbed = settings.points is not None and settings.points.disturbs
    if error is None or not settings.observe or disturbed or not refuses_callbacks(error):
        return record
    again, second = _attempt(train, replace(settings, observe=False), context, observers)
    if second is not None and refuses_callbacks(second):
        return record  # the failed Python operation is the program's own
    text = f"the program refuses the observing operation ({_first_line(error)}); it was run again without"
    return replace(again, notes=(*again.notes, Note(NoteKind.BATCHES, text)))


def _first_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {str(error).strip().splitlines()[0][:200]}"


def _attempt(
    train: Callable[[Run], Any], settings: RunSettings, context: RankContext, observers: Sequence[type[Observer]]
) -> tuple[RankRecord, BaseException | None]:
    recorder = Recorder(settings, context)
    arguments = ReplicaArguments(settings, uses_coordinator(context.strategy))
    generators = HostGenerators(context.rank if settings.seeds_by_rank else 0)
    failure: BaseException | None = None
    described: ErrorRecord | None = None
    with ExitStack() as stack:
        stack.enter_context(layouts.fresh(context.strategy))
        policies = stack.enter_context(environment.prepared(settings, context.rank, generators))
        stack.enter_context(environment.whole_products())
        stack.enter_context(deterministic(context.device if settings.deterministic else ""))
        stack.enter_context(environment.told_replicas(context.strategy, settings.told_replicas))
        stack.enter_context(recorder.creations.observed())
        recorder.creations.traces = settings.observe
        notice.renew()
        points = () if settings.points is None else (settings.points.observer(settings, context, recorder),)
        if settings.observe:
            recorder.observers = (*(make(settings, context, recorder) for make in observers), *points)
            stack.enter_context(observed(context.strategy, recorder.consumption, recorder.observers, arguments))
        else:
            recorder.note(NoteKind.BATCHES, "the batches of the replicas were not observed")
            for observer in points:
                stack.enter_context(observer.installed())
        try:
            run = Run(settings, context, recorder)
            with run._threads.followed():
                returned = train(run)
            run.end(returned)
            # Closures that the program did not wait for still write variables, and may fail.
            join_scheduled(context.strategy)
            recorder.end_phase("training")
        except RestartRequested:
            recorder.restart = True
        except (Exception, SystemExit) as error:
            failure, described = error, error_record(error, recorder.completed, train)
        record = recorder.rank_record(described, environment.versions())
        if generators.unseeded:
            record = replace(record, facts={**record.facts, "unseeded": generators.unseeded})
    calls = arguments.kept()
    if calls is not None and (settings.keep_calls or record.asynchronous):
        record = replace(record, facts={**record.facts, "calls": calls})
    if settings.whole:
        record = as_one_step(record)
    if policies.names:
        record = replace(record, facts={**record.facts, "widened": sorted(policies.names)})
    return record, failure


def error_record(error: BaseException, step: int = 0, train: Callable[[Run], Any] | None = None) -> ErrorRecord:
    """Return the record of an exception of a program, after which ``step`` steps were complete."""
    kind = type(error)
    # The training function may be in an installed package (under tox, for example): that is still the program.
    package = package_of(getattr(getattr(train, "__code__", None), "co_filename", ""))
    frame = own_frame(error, package) or Frame("", 0, "")
    module = "" if kind.__module__ == "builtins" else f"{kind.__module__}."
    # Keras adds color codes to its messages.
    message = f"exit with status {error.code!r}" if isinstance(error, SystemExit) else _COLORS.sub("", str(error))
    return ErrorRecord(
        type=f"{module}{kind.__qualname__}",
        message=message,
        traceback=_COLORS.sub("", "".join(_without_own_frames(error).format())),
        step=step,
        file=frame.file,
        line=frame.line,
        function=frame.function,
        source=frame.source,
        wants_file=_wants_file(error),
    )


def _wants_file(error: BaseException | None) -> bool:
    """Return whether an exception, or one that it was raised for, says that a file or folder does not exist."""
    import tensorflow as tf

    while error is not None and not isinstance(error, FileNotFoundError | tf.errors.NotFoundError):
        error = error.__cause__ or _replaced(error)
    return error is not None


def _replaced(error: BaseException) -> BaseException | None:
    """Return the exception in whose handler another one was raised by the handler itself.

    A handler may also do something else without the file. An error in what it calls has its own reason.
    """
    caught, place = error.__context__, error.__traceback__
    if error.__suppress_context__ or caught is None or caught.__traceback__ is None or place is None:
        return None
    while place.tb_next is not None:
        place = place.tb_next
    return caught if place.tb_frame is caught.__traceback__.tb_frame else None


def _without_own_frames(error: BaseException) -> traceback.TracebackException:
    """Return the traceback without the frames of this package, which wraps methods of the frameworks."""
    described = traceback.TracebackException.from_exception(error)
    part: traceback.TracebackException | None = described
    while part is not None:
        kept = [frame for frame in part.stack if not frame.filename.startswith(_OWN)]
        part.stack = traceback.StackSummary.from_list(kept or part.stack)
        part = part.__cause__ or part.__context__
    return described


def as_one_step(record: RankRecord) -> RankRecord:
    """Return the record of a rank with one step, which begins with the first values and ends with the last ones.

    Losses and named values are left out, because they belong to single steps.
    """
    if not record.steps:
        return record
    facts = record.facts.copy()
    late = facts.pop("late", None)
    steps = [*record.steps, *([] if late is None else [late])]
    last = record.steps[-1]
    whole = StepRecord(
        index=1,
        loss=None,
        batches=tuple(batch for step in steps for batch in step.batches),
        snapshot={**last.snapshot, **(record.final or {})},
        gradients=tuple(_numbered(steps)),
        draws=record.steps[0].draws,
        eager=last.eager,
    )
    return replace(
        record,
        variables=tuple(replace(variable, since=min(variable.since, 1)) for variable in record.variables),
        steps=(whole,),
        final=None if record.final is None else {},
        cut_off=(),
        result_steps={name: min(steps, 1) for name, steps in record.result_steps.items()},
        asynchronous=False,
        facts=facts,
    )


def _numbered(steps: Sequence[StepRecord]) -> Iterator[GradientRecord]:
    """Yield the gradients of all steps, with the number of their call in the whole run."""
    calls: Counter[tuple[int, GradientStage]] = Counter()
    for step in steps:
        for gradient in step.gradients:
            key = gradient.replica, gradient.stage
            yield replace(gradient, call=calls[key])
            calls[key] += 1
