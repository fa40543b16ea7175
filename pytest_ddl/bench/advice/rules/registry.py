"""Registry of the rules: the decorator :func:`rule` adds a function, and everything else reads ``RULES``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from pytest_ddl.bench.advice.facts.evidence import AdviceEvidence
from pytest_ddl.bench.advice.facts.gains import Gain

LIMITS = ("input", "communication", "stragglers", "memory", "Python and host", "tracing", "compute")
"""Parts of a program that can limit its steps."""


@dataclass(frozen=True)
class RuleFinding:
    """Finding of a rule: the measurement that supports its advice, and the expected gain."""

    measurement: str
    gain: Gain | None
    """``None`` if the measurement gives no number."""


@dataclass(frozen=True)
class AdviceRule:
    """One piece of advice, and when it applies."""

    id: str
    limit: str
    looks_at: str
    """Measurements that the rule reads."""
    applies_if: str
    """Condition, with the threshold."""
    expected: str
    """Formula of the expected gain."""
    change: str
    """Change that the user must make."""
    source: str
    knob: str
    """Knob that makes the change from outside, with which the advice can be measured; empty if there is none."""
    rank: int
    """0: a cause in the program; 1: a slow machine; 2: a general remedy. Causes come first, whatever the gains, because
    a general remedy such as a larger batch also makes a cause smaller."""
    at_most: bool
    """True if the expected gain is an upper bound, because the change may remove only a part of the cost."""
    judge: Callable[[AdviceEvidence], RuleFinding | None] = field(repr=False)
    """Function that returns the finding, or ``None`` if the rule does not apply."""


RULES: dict[str, AdviceRule] = {}
"""All rules by id."""


def rule(
    name: str,
    limit: str,
    *,
    looks_at: str,
    applies_if: str,
    expected: str,
    change: str,
    source: str,
    knob: str = "",
    rank: int = 0,
    at_most: bool = False,
) -> Callable[[Callable[[AdviceEvidence], RuleFinding | None]], Callable[[AdviceEvidence], RuleFinding | None]]:
    """Register a function as the judge of a rule; the parameters are the fields of :class:`AdviceRule`, and
    ``name`` is its id.

    :raises ValueError: if the limit does not exist, or there is already a rule of that id.
    """
    if limit not in LIMITS:
        raise ValueError(f"limit={limit!r} must be one of {', '.join(LIMITS)}")
    if name in RULES:
        raise ValueError(f"there is already a rule {name!r}")

    def register(
        judge: Callable[[AdviceEvidence], RuleFinding | None],
    ) -> Callable[[AdviceEvidence], RuleFinding | None]:
        RULES[name] = AdviceRule(
            name, limit, looks_at, applies_if, expected, change, source, knob, rank, at_most, judge
        )
        return judge

    return register
