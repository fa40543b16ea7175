"""The ``run`` object that a training function receives as its argument."""

from __future__ import annotations

import functools
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

from pytest_ddl.notes import NoteKind
from pytest_ddl.strategies.base import RankContext
from pytest_ddl.training import coordinator, data, notice, stepping
from pytest_ddl.training.fitting import Fitting
from pytest_ddl.training.listener import StepListener
from pytest_ddl.training.settings import RunSettings
from pytest_ddl.training.threads import Threads

_NOT_RUN: tuple[tuple[tuple[type, ...], str, str], ...] = (
    ((types.GeneratorType, types.AsyncGeneratorType), "a generator", "train in the function itself, without yield"),
    ((types.CoroutineType,), "a coroutine", "take async away, or call asyncio.run in a function without it"),
    ((types.FunctionType, types.MethodType, functools.partial), "a function", "call it"),
)
"""Types that a training function may return by mistake, their names in words, and the fix."""


class Run:
    """One run of a training function under one strategy, on one rank.

    The same code trains on one device and under every strategy. Create variables in
    ``run.strategy.scope()``, name what to compare with :meth:`watch`, and train with
    :meth:`steps`, :meth:`batches` or :meth:`fit`.
    """

    def __init__(self, settings: RunSettings, context: RankContext, listener: StepListener) -> None:
        self._settings = settings
        self._context = context
        self._listener = listener
        self._threads = Threads()
        self._fitting = Fitting(listener, settings, context.strategy)
        self._loop: Literal["steps", "batches"] | None = None
        """Loop whose body the program runs now."""
        self._cut: list[int] = []
        """Steps after which loops of the program would have ended that the limit of steps has ended before."""
        self._never_began: list[str] = []
        """Loops that the program has made and not begun."""

    # -- facts about the run ------------------------------------------------------------------

    @property
    def strategy(self) -> Any:
        """The ``tf.distribute.Strategy`` of this run."""
        return self._context.strategy

    @property
    def global_batch_size(self) -> int:
        """Number of examples per step, over all replicas.

        :raises AttributeError: if neither the check nor the measurement was given a batch size.
        """
        if self._settings.global_batch_size is None:
            raise AttributeError(
                "run.global_batch_size is not known: give global_batch_size= (ddl_equivalence), --global-batch-size "
                "(pytest-ddl check) or batch_per_replica= (measure, gate)"
            )
        return self._settings.global_batch_size

    @property
    def seed(self) -> int:
        """Seed that Python, NumPy and Keras were given before the training function was called.

        A ``tf.data`` pipeline without a seed has a different order on each rank, as on a real cluster.
        """
        return self._settings.seed

    @property
    def num_replicas(self) -> int:
        """Number of replicas over all ranks."""
        return self._settings.told_replicas or self._context.num_replicas

    @property
    def rank(self) -> int:
        """Index of this process among the ranks."""
        return self._context.rank

    @property
    def num_ranks(self) -> int:
        """Number of ranks, which are the processes that call the training function."""
        return self._context.num_ranks

    @property
    def is_reference(self) -> bool:
        """True in the reference run: the run on one device that the other runs are compared with."""
        return self._settings.is_reference

    @property
    def tmp_path(self) -> Path:
        """Folder that all ranks of this run share."""
        return Path(self._settings.tmp_path)

    @property
    def rank_path(self) -> Path:
        """Folder that only this rank uses."""
        return Path(self._settings.rank_path or self._settings.tmp_path)

    @property
    def steps_limit(self) -> int | None:
        """Number of steps after which loops end (``steps=`` of the check); ``None`` for no limit."""
        return self._settings.steps

    @property
    def completed_steps(self) -> int:
        """Number of steps completed so far, including those of an earlier attempt.

        After an interruption by a fault, these are the steps that the restored values have behind them.
        """
        self._listener.find_first_step()
        return self._listener.completed

    @property
    def attempt(self) -> int:
        """1 for the first call of the training function, 2 for the call after :meth:`restart` or after a fault."""
        return self._settings.attempt

    def preempted(self) -> bool:
        """Return whether this machine will be taken away: the fault ``notice`` has struck this rank.

        Give it to TensorFlow as ``tf.distribute.experimental.TerminationConfig(termination_watcher_fn=run.preempted)``,
        or ask between two steps. Without a fault it is always False.
        """
        return notice.current().asked()

    @property
    def mesh(self) -> Any:
        """Mesh of devices.

        :raises AttributeError: under any strategy but ``model_parallel``.
        """
        return self._of_model_parallel("mesh")

    @property
    def layout_map(self) -> Any:
        """Map from variable names to their sharding.

        :raises AttributeError: under any strategy but ``model_parallel``.
        """
        return self._of_model_parallel("layout_map")

    def _of_model_parallel(self, name: str) -> Any:
        if not hasattr(self.strategy, name):
            raise AttributeError(
                f"run.{name} exists only under the model_parallel strategy; this run is under "
                f"{self._context.spec}. Ask with hasattr(run, {name!r}) first."
            )
        return getattr(self.strategy, name)

    # -- what to compare ----------------------------------------------------------------------

    def watch(self, model: Any = None, optimizer: Any = None, variables: Any = None, metrics: Any = None) -> None:
        """Compare these objects after every step; each call adds to the earlier ones.

        Each argument is one object, or a list or dict of objects. Their variables need not exist yet:
        the variables of a layer that the first batch builds are found later.
        """
        self._listener.watch(model=model, optimizer=optimizer, variables=variables, metrics=metrics)

    def examples(self, ids: Any) -> None:
        """Record which examples this replica consumes in this step; call it in the replica function.

        :param ids: one whole number or string for each example.
        """
        self._listener.observe_examples(ids)

    # -- training -----------------------------------------------------------------------------

    def steps(
        self, train_step: Any, dataset: Any, steps: int | None = None, *, concurrent: bool = False
    ) -> Iterator[Any]:
        """Call ``train_step(iterator)`` for each global batch, record each step, and yield its loss.

        The loop ends after ``steps`` steps, at the step limit of the check, or at the end of the data,
        whichever comes first.

        :param dataset: a ``tf.data.Dataset`` that is batched to the global batch size, or a function
            that takes a ``tf.distribute.InputContext`` and returns a dataset.
        :param concurrent: under ``parameter_server``, schedule all steps at once, which needs ``steps`` or
            a step limit. The default is to schedule a step only after the previous step has ended.
        """
        return self._pending("run.steps", self._steps(train_step, dataset, steps, concurrent))

    def _steps(self, train_step: Any, dataset: Any, steps: int | None, concurrent: bool) -> Iterator[Any]:
        given = data.prepare(dataset, self._settings, self._completed)
        self._listener.begin_loop()
        # Only now: a program that was started again has restored the step at which it continues.
        first = self._listener.completed

        def more(ahead: int = 0) -> bool:
            """Return whether a step may begin beside ``ahead`` others that have begun and not ended."""
            done, limit = self._listener.completed + ahead, self.steps_limit
            is_allowed = not self._listener.reached_limit and (limit is None or done < limit)
            return is_allowed and (steps is None or done - first < steps)

        if steps != 0 and data.number_of_steps(given) != 0:
            self._listener.begin_call("run.steps", train_step)
        arguments = (self._listener, self.strategy, train_step, given)
        if not coordinator.uses_coordinator(self.strategy):
            losses = stepping.synchronous(*arguments, more)
        elif self._settings.overlap:
            losses = coordinator.overlapping(*arguments, more, self._settings.staleness)
        elif concurrent and not self._settings.one_by_one:
            losses = coordinator.concurrently(*arguments, self._remaining(steps))
        else:
            losses = coordinator.one_by_one(*arguments, more)
        yield from self._bodies("steps", losses)
        if steps is not None and self._listener.reached_limit:
            self._cut.append(first + steps)
            self._listener.add_facts({"cut": tuple(self._cut)})

    def batches(self, dataset: Any) -> Iterator[Any]:
        """Yield distributed batches for a loop that calls ``run.strategy.run`` itself.

        Call :meth:`record` at the end of each step.

        :raises TypeError: under ``parameter_server``, whose workers take their batches themselves.
        """
        if coordinator.uses_coordinator(self.strategy):
            raise TypeError(
                "run.batches is for synchronous strategies: under parameter_server the workers take their own "
                "batches. Use run.steps(train_step, dataset), or schedule by yourself and call run.record()."
            )
        return self._pending("run.batches", self._batches(dataset))

    def _batches(self, dataset: Any) -> Iterator[Any]:
        given = data.prepare(dataset, self._settings, self._completed)
        self._listener.begin_loop()
        if data.number_of_steps(given) != 0:
            self._listener.begin_call("run.batches")
        more = lambda: not self._listener.reached_limit  # noqa: E731
        yield from self._bodies("batches", stepping.batches(self._listener, self.strategy, given, more))

    def _pending(self, name: str, loop: Iterator[Any]) -> Iterator[Any]:
        """Return the loop, and remember it until it begins."""
        self._never_began.append(name)

        def begin() -> Iterator[Any]:
            self._never_began.remove(name)
            yield from loop

        return begin()

    def end(self, returned: object = None) -> None:
        """Note what the program made and never began, after the training function has returned.

        :param returned: what it has returned. A generator, for example, is code that nobody runs.
        """
        for name in self._never_began:
            text = f"the loop never began over {name}(...), which trains only in `for loss in {name}(...):`"
            self._listener.note(NoteKind.NEVER_BEGAN, text)
        for kinds, what, fix in _NOT_RUN:
            if isinstance(returned, kinds) and not self._listener.completed:
                text = f"the training function returned {what}, which nobody runs: {fix}"
                self._listener.note(NoteKind.NEVER_BEGAN, text)
        if isinstance(returned, types.CoroutineType):
            # Python would warn that nobody has awaited it.
            returned.close()
        self._listener.begin_reading()

    def _bodies(self, loop: Literal["steps", "batches"], items: Iterator[Any]) -> Iterator[Any]:
        """Yield the items of a loop, and remember the loop while its body runs."""
        with self._threads.training():
            for item in items:
                self._loop = loop
                try:
                    yield item
                finally:
                    self._loop = None

    def record(self, loss: Any = None, **named_values: Any) -> None:
        """Record the end of a step, in a loop that the program runs itself.

        Each call counts one step. :meth:`value` records a number without counting a step.

        :param loss: the loss of the step.
        :param named_values: further numbers to record for the step, by name.
        :raises RuntimeError: in a loop over :meth:`steps`, which records its steps itself.
        """
        if self._loop == "steps":
            raise RuntimeError(
                "run.steps records each step itself, so run.record would count a step that did not happen: call "
                "run.value(name, number) to record a number"
            )
        with self._threads.training():
            self._listener.end_step(loss, named_values)

    def value(self, name: str, number: Any) -> None:
        """Record a number to compare, without counting a step.

        In a loop over :meth:`steps` it belongs to the step that has just ended, and in a loop over :meth:`batches` to
        the step that the next :meth:`record` ends. Anywhere else it is a result after the steps so far. Further numbers
        of one name in a step are compared one by one: the second is ``name#2``.

        :param number: one number, as Python, NumPy or an eager tensor has it.
        :raises TypeError: if it is not one number, for example a tensor inside a ``tf.function``.
        """
        self._listener.value(name, number, {"steps": "last", "batches": "next", None: None}[self._loop])

    def fit(self, model: Any, dataset_or_x: Any, y: Any = None, **kwargs: Any) -> Any:
        """Call ``model.fit``, record the state after each batch, and stop at the step limit.

        Return the history, or ``None`` without training if the step limit was already reached. Under
        ``parameter_server``, epochs are recorded in place of batches.
        """
        with self._threads.training():
            return self._fitting.fit(model, dataset_or_x, kwargs if y is None else {"y": y, **kwargs})

    def evaluate(self, model: Any, dataset_or_x: Any, y: Any = None, **kwargs: Any) -> Any:
        """Call ``model.evaluate``, record its result and return it."""
        return self._fitting.evaluate(model, dataset_or_x, kwargs if y is None else {"y": y, **kwargs})

    def predict(self, model: Any, dataset_or_x: Any, **kwargs: Any) -> Any:
        """Call ``model.predict``, record its result and return it."""
        return self._fitting.predict(model, dataset_or_x, kwargs)

    def restart(self) -> None:
        """Interrupt the distributed run here, and call the training function again in a fresh cluster.

        In the reference run and in the second attempt, this call does nothing.
        """
        if not self.is_reference and self.attempt == 1:
            raise RestartRequested

    def _completed(self) -> int:
        return self._listener.completed

    def _remaining(self, steps: int | None) -> int | None:
        limit = self.steps_limit
        left = None if limit is None else max(0, limit - self._listener.completed)
        return min((value for value in (steps, left) if value is not None), default=None)


class RestartRequested(BaseException):
    """Exception that ``run.restart()`` raises; a BaseException, so that no ``except Exception`` catches it."""
