"""Register strategies by name, and parse ``--ddl-strategy`` and ``strategies=``."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping

from pytest_ddl.messages import did_you_mean
from pytest_ddl.strategies.base import StrategyDefinition
from pytest_ddl.strategies.central_storage import CentralStorage
from pytest_ddl.strategies.mirrored import Mirrored
from pytest_ddl.strategies.model_parallel import ModelParallel
from pytest_ddl.strategies.multi_worker_mirrored import MultiWorkerMirrored
from pytest_ddl.strategies.one_device import OneDevice
from pytest_ddl.strategies.parameter_server import ParameterServer
from pytest_ddl.strategies.spec import HOSTS, StrategySpec
from pytest_ddl.strategies.tpu import Tpu
from pytest_ddl.strategies.virtual_gpus import VirtualGpus

BUILT_IN: tuple[Callable[[], StrategyDefinition], ...] = (
    OneDevice,
    Mirrored,
    MultiWorkerMirrored,
    ParameterServer,
    CentralStorage,
    ModelParallel,
    Tpu,
)
"""Built-in strategies. To add one, write its module and add its class here. A plugin registers its own by a hook."""

_HIDDEN: StrategyDefinition = VirtualGpus()
"""Strategy of the fixture ``virtual_gpus``. Users cannot select it."""
_VARIANT = re.compile(r"^(?P<name>[A-Za-z_]\w*)(?:\[(?P<shape>[^\[\]]*)\])?$")
_OUTER_COMMA = re.compile(r",(?![^\[]*\])")


class UnknownStrategyError(ValueError):
    """Error for an unknown strategy or an invalid variant. The message is one line and names what is valid."""


class StrategyDefinitionError(ValueError):
    """Error for a definition that cannot be registered. The message is one line and names its class and the fix."""


def split_variants(text: str) -> list[str]:
    """Return the parts of a list of variants. A comma in the brackets of one does not separate them."""
    return [part.strip() for part in _OUTER_COMMA.split(text)]


class StrategyRegistry:
    """All known strategies, in the order in which ``all`` runs them."""

    def __init__(self, definitions: Iterable[StrategyDefinition] = ()) -> None:
        self._definitions: dict[str, StrategyDefinition] = {}
        for definition in (*(make() for make in BUILT_IN), *definitions):
            self.add(definition)

    def add(self, definition: StrategyDefinition) -> None:
        """Add a strategy.

        :raises StrategyDefinitionError: if it lacks a member of :class:`StrategyDefinition`, or if its name is taken.
        """
        members = [name for name in vars(StrategyDefinition) if not name.startswith("_") and name != "capabilities"]
        missing = [name for name in members if not hasattr(definition, name)]
        if isinstance(definition, type):
            name = definition.__qualname__
            raise StrategyDefinitionError(f"{definition.__module__}.{name} is a class; add an object of it: {name}()")
        if missing:
            kind = f"{type(definition).__module__}.{type(definition).__qualname__}"
            raise StrategyDefinitionError(
                f"{kind} is no strategy: it has no {', '.join(missing)}. Let the class inherit from "
                "pytest_ddl.strategies.base.StrategyDefinition, and define the members that have no default"
            )
        taken = {name for known in self for name in (known.name, *known.aliases)}
        for name in (definition.name, *definition.aliases):
            if name in taken or name in ("all", "available"):
                raise StrategyDefinitionError(
                    f"strategy name {name!r} is taken; choose another name for {definition!r}"
                )
        self._definitions[definition.name] = definition

    def __iter__(self) -> Iterator[StrategyDefinition]:
        return iter(tuple(self._definitions.values()))

    def __getitem__(self, name: str) -> StrategyDefinition:
        definitions: tuple[StrategyDefinition, ...] = (*self, _HIDDEN)
        for definition in definitions:
            if name == definition.name or name in definition.aliases:
                return definition
        names = [name for definition in self for name in (definition.name, *definition.aliases)]
        hint = did_you_mean(name, [*names, "all", "available"])
        valid = ", ".join([*(definition.name for definition in self), "all", "available"])
        raise UnknownStrategyError(f"{name!r} is not a strategy{hint}; valid: {valid}")

    def default(self, name: str) -> StrategySpec:
        definition = self[name]
        return StrategySpec(definition.name, dict(definition.defaults))

    def parse_variant(self, text: str, overrides: Mapping[str, int | str] | None = None) -> StrategySpec:
        """Parse a variant such as ``mirrored[replicas=4]`` into a complete spec.

        :param overrides: values for keys that the text does not set, instead of the defaults.
        :raises UnknownStrategyError: for an unknown name or key, or a value that the strategy refuses.
        """
        match = _VARIANT.match(text.strip())
        if match is None:
            raise UnknownStrategyError(f"{text!r} is not of the form name or name[key=value,…]")
        definition = self[match["name"]]
        if definition is _HIDDEN:
            raise UnknownStrategyError(f"{text!r} is not a strategy: use the fixture virtual_gpus in the test")
        shape: dict[str, int | str] = dict(definition.defaults)
        shape.update({key: value for key, value in (overrides or {}).items() if key in shape})
        for part in filter(None, (part.strip() for part in (match["shape"] or "").split(","))):
            key, equals, value = (piece.strip() for piece in part.partition("="))
            if not equals or key not in (*shape, HOSTS):
                valid = ", ".join(f"{k}={v}" for k, v in definition.defaults.items()) or "none"
                hint = did_you_mean(key, (*definition.defaults, HOSTS))
                raise UnknownStrategyError(
                    f"{text!r}: {part!r} is not a setting of {definition.name}{hint}; settings: {valid}"
                )
            shape[key] = _parse_value(text, key, value, definition.defaults.get(key, 1))
        spec = StrategySpec(definition.name, shape)
        for key, setting in shape.items():
            if isinstance(setting, int) and setting < 1:
                raise UnknownStrategyError(f"{text!r}: {key} must be at least 1, not {setting}")
        problem = definition.check(spec) or _too_many_hosts(spec, definition)
        if problem is not None:
            raise UnknownStrategyError(f"{text!r}: {problem}")
        return spec

    def parse_selection(self, text: str, overrides: Mapping[str, int | str] | None = None) -> list[StrategySpec]:
        """Parse a comma-separated list of names, variants and ``all`` into specs, in order and without duplicates.

        ``available`` has the same meaning as ``all`` here. The caller removes the specs that cannot run.

        :raises UnknownStrategyError: if an entry cannot be parsed.
        """
        specs: list[StrategySpec] = []
        for part in split_variants(text):
            if not part:
                raise UnknownStrategyError(f"{text!r} has an empty entry")
            names = [d.name for d in self] if part in ("all", "available") else [part]
            specs += [self.parse_variant(name, overrides) for name in names]
        return list(dict.fromkeys(specs))


def _too_many_hosts(spec: StrategySpec, definition: StrategyDefinition) -> str | None:
    if not spec.hosts:
        return None
    processes = definition.topology(spec).widest
    if spec.hosts <= processes:
        return None
    several = f"its {processes} processes of one kind" if processes > 1 else "the one process in which it runs"
    return f"hosts={spec.hosts} is more than {several}"


def _parse_value(text: str, key: str, value: str, default: int | str) -> int | str:
    if isinstance(default, str):
        return value
    if not re.fullmatch(r"[+-]?\d+", value):
        raise UnknownStrategyError(f"{text!r}: {key}={value!r} is not a whole number")
    return int(value)
