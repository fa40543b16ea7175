"""Read ``expect=``: the causes that are declared for the strategy that is compared."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from pytest_ddl.equivalence.causes import CAUSES
from pytest_ddl.equivalence.verdict.judge import parse_expectations
from pytest_ddl.strategies.registry import StrategyRegistry, UnknownStrategyError
from pytest_ddl.strategies.spec import StrategySpec

Expect = Mapping[str, str | Mapping[str, str] | Collection[str]] | Collection[str]
"""Cause ids with reasons, for every strategy or under the name of a strategy or variant."""


def expectations_for(spec: StrategySpec, expect: Expect, registry: StrategyRegistry) -> dict[str, str]:
    """Return the declared causes that hold under a strategy, each with its reason.

    A reason for a variant outranks that for its strategy, which outranks that for all strategies.

    :raises ValueError: if a name is neither a cause nor a strategy, even for a strategy that does not run.
    """
    if isinstance(expect, str) or not isinstance(expect, Mapping):
        return parse_expectations(expect)
    levels: list[dict[str, str]] = [{}, {}, {}]
    for name, value in expect.items():
        if isinstance(value, str) and not _is_strategy(name, registry):
            levels[0][name] = value
            continue
        try:
            wanted = registry.parse_variant(name)
        except UnknownStrategyError as error:
            known = f"{name!r} is a cause, and its reason must be text" if name in CAUSES else str(error)
            raise ValueError(f"expect={{{name!r}: {value!r}}}: {known}") from None
        if isinstance(value, str) or not isinstance(value, Collection):
            raise ValueError(f"expect={{{name!r}: {value!r}}} must map the strategy to {{cause id: reason}}")
        declared = parse_expectations(value)
        if "[" not in name and wanted.name == spec.name:
            levels[1].update(declared)
        elif "[" in name and wanted == spec:
            levels[2].update(declared)
    parse_expectations(levels[0])
    return {cause: reason for level in levels for cause, reason in level.items()}


def _is_strategy(name: str, registry: StrategyRegistry) -> bool:
    try:
        registry.parse_variant(name)
    except UnknownStrategyError:
        return False
    return True
