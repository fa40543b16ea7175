"""Record a run on one rank: the watched variables after every step, as plain values."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from pytest_ddl.notes import Note, NoteKind
from pytest_ddl.records import BatchRecord, ErrorRecord, RankRecord, Snapshot, VariableKind, VariableRecord
from pytest_ddl.run_facts import RunFacts
from pytest_ddl.step_records import Array, StepRecord
from pytest_ddl.strategies.base import RankContext
from pytest_ddl.training import layouts, lineage, neutral, values
from pytest_ddl.training.call_sites import CallSites
from pytest_ddl.training.consumption import Consumption, observe_ids, shared_out
from pytest_ddl.training.creations import Creation, Creations
from pytest_ddl.training.data import move_by_ulp
from pytest_ddl.training.lines import FIT, LOSS, TRAIN, VALUE, Lines
from pytest_ddl.training.listener import StepListener
from pytest_ddl.training.observer import Observer
from pytest_ddl.training.points import PointListener
from pytest_ddl.training.settings import RunSettings
from pytest_ddl.training.watching import Watched, Watcher

_PERTURBED = (VariableKind.TRAINABLE, VariableKind.FROZEN, VariableKind.STATE)
_TAKEN_OVER = (*_PERTURBED, VariableKind.SLOT)


class Recorder(StepListener):
    """Listener that collects a :class:`RankRecord` while the training function runs."""

    def __init__(self, settings: RunSettings, context: RankContext) -> None:
        self._settings = settings
        self._context = context
        self._notes: dict[Note, None] = {}
        self._facts = RunFacts()
        self._watcher = Watcher(context.strategy, self.note)
        self._initial: dict[int, tuple[Array, ...]] = {}
        self._since: dict[int, int] = {}
        self._resumed: Snapshot | None = None
        self._steps: list[StepRecord] = []
        self._results: dict[str, Any] = {}
        self._result_steps: dict[str, int] = {}
        self._next_values: dict[str, float] = {}
        """Values of ``run.value`` for the step that ends next."""
        self._noise = np.random.default_rng(settings.perturbation)
        change = self._moved if settings.perturbation else None
        self.lines = Lines()
        self.creations = Creations(context.strategy, self.note, lambda: len(self._steps), change, self.lines.create)
        """Variables that the program creates while it trains."""
        self.consumption = Consumption(lambda text: self.note(NoteKind.BATCHES, text))
        self.observers: tuple[Observer, ...] = ()
        self.restart = False
        self.asynchronous = False
        """True if steps run concurrently."""
        self.epochs_as_steps = False
        self._of_concurrent: Sequence[tuple[BatchRecord, ...]] = ()
        """Batches of the concurrent steps that have run and are still to be recorded."""
        self._own: Snapshot | None = None
        self._at_end: Snapshot | None = None
        self._trained_before: int | None = None
        self._call_sites = CallSites()
        self._first_step = settings.first_step
        self._place = lineage.ResumedPlace(settings.lineage)
        self._began = False
        """True if a loop or an epoch began."""
        self.points: PointListener | None = None
        """Listener to the points of the run; ``None`` if nothing follows them."""

    @property
    def completed(self) -> int:
        """Index of the last completed step, over all attempts."""
        return self._first_step + len(self._steps)

    @property
    def reached_limit(self) -> bool:
        return self._settings.steps is not None and self.completed >= self._settings.steps

    @property
    def watched(self) -> tuple[Watched, ...]:
        """Variables that were found so far."""
        return self._watcher.watched

    def note(self, kind: NoteKind, text: str) -> None:
        """Add a note about something that could not be recorded, unless the record has the same note."""
        self._notes.setdefault(Note(kind, text))

    def add_facts(self, facts: RunFacts) -> None:
        """Add facts about the run, or replace them by new ones."""
        self._facts |= facts

    def watch(self, model: Any = None, optimizer: Any = None, variables: Any = None, metrics: Any = None) -> None:
        if self._trained_before is None and not self._steps:
            self._trained_before = self._training_before()
        self._watcher.add(model, optimizer, variables, metrics)
        if self._settings.constant or self._settings.still:
            self._watcher.stop_learning()
        self._take_new(after_step=False)
        self.creations.watching = True

    def _training_before(self) -> int:
        """Count the steps that ran before anything was watched, and forget what they consumed."""
        calls = Counter(batch.replica for batch in self.consumption.take())
        if calls:
            self.end_without_step()
        return max(calls.values(), default=0)

    def observe_examples(self, ids: Any) -> None:
        if self._settings.observe:
            observe_ids(self.consumption, ids)

    def _take_new(self, after_step: bool, ended: bool = False) -> None:
        """Find variables that were created since the last call, and record their current values as initial values.

        For variables that a step created, record the values that they were created with.
        """
        for model in self._watcher.models:
            neutral.set_normalization(model, self._settings, lambda: self.completed + 1)
        new = self._watcher.scan(ended)
        created: dict[int, Creation] = {}
        for item in new:
            found = None if item.variable is None else self.creations.take(item.variable)
            if found is not None and after_step and not self._rescales(item):
                created[item.record.index] = found
            elif found is None or not found.changed:
                self._perturb(item)
            self._rescale(item)
        initial = self._watcher.snapshot(new) if new else {}
        for index, parts in initial.items():
            self._initial[index] = created[index].parts if index in created else parts
            # If the creation was not seen, the value is the one at the end of this step.
            self._since[index] = created[index].step if index in created else len(self._steps) + after_step

    def begin(self) -> None:
        """Record the values with which training begins, or resumes after an interruption."""
        self._of_concurrent = ()
        self._began = True
        self._take_new(after_step=False)
        self.creations.begin()
        self.find_first_step()

    def find_first_step(self) -> None:
        """In a later attempt, keep the values that the program has restored, and find the step that they belong to."""
        if self._settings.attempt == 1 or self._resumed is not None or not self.watched:
            return
        self._resumed = self._watcher.snapshot()
        self._recognize(len(self._steps), self._resumed)

    def _recognize(self, own: int, values: Snapshot) -> None:
        """In an attempt after a fault, look the values up among those of the uninterrupted run.

        A program may restore within its loop, or create its variables in the first step, so each step is looked up.
        """
        if self._settings.attempt == 1 or not self._settings.lineage:
            return
        self._place.see(own, lineage.digests((item.record, values) for item in self.watched))
        if self._place.start is not None:
            self._first_step = self._place.start

    def begin_step(self) -> None:
        self._watcher.multiply_metrics(self._settings.shared_by)
        if self.points is not None:
            self.points.begin("step", self.completed + 1)

    def step_done(self) -> None:
        if self.points is not None:
            self.points.end_step(self.completed + 1)

    def begin_phase(self, phase: str) -> None:
        if self.points is not None:
            self.points.begin(phase)

    def end_phase(self, phase: str) -> None:
        if self.points is not None:
            self.points.end(phase)

    def begin_asynchronous(self, epochs_as_steps: bool = False) -> None:
        self.asynchronous = True
        self.epochs_as_steps = self.epochs_as_steps or epochs_as_steps

    def begin_call(self, method: str, trains: Any = None) -> None:
        """Record the line of a call of ``run.steps``, ``run.batches`` or ``run.fit`` with data to train on."""
        self.lines.add(FIT if method == "run.fit" else TRAIN)
        self.lines.trains = True
        # With one batch that repeats for ever, the first loop takes all steps and later loops never run.
        limit = self._settings.steps
        if limit is not None and not self._settings.constant:
            self._call_sites.add(method, trains, limit, not self.reached_limit)
        if method == "run.fit":
            for function in self._call_sites.fitted(trains):
                self.lines.add_function(LOSS, function)

    def end_update(self) -> None:
        """Record the values after the update of a step, before callbacks of the program run.

        If the settings have values of the strategy for this step, give them to the watched variables.
        """
        self._take_new(after_step=True)
        self._own = self._watcher.snapshot()
        states = self._settings.states
        taken = states.values.get(self.completed + 1, {}) if states else {}
        for item in self._watcher.watched:
            value = taken.get(item.record.index)
            if value is not None and item.variable is not None and item.record.kind in _TAKEN_OVER:
                self._assign(item, self._moved(value) if self._is_perturbed(item) else value)

    def end_step(
        self, loss: Any = None, shown: Mapping[str, Any] | None = None, traces: int | None = None, left: int = 0
    ) -> float | None:
        if not left:
            self.step_done()
            self.begin_reading()
        number = values.scalar(loss)
        parts = {} if number is not None else values.numbers(loss, "loss") or values.parts_of(loss, "loss")
        if loss is not None and number is None and not parts:
            self.note(NoteKind.LOSSES, f"the loss of a step is not compared: it is a {type(loss).__name__}, no number")
        for name in shown or {}:
            self.lines.add(VALUE.format(name))
        named = {name: values.scalar(item) for name, item in (shown or {}).items()}
        numbers = values.under_names(parts, self._next_values, named)
        for name, reported in values.under_names({"loss": number}, numbers).items():
            self.lines.use(name, reported)
        self._next_values = {}
        self._take_new(after_step=True)
        self.creations.forget()
        if not left and self._settings.states is not None and self._own is None:
            self.end_update()
        state = {} if left else self._watcher.snapshot()
        if not left:
            self._recognize(len(self._steps) + 1, state)
            numbers = values.with_results(numbers, self._watcher.metric_results())
        # Only now: reading the loss and the variables has waited for the step, so its observers have all batches.
        consumed = self._consumed(left)
        observed = {name: value for observer in self.observers for name, value in observer.end_step().items()}
        self._at_end = None
        step = StepRecord(self.completed + 1, number, numbers, consumed, state, self._own, traces, **observed)
        self._steps.append(step)
        self._own = None
        self._hold()
        return number

    def _consumed(self, left: int) -> tuple[BatchRecord, ...]:
        """Return the batches of a step. Concurrent steps consumed the batches in their order."""
        if len(self._of_concurrent) != left + 1:
            self._of_concurrent = shared_out(self.consumption.take(), left + 1)
        first, *self._of_concurrent = self._of_concurrent
        return first

    def _hold(self) -> None:
        """Set weights back to their values after the step ``hold``, so that each later step begins with them."""
        hold = self._settings.hold
        if hold is None or self.completed <= hold:
            return
        kept = self._steps[hold - 1].snapshot if hold else self._initial
        for item in self._watcher.watched:
            trained = item.variable is not None and item.record.kind is VariableKind.TRAINABLE
            if trained and kept.get(item.record.index):
                self._assign(item, kept[item.record.index][0])

    def begin_reading(self) -> None:
        """Call the observers at the end of a step or of the program."""
        for observer in self.observers:
            observer.before_reading()

    def end_without_step(self) -> None:
        self.consumption.take()
        for observer in self.observers:
            observer.discard()

    def end_of_data(self) -> None:
        """Record that the data of a loop ended within a step, and keep the values at that point.

        They separate the changes of a step that ran in part from changes that the program makes after its loop.
        """
        if self.points is not None:
            self.points.leave("step")
        self._at_end = self._watcher.snapshot()
        unfinished = sum(batch.size for batch in self.consumption.take())
        if unfinished:
            step = f"step {self.completed + 1}, which had taken {unfinished} example(s)"
            self.note(NoteKind.UNFINISHED_STEP, f"the data ended within {step}: it is not counted as a step")
        self.end_without_step()

    def value(self, name: str, number: Any, step: str | None) -> None:
        scalar = values.scalar(number)
        if scalar is None:
            raise TypeError(
                f"run.value({name!r}, ...) takes one number, not a {type(number).__name__}: call it outside "
                "tf.function, with a number that the step returns"
            )
        self.lines.add(VALUE.format(name))
        self.lines.use(name, scalar)
        if step == "next":
            self._next_values[values.free_name(self._next_values, name)] = scalar
        elif step == "last" and self._steps:
            last = self._steps[-1]
            self._steps[-1] = replace(last, values=values.under_names(last.values, {name: scalar}))
        else:
            self.result("value", {name: scalar})

    def result(self, name: str, value: Any) -> None:
        """Record the result of ``fit``, ``evaluate`` or ``predict``. The result of a second ``fit`` is ``fit#2``."""
        number = 1 + sum(1 for key in self._results if key.split("#")[0] == name)
        self.lines.add(VALUE.format(name))
        key = name if number == 1 else f"{name}#{number}"
        self._results[key] = value
        self._result_steps[key] = self.completed

    def rank_record(self, error: ErrorRecord | None, versions: Mapping[str, str]) -> RankRecord:
        """Return everything that was recorded so far."""
        context = self._context
        local = max(1, context.num_replicas // max(1, context.num_ranks))
        results = {**self._results, **({"restart": True} if self.restart else {})}
        ended = error is None and not self.restart
        if ended and self._steps:
            self._take_new(after_step=True, ended=True)
        facts, variables = self._facts.copy(), self._variables()
        observed: dict[str, Any] = {}
        for observer in self.observers:
            observer.look_again(ended)
            found = dict(observer.end_run())
            facts |= found.pop("facts", RunFacts())
            observed |= found
        if context.device != "cpu":
            facts["device"] = context.device
        facts |= layouts.facts(context.strategy, [item.record.name for item in self._watcher.watched])
        if self._trained_before:
            facts["trained_before"] = self._trained_before
        if self._watcher.thawed:
            facts["thawed"] = sorted(self._watcher.thawed)
        facts |= self._call_sites.facts()
        if ended and self._settings.lineage and not self._steps:
            facts["no_loop"] = not self._began
            self.find_first_step()
        if ended and (facts.get("own_schedule") or self._settings.is_reference or self._settings.whole):
            facts |= self._late()
        final = self._changed_since() if ended else None
        if final and self.asynchronous:  # the counts of updates say nothing about what no step has recorded
            facts["unwatched"] = [*facts.get("unwatched", ()), *self._trained_late(final)]
        return RankRecord(
            rank=context.rank,
            task=context.task,
            replicas=tuple(range(context.rank * local, (context.rank + 1) * local)),
            variables=variables,
            initial=self._initial,
            steps=tuple(self._steps),
            final=final,
            cut_off=self._cut_off() if ended else (),
            layers=self._watcher.layer_records(),
            optimizers=self._watcher.optimizer_records(),
            results=results,
            result_steps=self._result_steps,
            asynchronous=self.asynchronous,
            error=error,
            notes=tuple(self._notes),
            versions=versions,
            resumed={} if self._resumed is None else {self._first_step: self._resumed},
            facts=facts,
            **observed,
        )

    def _late(self) -> RunFacts:
        """Return the fact ``late``: what the program consumed and computed after its last recorded step."""
        late = {name: value for observer in self.observers for name, value in observer.end_step().items()}
        batches, gradients = self.consumption.take(), late.get("gradients", ())
        if not gradients or not self._steps:  # without gradients, the batches are of an evaluation
            return {}
        return {"late": StepRecord(self.completed + 1, None, {}, batches, {}, gradients=gradients)}

    def _variables(self) -> tuple[VariableRecord, ...]:
        """Return the records of the watched variables, with their current layouts."""
        strategy = self._context.strategy
        variables = []
        for item in self._watcher.watched:
            try:
                layout = layouts.record_of(strategy, item.variable, item.record.name)
            except Exception as error:  # an unknown layout must not make the record fail
                text = f"the layout of {item.record.name} could not be read: {type(error).__name__}: {error}"
                self.note(NoteKind.LAYOUTS, text)
                layout = None
            if item.variable is not None:
                self.lines.add_variable(item.record.index, item.variable, values.components(strategy, item.variable))
            variables.append(replace(item.record, layout=layout, since=self._since.get(item.record.index, 0)))
        return tuple(variables)

    def _changed_since(self) -> Snapshot:
        """Read the variables that differ from the end of training, or that no step has recorded."""
        last = self._last() if self._at_end is None else self._at_end
        if not last and self._settings.lineage and self._resumed is not None:
            last = self._resumed
        now = self._watcher.snapshot() if last else {}
        # What was first watched after the last step has no other value to compare. The results of metrics have.
        known = {*self._last(), *self._watcher.reported}
        late = {index: parts for index, parts in now.items() if self._steps and index not in known}
        return {**values.changed(last, now), **late}

    def _trained_late(self, final: Snapshot) -> list[str]:
        """Return the names of the weights that were first watched after the last step, and that changed since then."""
        weights = [item.record for item in self.watched if item.record.kind is VariableKind.TRAINABLE]
        changed = values.changed(self._initial, final)
        return [record.name for record in weights if record.index in changed and record.index not in self._last()]

    def _cut_off(self) -> tuple[int, ...]:
        """Return the indices of the variables that the unfinished last step changed, in which the data ended."""
        return () if self._at_end is None else tuple(values.changed(self._last(), self._at_end))

    def moved_since_last_step(self) -> set[int]:
        return set(values.changed(self._last() or self._initial, self._watcher.snapshot()))

    def _last(self) -> Snapshot:
        return self._steps[-1].snapshot if self._steps else {}

    def _rescales(self, item: Watched) -> bool:
        asked = self._settings.loss_scale_factor != 1.0 and self._settings.attempt == 1 and item.variable is not None
        return asked and (item.record.is_loss_scale or item.record.index in self._settings.loss_scales)

    def _rescale(self, item: Watched) -> None:
        if self._rescales(item):
            self._assign(item, item.read()[0] * self._settings.loss_scale_factor)

    def _perturb(self, item: Watched) -> None:
        """Before the first step, move each element of a weight by one ulp, in directions seeded by the perturbation."""
        if not self._steps and self._is_perturbed(item):
            self._assign(item, self._moved(item.read()[0]))

    def _is_perturbed(self, item: Watched) -> bool:
        record = item.record
        movable = ("float32", "float64", *(("float16", "bfloat16") if self._settings.ulp_of else ()))
        if not self._settings.perturbation or item.variable is None or record.dtype not in movable:
            return False
        # A scalar such as a loss scale is a power of two on purpose.
        return record.kind in _PERTURBED and (record.kind is not VariableKind.STATE or bool(record.shape))

    def _assign(self, item: Watched, value: Array) -> None:
        with self._context.strategy.scope():
            item.variable.assign(value)

    def _moved(self, value: Array) -> Array:
        return move_by_ulp(value, self._noise, self._settings.ulp_of, self._settings.ulps)
