"""Define the reports of a run about the points that it reaches, and the place of an observer that follows them."""

from __future__ import annotations

from typing import Any, Protocol

from pytest_ddl.strategies.base import RankContext


class PointListener(Protocol):
    """Listener to the points of a run: where its phases begin and end, and events in them."""

    def begin(self, phase: str, number: int | None = None) -> None:
        """Enter a phase. Without a number, it is the next one of its kind."""

    def end(self, phase: str) -> None:
        """Leave a phase. Nothing happens if the program is not in it."""

    def end_step(self, number: int) -> None:
        """Leave a step, which perhaps was not entered."""

    def leave(self, phase: str) -> None:
        """Leave a phase that has not taken place, for example a step for which there was no data."""

    def event(self, detail: str, index: int | None = None) -> None:
        """Handle an event in the phase that the program is in. Threads of TensorFlow call this too."""


class PointPlan(Protocol):
    """Part of the settings of a run that has points: its rank makes an observer of it.

    The package that follows the points defines the class, so that this package need not know it. The rank imports that
    package when it receives the settings.
    """

    @property
    def disturbs(self) -> bool:
        """True if an exception of the run may not be the program's own."""

    def observer(self, settings: Any, context: RankContext, recorder: Any) -> Any:
        """Return the :class:`~pytest_ddl.training.observer.Observer` that sets ``recorder.points``."""
