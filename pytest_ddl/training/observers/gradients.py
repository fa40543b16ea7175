"""Record gradients per replica between tape and optimizer, and plant gradients that are not finite.

``tf.GradientTape.gradient`` and the ``apply`` methods of the optimizer classes are replaced during a run. Their
arguments and results stay the same; one ``tf.numpy_function`` per call copies the gradients. Gradients that the
program passes unchanged from the tape to the optimizer are copied once and recorded in both stages.
"""

from __future__ import annotations

import functools
import itertools
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from operator import itemgetter
from typing import Any

import numpy as np

from pytest_ddl.notes import NoteKind
from pytest_ddl.records import Array, GradientRecord, GradientStage, GradientSum
from pytest_ddl.run_facts import GradientsOfCalls, RunFacts
from pytest_ddl.training import adapter, current_call, frames, keras_objects, values
from pytest_ddl.training.callback_ops import add_callback, replica_id
from pytest_ddl.training.consumption import LARGEST
from pytest_ddl.training.coordinator import uses_coordinator
from pytest_ddl.training.gradient_calls import (
    Event,
    GradientHooks,
    GradientSource,
    Site,
    dense,
    follow,
    in_order,
    keys_of,
    outermost_function,
    part_of,
    size_of,
    source_of,
    sum_of,
    tensors_of,
)
from pytest_ddl.training.lines import APPLY, ASSIGN, GRADIENT, LOSS, RATE, SCHEDULE, START
from pytest_ddl.training.observer import Observer
from pytest_ddl.training.unwatched import Unwatched

LARGEST_RUN = 8 * LARGEST
"""Maximum bytes of all gradients of a run; later ones are not recorded, because all are sent to the controller."""


class GradientObserver(Observer):
    """Observer that fills :attr:`~pytest_ddl.records.StepRecord.gradients`."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self._events: list[Event] = []
        self._outside: list[Event] = []
        """Gradients that were computed between two steps, or before the first one."""
        self._between: list[str] = []
        self._lock = threading.Lock()
        self._numbers = itertools.count()
        self._origin: dict[int, tuple[Any, Site, int]] = {}
        """``id`` of a gradient -> the gradient (kept alive), the call that computed it, and its position there."""
        self._hooks = GradientHooks(
            lambda target, sources, result: self._safely(self._computed, result, target, sources, result),
            lambda *given: self._safely(self._applied, None, *given),
            lambda sources: self._safely(self._differentiated, None, sources),
        )
        self._index: dict[int, int] = {}
        self._indexed = -1
        self._unwatched = Unwatched(self.context.strategy, lambda source: self._index_of(source) is not None)
        self._bytes = 0
        self._lines: dict[tuple[str, str], list[GradientSource]] = {}
        """Kind of line and the line -> the variables whose gradients it computes, reduces or applies."""
        self._optimizers: dict[int, tuple[Any, list[GradientSource]]] = {}
        """Id of an optimizer -> the optimizer, and the variables that it updates."""
        self._of_calls: GradientsOfCalls = {}
        self._averages = False
        """True once ``tf.nn.compute_average_loss`` gave a loss that the program differentiates."""

    @contextmanager
    def installed(self) -> Iterator[None]:
        with self._hooks.installed():
            yield

    def before_replica(self, given: Any) -> None:
        self._hooks.replace_optimizers()

    def _safely(self, function: Callable[..., Any], otherwise: Any, *args: Any) -> Any:
        try:
            return function(*args)
        except Exception as error:  # an exception here would be raised in the program
            self.recorder.note(NoteKind.GRADIENTS, f"gradients could not be recorded: {type(error).__name__}: {error}")
            return otherwise

    # -- while the program runs -------------------------------------------------------------------------

    def _computed(self, target: Any, sources: Any, result: Any) -> Any:
        import tensorflow as tf

        if not _in_replica_context() and not uses_coordinator(self.context.strategy):
            return result  # except in a coordinator's closure, which has one replica and may do without strategy.run
        pairs = list(zip(tf.nest.flatten(sources), _flat(result), strict=True))
        if not any(values.is_variable(source) for source, _gradient in pairs):
            return result
        of = [source_of(source) for source, gradient in pairs if gradient is not None and values.is_variable(source)]
        self._add_line(GRADIENT, of)
        loss = next(iter(tf.nest.flatten(target)), None)
        self._add_line(LOSS, of, frames.line_of(loss))
        self._averages = self._averages or frames.is_made_in(loss, "compute_average_loss")
        if self.settings.inject:
            sources_of = [source_of(source) if values.is_variable(source) else None for source, _gradient in pairs]
            flat = _planted(sources_of, _flat(result), functools.partial(self._to_plant, sources_of))
            pairs = [(source, gradient) for (source, _), gradient in zip(pairs, flat, strict=True)]
            result = tf.nest.pack_sequence_as(result, flat) if isinstance(result, list | tuple | dict) else flat[0]
        self._observe(GradientStage.COMPUTED, [pair for pair in pairs if values.is_variable(pair[0])])
        return result

    def _differentiated(self, sources: Any) -> None:
        import tensorflow as tf

        for source in tf.nest.flatten(sources):
            if values.is_variable(source):
                self._unwatched.add(source_of(source), applied=False)

    def _applied(self, optimizer: Any, name: str, args: Any, kwargs: Any) -> None:
        if not _in_replica_context():
            return
        if name == "apply":
            gradients = args[0] if args else kwargs["grads"]
            given = args[1] if len(args) > 1 else kwargs.get("trainable_variables")
            pairs = list(zip(gradients, given or adapter.weights_of(optimizer), strict=False))
        else:
            pairs = list(args[0] if args else kwargs["grads_and_vars"])
        of = [source_of(variable) for _gradient, variable in pairs]
        if self._add_line(APPLY, of):
            self._optimizers.setdefault(id(optimizer), (optimizer, []))[1].extend(of)
        swapped = [(variable, gradient) for gradient, variable in pairs]
        self._observe(GradientStage.APPLIED, swapped, sum_of(optimizer, args, kwargs))

    def _add_line(self, kind: str, of: Sequence[GradientSource], line: str = "") -> str:
        place = self.recorder.lines.add(kind, line)
        if place:
            self._lines.setdefault((kind, place), []).extend(of)
        return place

    def add_reduction(self, kind: str, tensors: Sequence[Any], line: str) -> None:
        """Add the line of a reduction in the replica function, of a gradient or of something else."""
        parts = [(gradient, site.parts[position]) for gradient, site, position in self._origin.values()]
        same = {id(tensor): part.source for whole, part in parts for tensor in (whole, *tensors_of(whole))}
        sources = [same[id(tensor)] for tensor in tensors if id(tensor) in same]
        if not sources:
            # A gradient that the program has scaled still has the shape of its variable.
            shapes = [tuple(tensor.shape) for tensor in tensors if tensor.shape.rank]
            sources = [part.source for _whole, part in parts if part.shape in shapes]
        self._add_line(kind, sources, line)

    def _observe(
        self,
        stage: GradientStage,
        pairs: Sequence[tuple[Any, Any]],
        summed: GradientSum = GradientSum.UNKNOWN,
    ) -> None:
        parts = tuple(part_of(variable, gradient) for variable, gradient in pairs)
        for part in parts:
            if part.arrays:
                self._unwatched.add(part.source, stage is GradientStage.APPLIED)
        site = Site(next(self._numbers), stage, parts, summed=summed, function=outermost_function())
        if stage is GradientStage.APPLIED and self._hand_on(site, pairs):
            return
        tensors = [tensor for _variable, gradient in pairs for tensor in tensors_of(gradient)]
        if sum(size_of(tensor) for tensor in tensors) > LARGEST:
            self.recorder.note(NoteKind.GRADIENTS, "gradients of one step are too large to be recorded")
            return
        if adapter.within_xla():
            self.recorder.note(NoteKind.GRADIENTS, "gradients inside a tf.function(jit_compile=True) are not recorded")
            return
        if stage is GradientStage.COMPUTED:
            for position, (_variable, gradient) in enumerate(pairs):
                if gradient is not None:
                    self._origin[id(gradient)] = (gradient, site, position)
        if not tensors:
            return

        call = current_call.number()
        numbers = [] if call is None else [call]

        def record(replica: Any, *arrays: Any) -> None:
            of = int(arrays[0]) if numbers else None
            self._safely(self._executed, None, site, int(replica), arrays[len(numbers) :], of)

        add_callback(record, [*numbers, *tensors])

    def _hand_on(self, site: Site, pairs: Sequence[tuple[Any, Any]]) -> bool:
        """Connect a call to the call whose unchanged gradients it passes on; return False if it has other gradients."""
        import tensorflow as tf

        found = [None if gradient is None else self._origin.get(id(gradient)) for _variable, gradient in pairs]
        known = [entry for entry in found if entry is not None]
        present = sum(gradient is not None for _variable, gradient in pairs)
        if not known or len(known) != present or len({id(entry[1]) for entry in known}) != 1:
            return False
        origin = known[0][1]
        positions = tuple(None if entry is None else entry[2] for entry in found)
        if tf.executing_eagerly():
            with self._lock:
                event = next((event for event in reversed(self._events) if event.site is origin), None)
                if event is not None:
                    self._events.append(follow(event, site, positions))
            return event is not None
        if known[0][0].graph is not tf.compat.v1.get_default_graph():
            return False  # passed on in a branch or loop, whose own executions must be recorded
        origin.follows.append((site, positions))
        return True

    def _executed(self, site: Site, replica: int, arrays: Sequence[Any], call: int | None) -> None:
        copies: list[Array | None] = []
        cursor = 0
        for part in site.parts:
            given = arrays[cursor : cursor + part.arrays]
            cursor += part.arrays
            copies.append(None if not given else values.copy_of(given[0]) if len(given) == 1 else dense(part, given))
        event = Event(site, replica, tuple(copies), call)
        with self._lock:
            self._bytes += sum(copy.nbytes for copy in copies if copy is not None)
            if self._bytes > LARGEST_RUN:
                self.recorder.note(
                    NoteKind.GRADIENTS, "gradients of the later steps are not recorded: they are too large together"
                )
                return
            self._events.append(event)
            self._events += [follow(event, *follower) for follower in site.follows]

    def _to_plant(self, sources: Sequence[GradientSource | None], replica: int) -> list[float]:
        """Return for each source the value that overwrites its gradient in this step; 0 for none."""
        step, everywhere = self.recorder.completed + 1, self.settings.is_reference
        chosen = {
            injection.variable: injection.value
            for injection in self.settings.inject
            if injection.step == step and (everywhere or injection.replica in (None, replica))
        }
        indices = self._safely(lambda: [None if source is None else self._index_of(source) for source in sources], [])
        return [chosen.get(index, 0.0) for index in indices or [None] * len(sources)]

    # -- at the end of a step or run ---------------------------------------------------------------------

    def end_step(self) -> Mapping[str, Any]:
        return self._ended(after_step=True)

    def discard(self) -> None:
        self._ended(after_step=False)

    def _ended(self, after_step: bool) -> Mapping[str, Any]:
        with self._lock:
            events, self._events = self._events, []
        self._hooks.forget()
        self._safely(self._unwatched.look, None, after_step)
        self._outside = [] if after_step else [*self._outside, *events]
        for key in [key for key, (tensor, _s, _p) in self._origin.items() if not hasattr(tensor, "graph")]:
            del self._origin[key]
        return {"gradients": self._safely(self._records, (), events)}

    def look_again(self, ended: bool) -> None:
        if ended:
            self._safely(self._unwatched.look, None, False)
        elif not uses_coordinator(self.context.strategy):  # its servers may be gone
            self._between = self._safely(self._trained_between_steps, [])

    def _trained_between_steps(self) -> list[str]:
        """Return the names of the variables that were trained in no recorded step. Nothing else compares them."""
        moved = self.recorder.moved_since_last_step()
        parts = [part for event in (*self._outside, *self._events) for part in event.site.parts if part.arrays]
        watched = [part.source for part in parts if self._index_of(part.source) in moved]
        self._unwatched.look(after_step=False)
        names = [keras_objects.name_of(source.variable) for source in watched]
        return [*dict.fromkeys(names), *self._unwatched.names_of_moved()]

    def end_run(self) -> Mapping[str, Any]:
        self._safely(self._end_lines, None)
        names = self._safely(self._unwatched.names, [])
        facts: RunFacts = {"unwatched": names} if names else {}
        if self._between:
            facts["between_steps"] = self._between
        if self._averages:
            facts["calls_average_loss"] = True
        if self.recorder.asynchronous or self.settings.keep_calls:
            # The same object gets the gradients that are computed after the last recorded step, perhaps all of them.
            facts["gradients_of_calls"] = self._of_calls
        return {"facts": facts}

    def _end_lines(self) -> None:
        """Add the lines of each watched variable."""
        add = self.recorder.lines.add
        for (kind, line), sources in self._lines.items():
            for index in self._indices(sources):
                add(f"{kind} {index}", line)
        for optimizer, sources in self._optimizers.values():
            rate, schedule = self._lines_of_rate(optimizer)
            own = [item.record.index for item in self.recorder.watched if item.optimizer is optimizer]
            for index in (*own, *self._indices(sources)):
                for line in rate:
                    add(RATE.format(index), line)
                if schedule is not None:
                    self.recorder.lines.add_function(SCHEDULE.format(index), schedule)

    def _indices(self, sources: Sequence[GradientSource]) -> list[int]:
        return list(dict.fromkeys(index for source in sources if (index := self._index_of(source)) is not None))

    def _lines_of_rate(self, optimizer: Any) -> tuple[tuple[str, ...], Any]:
        """Return the lines that assigned the learning rate, or else the one that created the optimizer.

        In addition, return the method of a schedule that reads which replica it runs on.
        """
        lines, strategy = self.recorder.lines, self.context.strategy
        rate, schedule = keras_objects.rate_and_schedule(optimizer)
        made = values.backing(keras_objects.made_with(optimizer))
        if rate is not None:
            parts = (rate, *values.components(strategy, rate))
            assigned = lines.assigned(parts, ASSIGN) or lines.assigned(parts, START)[-1:]
            if assigned:
                return assigned, None
        return () if made is None else lines.created(values.components(strategy, made)), schedule

    def _records(self, events: Sequence[Event]) -> tuple[GradientRecord, ...]:
        """Return the gradients of a step, in the order in which the program's functions were called."""
        records: list[tuple[int, GradientRecord]] = []
        calls: dict[tuple[int, GradientStage], int] = {}
        for function_call, event in in_order(events):
            key = event.replica, event.site.stage
            arrays, sparse = {}, set()
            for part, array in zip(event.site.parts, event.arrays, strict=True):
                index = self._index_of(part.source)
                if index is None:
                    continue
                arrays[index] = array
                if part.arrays > 1:
                    sparse.add(index)
            if arrays and event.call is not None:
                self._of_calls.setdefault(event.call, []).append((event.site.stage, event.site.number, arrays))
            if arrays:
                calls[key] = calls.get(key, -1) + 1
                record = GradientRecord(*key, calls[key], arrays, frozenset(sparse), event.site.summed)
                records.append((function_call, record))
        return tuple(record for _call, record in sorted(records, key=itemgetter(0)))

    def _index_of(self, source: GradientSource) -> int | None:
        watched = self.recorder.watched
        if len(watched) != self._indexed:
            index: dict[int, int] = {}
            for item in watched:
                for key in keys_of(self.context.strategy, item.variable):
                    index.setdefault(key, item.record.index)
            self._index, self._indexed = index, len(watched)
        return next((self._index[key] for key in source.keys if key in self._index), None)


def _in_replica_context() -> bool:
    import tensorflow as tf

    return tf.distribute.get_replica_context() is not None


def _flat(result: Any) -> list[Any]:
    import tensorflow as tf

    return list(tf.nest.flatten(result))


def _planted(
    sources: Sequence[GradientSource | None], gradients: Sequence[Any], to_plant: Callable[[int], Sequence[float]]
) -> list[Any]:
    """Return the gradients. Overwrite a gradient in each execution in which ``to_plant(replica)`` is not 0 for it."""
    import tensorflow as tf

    replica = tf.cast(replica_id(), tf.int32)
    chosen = tf.numpy_function(lambda number: np.array(to_plant(int(number)), np.float64), [replica], tf.float64)
    chosen.set_shape([len(gradients)])
    return [
        _overwritten(gradient, chosen[position]) if source is not None else gradient
        for position, (source, gradient) in enumerate(zip(sources, gradients, strict=True))
    ]


def _overwritten(gradient: Any, planted: Any) -> Any:
    """Return the gradient itself if ``planted`` is 0, else a gradient with that value in each element."""
    import tensorflow as tf

    if gradient is None:
        return None
    if isinstance(gradient, tf.IndexedSlices):
        return tf.IndexedSlices(_overwritten(gradient.values, planted), gradient.indices, gradient.dense_shape)
    return tf.where(tf.equal(planted, 0.0), gradient, tf.cast(planted, gradient.dtype))
