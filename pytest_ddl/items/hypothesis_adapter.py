"""The one place that touches Hypothesis beyond its public API.

Needed because settings of a test that is already decorated cannot be changed publicly: an example that
crosses to other processes and traces a graph must not be judged by the default deadline of 200 ms, nor
by health checks about speed. What the user set explicitly stays. Tried on Hypothesis 6.155 and 6.170.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from hypothesis import HealthCheck, Phase, settings

_ATTRIBUTE = "_hypothesis_internal_use_settings"
_ABOUT_SPEED = (HealthCheck.too_slow, HealthCheck.differing_executors)


@contextmanager
def adapt_settings(test: Any) -> Iterator[None]:
    """Lift the default deadline and the health checks about speed from a ``@given`` test while it runs."""
    function = getattr(test, "__func__", test)
    original = getattr(function, _ATTRIBUTE, None)
    current = original or settings()
    deadline = None if current.deadline == settings().deadline else current.deadline
    suppressed = [*current.suppress_health_check, *(c for c in _ABOUT_SPEED if c not in current.suppress_health_check)]
    # What Hypothesis would explain are lines of the tool: the body's own run in the ranks.
    phases = [phase for phase in current.phases if phase is not Phase.explain]
    adapted = settings(current, deadline=deadline, suppress_health_check=suppressed, phases=phases)
    setattr(function, _ATTRIBUTE, adapted)
    try:
        yield
    finally:
        if original is None:
            delattr(function, _ATTRIBUTE)
        else:
            setattr(function, _ATTRIBUTE, original)
