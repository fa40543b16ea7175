"""What one observer of a run does: hooks around the program, each step and each replica function."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pytest_ddl.strategies.base import RankContext
    from pytest_ddl.training.recorder import Recorder
    from pytest_ddl.training.settings import RunSettings


class Observer:
    """Watches one aspect of a run without changing what the program computes; every hook may be left out.

    Hooks around replica functions are called while a graph is traced, or in every call where the
    program runs eagerly. What must be known of every *execution* is told by an operation in the graph
    (``observing.tell``).
    """

    def __init__(self, settings: RunSettings, context: RankContext, recorder: Recorder) -> None:
        self.settings = settings
        self.context = context
        self.recorder = recorder

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Open for the time of the training function: the place to replace and put back methods."""
        yield

    def before_dispatch(self) -> None:
        """Before the program's ``strategy.run`` starts, in cross-replica context."""

    def after_dispatch(self) -> None:
        """After it returned, in the same graph (or eagerly)."""

    def before_replica(self) -> Any:
        """Before a replica function starts, in replica context; what it returns goes to the next hook."""

    def after_replica(self, token: Any, result: Any) -> None:
        """After a replica function returned ``result``, in replica context."""

    def end_step(self) -> Mapping[str, Any]:
        """Fields of the :class:`~pytest_ddl.records.StepRecord` of the step that just ended."""
        return {}

    def discard(self) -> None:
        """Forget what was observed since the last step: it belongs to no step."""

    def end_run(self) -> Mapping[str, Any]:
        """Fields of the :class:`~pytest_ddl.records.RankRecord`."""
        return {}
