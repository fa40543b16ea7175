"""Decide with a bound whether rounding explains a difference, or whether the bound is too wide for a decision."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from pytest_ddl.hints import Hint


class Decision(Enum):
    """Verdict of a bound on a difference."""

    WITHIN = "within the bound"
    UNDECIDED = "the bound is too wide"
    BEYOND = "beyond the bound"


@dataclass(frozen=True)
class Bound:
    """Largest difference that rounding explains in one value, its origin, and the effect of one example."""

    value: float
    origin: str
    effect: float = 0.0
    """Difference that one wrongly handled example would make."""
    measured: bool = False
    unamplified: float = 0.0
    """A-priori part of the bound: the rounding if nothing amplifies it."""
    a_priori: bool = False
    """True if it holds only rounding that a formula gives, so that measuring noise may widen it."""
    lost: bool = False
    """True if runs that measure rounding were made, but did not come this far: the time may have been over."""
    advice: str = Hint.MORE_PRECISION()
    """Advice on how to narrow a bound that is too wide."""

    def too_wide(self, error: float) -> bool:
        """Return whether a difference within the bound could still be a defect."""
        return self.effect < self.value and min(self.effect, self.unamplified) < error <= self.value

    def judge(self, error: float) -> Decision:
        """Decide on an observed difference. A non-finite difference is beyond any bound.

        If nothing measured how far rounding moves a value, a difference smaller than an example makes is not decided.
        """
        if not error <= self.value:
            return Decision.UNDECIDED if self.lost and error <= self.effect else Decision.BEYOND
        return Decision.UNDECIDED if self.too_wide(error) else Decision.WITHIN
