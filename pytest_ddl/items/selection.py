"""Select the variants that a test runs under, from its marker, its fixtures and the options.

A test *asks for a strategy* if the private fixture ``_ddl_spec`` is in its fixture closure. The plugin parametrizes
``_ddl_spec`` with the variants, and not ``ddl_strategy``, which users can therefore override or parametrize.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

import pytest

from pytest_ddl.messages import no_such_argument, not_one_of
from pytest_ddl.strategies.registry import StrategyRegistry, UnknownStrategyError
from pytest_ddl.strategies.spec import StrategySpec

SPEC_FIXTURE = "_ddl_spec"
SINGLE_STRATEGY_FIXTURES = {
    f"{name}_strategy": name
    for name in (
        "one_device",
        "mirrored",
        "multi_worker_mirrored",
        "parameter_server",
        "central_storage",
        "model_parallel",
    )
}
"""Fixtures for tests that run under one strategy only, as name of the fixture -> name of the strategy."""
CONTROLLER_FIXTURES = ("ddl_cluster", "ddl_equivalence", "ddl_check")
"""Fixtures that control ranks from the pytest process."""
ISOLATIONS = ("reuse", "fresh")
DEVICES = ("auto", "cpu", "gpu", "tpu")
KERAS = ("keras", "tf_keras")


def is_seconds(value: object) -> bool:
    """Return whether a value is a positive number."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value < float("inf")


def fail_collection(node: Any, problem: object) -> NoReturn:
    """Fail the collection of a test's file with a one-line message."""
    raise pytest.fail.Exception(f"{getattr(node, 'nodeid', node)}: {problem}", pytrace=False) from None


@dataclass(frozen=True, kw_only=True)
class DdlMark:
    """Arguments of ``@pytest.mark.ddl``.

    :raises ValueError: if an argument is wrong. The message is one line.
    """

    strategies: str | Sequence[str] | None = None
    replicas: int | None = None
    workers: int | None = None
    ps: int | None = None
    timeout: float | None = None
    isolation: str = "reuse"
    device: str | None = None
    keras: str | None = None
    """Package that provides ``tf.keras``; ``None`` for the one of the options."""
    arguments: Mapping[str, Callable[[], Mapping[str, Any]]] = field(default_factory=dict)
    """Strategy -> function that a rank calls to get further arguments of the strategy's constructor."""

    def __post_init__(self) -> None:
        for name in ("replicas", "workers", "ps"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
                raise ValueError(f"{name}={value!r} must be a whole number, at least 1")
        if self.timeout is not None and not is_seconds(self.timeout):
            raise ValueError(f"timeout={self.timeout!r} must be a positive number of seconds")
        if self.isolation not in ISOLATIONS:
            raise ValueError(not_one_of("isolation", self.isolation, ISOLATIONS))
        if self.device is not None and self.device not in DEVICES:
            raise ValueError(not_one_of("device", self.device, DEVICES))
        if self.keras is not None and self.keras not in KERAS:
            raise ValueError(not_one_of("keras", self.keras, KERAS))
        functions = self.arguments.values() if isinstance(self.arguments, Mapping) else [None]
        if not all(map(callable, functions)):
            raise ValueError(
                f"arguments={self.arguments!r} must map names of strategies to functions that return a dict, because "
                "objects of TensorFlow can be made only in the ranks"
            )
        texts = [self.strategies] if isinstance(self.strategies, str) else self.strategies or []
        if not isinstance(texts, Collection) or not all(isinstance(text, str) for text in texts):
            raise ValueError(f"strategies={self.strategies!r} must be a name or a list of names")

    @property
    def is_alone(self) -> bool:
        """True if the test shares its clusters with no other test."""
        return self.isolation == "fresh" or self.keras is not None or bool(self.arguments)

    @property
    def overrides(self) -> dict[str, int | str]:
        """Shape settings for the keys that the text of a variant does not set."""
        values = {"replicas": self.replicas, "workers": self.workers, "ps": self.ps}
        return {key: value for key, value in values.items() if value is not None}


def parse_mark(node: pytest.Item | Any) -> DdlMark:
    """Return the arguments of the closest ``ddl`` marker of an item.

    :raises ValueError: if an argument is wrong. The message is one line.
    """
    mark = node.get_closest_marker("ddl")
    if mark is None:
        return DdlMark()
    if mark.args:
        raise ValueError(f"@pytest.mark.ddl takes keyword arguments only, not {mark.args[0]!r}; use strategies=…")
    unknown = [name for name in mark.kwargs if name not in DdlMark.__dataclass_fields__]
    if unknown:
        raise ValueError(no_such_argument("@pytest.mark.ddl", unknown[0], DdlMark.__dataclass_fields__))
    try:
        return DdlMark(**mark.kwargs)
    except ValueError as error:
        raise ValueError(f"@pytest.mark.ddl: {error}") from None


def select(
    mark: DdlMark, fixtures: Collection[str], default: str, registry: StrategyRegistry, node: Any = None
) -> list[StrategySpec]:
    """Return the variants that a test asks for, in the order in which they are named and without duplicates.

    :raises ValueError: if marker, fixtures or option are invalid or contradict each other. The message is one line.
    """
    _check_constructor_arguments(mark, registry)
    if "virtual_gpus" in fixtures:
        return [_virtual_gpus(node, registry)]
    single = [name for fixture, name in SINGLE_STRATEGY_FIXTURES.items() if fixture in fixtures]
    if len(single) > 1:
        raise ValueError(f"asks for {' and '.join(single)} at once; a test runs under one strategy at a time")
    # A marker on a module or a class may be meant for other tests in it.
    own = any(known.name == "ddl" for known in getattr(node, "own_markers", ()))
    if single:
        if own and mark.strategies is not None:
            raise ValueError(
                f"@pytest.mark.ddl: strategies={mark.strategies!r} has no effect on a test that asks for "
                f"{single[0]}_strategy; ask for ddl_strategy instead"
            )
        return _overridden(mark if own else DdlMark(), [registry.parse_variant(single[0], mark.overrides)])
    chosen: str | Sequence[str] = default if mark.strategies is None else mark.strategies
    if not chosen:
        raise ValueError("@pytest.mark.ddl: strategies= is empty, so the test would never run")
    text = chosen if isinstance(chosen, str) else ",".join(chosen)
    try:
        return _overridden(mark if own else DdlMark(), registry.parse_selection(text, mark.overrides))
    except UnknownStrategyError as error:
        origin = "" if mark.strategies is None else "@pytest.mark.ddl(strategies=…): "
        raise ValueError(f"{origin}{error}") from None


def _check_constructor_arguments(mark: DdlMark, registry: StrategyRegistry) -> None:
    """Check that ``arguments=`` names strategies whose constructors take arguments.

    :raises ValueError: for another name. The message is one line.
    """
    for name in mark.arguments:
        try:
            takes = getattr(registry[name], "arguments", ())
        except UnknownStrategyError as error:
            raise ValueError(f"@pytest.mark.ddl(arguments=…): {error}") from None
        if not takes:
            raise ValueError(f"@pytest.mark.ddl(arguments=…): {name} takes no arguments of its constructor")


def _overridden(mark: DdlMark, specs: list[StrategySpec]) -> list[StrategySpec]:
    """Check that every setting of the marker has an effect on at least one spec, and return the specs.

    :raises ValueError: if a setting has no effect.
    """
    for key, value in mark.overrides.items():
        if not any(key in spec.shape for spec in specs):
            names = ", ".join(spec.name for spec in specs)
            raise ValueError(f"@pytest.mark.ddl: {key}={value!r} is not a setting of {names}")
    return specs


def _virtual_gpus(node: Any, registry: StrategyRegistry) -> StrategySpec:
    mark = node.get_closest_marker("virtual_gpus") if node is not None else None
    valid = registry["virtual_gpus"].defaults
    shape: dict[str, int | str] = dict(valid)
    if mark is not None:
        shape.update(zip(shape, mark.args, strict=False))
        unknown = [name for name in mark.kwargs if name not in shape]
        shape.update(mark.kwargs)
        if unknown:
            raise ValueError(no_such_argument("@pytest.mark.virtual_gpus", unknown[0], valid))
        if len(mark.args) > len(valid):
            raise ValueError(f"@pytest.mark.virtual_gpus takes count and memory_mb, not {mark.args}")
    for name, value in shape.items():
        if not isinstance(value, int) or value < 1:
            raise ValueError(f"@pytest.mark.virtual_gpus: {name}={value!r} must be a whole number, at least 1")
    return StrategySpec("virtual_gpus", shape)


def label(spec: StrategySpec, registry: StrategyRegistry) -> str:
    """Return the test id of a variant: its name and the settings that differ from the default."""
    defaults = registry[spec.name].defaults
    shape = {key: value for key, value in spec.shape.items() if value != defaults.get(key)}
    return str(StrategySpec(spec.name, shape))
