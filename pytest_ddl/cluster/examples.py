"""Run the body of a Hypothesis test in a rank, for one example. The engine runs in the controller."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as generators
from hypothesis.errors import UnsatisfiedAssumption

from pytest_ddl.cluster.protocol import ExampleResult, Failure
from pytest_ddl.strategies.parameter_server import join_scheduled

_ONCE = settings(
    max_examples=1,
    phases=[Phase.generate],
    database=None,
    deadline=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
)


def run_example(item: pytest.Function, drawn: Mapping[str, Any], strategy: Any) -> ExampleResult:
    """Call the body of a ``@given`` test with the values that the controller drew and with fixtures of this rank.

    The call is made inside a one-example run of Hypothesis, so that ``note``, ``event`` and ``target`` work in the
    body. Exceptions are caught before this inner engine sees them.
    """
    function = item.obj
    fixtures = {name: item.funcargs[name] for name in inspect.signature(function).parameters if name in item.funcargs}
    body = function.hypothesis.inner_test
    if getattr(item, "instance", None) is not None:
        body = body.__get__(item.instance)
    outcomes: list[ExampleResult] = []

    def once(values: Mapping[str, Any]) -> None:
        try:
            body(**fixtures, **values)
            join_scheduled(strategy)
        except UnsatisfiedAssumption:
            outcomes.append(ExampleResult(rejected=True))
        except BaseException as error:
            outcomes.append(ExampleResult(failure=Failure.of(error)))
        else:
            outcomes.append(ExampleResult())

    _ONCE(given(generators.just(drawn))(once))()
    return outcomes[0]
