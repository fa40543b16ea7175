"""The steps of an optimizer of ``pytest_ddl.conformance``, with the package that the suite tests."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pytest_ddl.conformance import steps
from pytest_ddl.conformance.steps import NAMES as NAMES
from pytest_ddl.conformance.steps import WEIGHTS as WEIGHTS
from pytest_ddl.conformance.steps import follow as follow
from pytest_ddl.conformance.steps import total as total
from suites import subject


class Steps(steps.ConformanceSteps):
    """A layer with an optimizer under a strategy."""

    def __init__(self, strategy: Any, make: Callable[[], Any], how: str, *, build: bool = True) -> None:
        super().__init__(strategy, make, how, build=build, keras=subject.keras)

    def slot(self, name: str, slot: str) -> Any:
        """Return a slot of the variable with a name."""
        (found,) = (one for one in self.optimizer.variables if subject.is_slot(one, name, slot))
        return found
