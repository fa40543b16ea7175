"""An object under check, as a rank gets it: how it is made, its tags, and the examples that it takes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pytest_ddl.conformance.data import Data, cast
from pytest_ddl.conformance.tags import Tags


@dataclass(frozen=True)
class Subject:
    """An object under check. It can be sent to ranks."""

    factory: Callable[[], Any]
    name: str
    """Name in ids."""
    kind: str
    flavor: str
    """Package of its class: ``keras`` or ``tf_keras``."""
    precision: str
    """Dtype of real numbers in which it computes: float64 if it can."""
    tags: Tags
    data: Data | None = None

    def make(self) -> Any:
        """Make a new object."""
        return self.factory()

    def arrays(self, rows: int) -> tuple[Any, ...]:
        """Return the arguments for a number of examples, in the precision of the object."""
        return () if self.data is None else cast(self.data(rows), self.precision)
