"""Define the hooks of an observer around the program, each step and each replica function."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Protocol

from pytest_ddl.notes import NoteKind
from pytest_ddl.strategies.base import RankContext
from pytest_ddl.training.lines import Lines
from pytest_ddl.training.points import PointListener
from pytest_ddl.training.settings import RunSettings
from pytest_ddl.training.watching import Watched


class Recording(Protocol):
    """Part of the recorder that observers use."""

    asynchronous: bool
    epochs_as_steps: bool
    observers: tuple[Observer, ...]
    lines: Lines
    points: PointListener | None

    @property
    def completed(self) -> int: ...

    @property
    def watched(self) -> tuple[Watched, ...]: ...

    def note(self, kind: NoteKind, text: str) -> None: ...

    def moved_since_last_step(self) -> set[int]:
        """Return the indices of the watched variables that have changed since the last recorded step."""
        ...


class Observer:
    """Observer of one aspect of a run, which does not change what the program computes. Every hook is optional.

    Hooks around replica functions are called while a graph is traced or, if the program runs eagerly, in
    every call. To record something in every *execution*, add an operation to the graph
    (:func:`~pytest_ddl.training.callback_ops.add_callback`).
    """

    def __init__(self, settings: RunSettings, context: RankContext, recorder: Recording) -> None:
        self.settings = settings
        self.context = context
        self.recorder = recorder

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Stay open while the training function runs; replace methods at the start and restore them at the end."""
        yield

    def before_dispatch(self, traced: bool) -> None:
        """Run before the program's ``strategy.run`` starts, in cross-replica context.

        :param traced: whether the replica function is a ``tf.function`` that the strategy traces for all replicas.
        """

    def after_dispatch(self) -> None:
        """Run after the program's ``strategy.run`` returned or raised, in the same graph (or eagerly)."""

    def before_replica(self, given: Any) -> Any:
        """Run before a replica function starts, in replica context; the result goes to :meth:`after_replica`.

        :param given: the arguments of the replica function.
        """

    def after_replica(self, token: Any, result: Any) -> None:
        """Run after a replica function returned ``result``, in replica context.

        :param token: the result of :meth:`before_replica`.
        """

    def before_reading(self) -> None:
        """Run when a step has ended, before its values are read, and once more when the program has ended."""

    def end_step(self) -> Mapping[str, Any]:
        """Return fields of the :class:`~pytest_ddl.records.StepRecord` of the step that just ended."""
        return {}

    def discard(self) -> None:
        """Forget what was observed since the last step, because it belongs to no step."""
        self.end_step()

    def look_again(self, ended: bool) -> None:
        """Run when the program has ended, before :meth:`end_run`.

        :param ended: False after an error or a restart.
        """

    def end_run(self) -> Mapping[str, Any]:
        """Return fields of the :class:`~pytest_ddl.records.RankRecord`."""
        return {}
