"""Define the calls by which a run reports its steps to the object that records or measures them."""

# ruff: noqa: B027 - a listener defines only the methods that concern it
from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from pytest_ddl.notes import NoteKind
from pytest_ddl.run_facts import RunFacts


class StepListener(ABC):
    """Listener to the steps of one run on one rank. It also decides when the run has enough steps.

    A listener defines ``completed``, ``reached_limit`` and :meth:`end_step`. All other methods do nothing by default,
    and a listener overrides those that concern it. A run calls them in this order:

    * ``run.watch``: :meth:`watch`, usually before the first step;
    * ``run.steps`` and ``run.batches``: :meth:`begin_loop`, and :meth:`begin_call` if there is data. If steps run
      concurrently, :meth:`begin_asynchronous`. For each step :meth:`begin_step`, :meth:`step_done` (in ``run.steps``)
      and :meth:`end_step`. At the end :meth:`end_of_data` or :meth:`end_of_steps`, or neither of them if the data ended
      between two steps;
    * ``run.fit``: :meth:`begin_call`. In each epoch :meth:`begin`. For each step :meth:`begin_step` and
      :meth:`step_done` (if the run logs points), :meth:`end_update` (if the run takes values over) and
      :meth:`end_step`. After the training :meth:`end_of_steps` and :meth:`result`;
    * ``run.evaluate`` and ``run.predict``: :meth:`begin_phase`, :meth:`end_phase`, :meth:`result` and
      :meth:`end_without_step`;
    * ``run.record``: :meth:`end_step`;
    * ``run.value``: :meth:`value`.
    """

    @property
    @abstractmethod
    def completed(self) -> int:
        """Index of the last completed step, over all attempts."""

    @property
    @abstractmethod
    def reached_limit(self) -> bool:
        """True if the run must end."""

    @abstractmethod
    def end_step(
        self, loss: Any = None, shown: Mapping[str, Any] | None = None, traces: int | None = None, left: int = 0
    ) -> float | None:
        """Handle the end of a step. Return the loss as a float if it is one number and was read.

        :param loss: the loss of the step, as the program has it.
        :param shown: further numbers of the step, by name.
        :param traces: number of times that the step's function has been traced; see :func:`traces_of`.
        :param left: number of steps that ran concurrently with this one and are reported after it. Variables then
            belong to the last one.
        """

    def watch(self, model: Any = None, optimizer: Any = None, variables: Any = None, metrics: Any = None) -> None:
        """Handle ``run.watch``; each argument is one object, or a list or dict of objects."""

    def observe_examples(self, ids: Any) -> None:
        """Handle ``run.examples``, in replica context, while a graph is traced or eagerly."""

    def note(self, kind: NoteKind, text: str) -> None:
        """Keep a note on something that cannot be recorded."""

    def add_facts(self, facts: RunFacts) -> None:
        """Keep a fact about the run, as plain values."""

    def begin_call(self, method: str, trains: Any = None) -> None:
        """Handle the start of a method that has data to train on.

        :param method: ``run.steps``, ``run.batches`` or ``run.fit``.
        :param trains: the step function or the model.
        """

    def begin(self) -> None:
        """Handle the start of training, of a later loop, or of an epoch; the program may have changed variables."""

    def find_first_step(self) -> None:
        """Find the step at which a program continues that was started again, if it has restored its variables."""

    def begin_loop(self) -> None:
        """Handle the start of ``run.steps`` or ``run.batches``."""
        self.begin()

    def begin_asynchronous(self, epochs_as_steps: bool = False) -> None:
        """Handle the start of steps that run concurrently.

        :param epochs_as_steps: True if each :meth:`end_step` stands for an epoch.
        :raises ValueError: if the listener needs the end of each step.
        """

    def begin_step(self) -> None:
        """Handle the start of a step, before its function is called. Loops that the program writes do not report it."""

    def step_done(self) -> None:
        """Handle the end of the update of a step, before anything else happens; callbacks of ``fit`` run later."""

    def begin_phase(self, phase: str) -> None:
        """Handle the start of an evaluation or prediction (``evaluation``)."""

    def end_phase(self, phase: str) -> None:
        """Handle the end of what :meth:`begin_phase` began."""

    def end_update(self) -> None:
        """Handle the end of the update of a step, before callbacks of the program run."""

    def end_of_steps(self, iterator: Iterator[Any], batches: int | None = None) -> None:
        """Handle the end of a loop that ran enough steps before its data ended.

        :param iterator: the iterator of the loop, which may have further batches.
        :param batches: number of batches that a step takes, if the loop knows it; a program's step may take several.
        """

    def end_of_data(self) -> None:
        """Handle the end of the data within a step, which may have run in part."""

    def begin_reading(self) -> None:
        """Handle the end of the program, before its values are read for the last time."""

    def end_without_step(self) -> None:
        """Handle the end of an evaluation or prediction: what was consumed since the last step belongs to none."""

    def value(self, name: str, number: Any, step: str | None) -> None:
        """Handle ``run.value``.

        :param step: ``last`` for the step that has ended, ``next`` for the one that ends next, ``None`` for no step.
        """

    def result(self, name: str, value: Any) -> None:
        """Handle the result of ``fit``, ``evaluate`` or ``predict``."""


def traces_of(function: Callable[..., Any]) -> int | None:
    """Return how often a ``tf.function`` has been traced, or ``None`` for a plain function."""
    count = getattr(function, "experimental_get_tracing_count", None)
    return int(count()) if count is not None else None
