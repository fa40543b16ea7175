"""Access to private parts of Hypothesis, kept in this one module.

The public API cannot change the settings of a test that is already decorated. But an example that is sent to other
processes and traces a graph would often exceed the default deadline of 200 ms, and fail the health checks about speed.
Settings that the user made explicitly stay. Tested with Hypothesis 6.155 and 6.170.
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
    """Switch off the default deadline and the health checks about speed while a ``@given`` test runs."""
    function = getattr(test, "__func__", test)
    original = getattr(function, _ATTRIBUTE, None)
    current = original or settings()
    deadline = None if current.deadline == settings().deadline else current.deadline
    suppressed = [*current.suppress_health_check, *(c for c in _ABOUT_SPEED if c not in current.suppress_health_check)]
    # The explain phase would report lines of this package, because the body's own lines run in the ranks.
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
