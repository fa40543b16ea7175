"""Read ``expect=``: which causes are declared for a strategy, and which findings each of them excuses.

A key is the id of a cause, or ``cause[name]`` to declare it only for a variable, or for the variables of a layer.
Names may hold the wildcards of :mod:`fnmatch`.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase

from pytest_ddl.equivalence.causes import CAUSES
from pytest_ddl.equivalence.findings import Finding
from pytest_ddl.hints import Hint, HintedError
from pytest_ddl.installing import PROJECT
from pytest_ddl.messages import did_you_mean
from pytest_ddl.strategies.registry import StrategyRegistry, UnknownStrategyError
from pytest_ddl.strategies.spec import StrategySpec

Expect = Mapping[str, str | Mapping[str, str] | Collection[str]] | Collection[str]
"""Causes with reasons, for every strategy or under the name of a strategy or variant."""

_KEY = re.compile(r"(?P<cause>[^\[\]]+)(?:\[(?P<name>[^\[\]]+)\])?")


class Expectations(dict[str, str]):
    """Declared causes, each with the reason. A key may name the variable or the layer that it is about."""

    def excusing(self, findings: Sequence[Finding]) -> dict[int, str]:
        """Return the positions of the findings that are excused, each with its key.

        A key without a name excuses the findings of one owner only: a cause that is declared for one thing does not
        excuse an unrelated thing. It is the owner of the earliest finding that no key with a name excuses. A known
        behavior of a framework comes before all others, because its own description offers the key for it.
        """
        named = {at: key for at, finding in enumerate(findings) for key in self if _names(key, finding)}
        plain = [(at, f.cause) for at, f in enumerate(findings) if at not in named and f.cause and f.cause in self]
        owners: dict[str, str] = {}
        for at, cause in sorted(plain, key=lambda item: (findings[item[0]].known is None, findings[item[0]].step or 0)):
            if findings[at].owner:
                owners.setdefault(cause, findings[at].owner)
        return {**named, **{at: cause for at, cause in plain if findings[at].owner in ("", owners.get(cause, ""))}}


def parse_expectations(expect: Mapping[str, str] | Collection[str]) -> Expectations:
    """Return ``expect=`` for one strategy. A collection of causes has no reasons."""
    if isinstance(expect, str):
        raise HintedError(
            f"{Hint.GIVEN('expect', repr(expect))} must map cause ids to reasons, for example {{{expect!r}: 'why'}}"
        )
    expected = Expectations(expect if isinstance(expect, Mapping) else dict.fromkeys(expect, "no reason given"))
    for key in expected:
        cause = cause_of(key)
        if cause not in CAUSES:
            raise HintedError(f"{Hint.EXPECT} names an unknown cause {cause!r}{_suggested(cause)}")
    return expected


def _suggested(cause: str) -> str:
    """Suggest the cause that is written most alike, or else up to three that have most of its words."""

    def common(name: str) -> int:
        return sum(any(word.startswith(part) for word in name.split("-")) for part in cause.split("-") if part)

    most = max(map(common, CAUSES))
    alike = [repr(name) for name in sorted(CAUSES) if most and common(name) == most][:3]
    several = f" (did you mean {' or '.join(alike)}?)" if alike else f"; {PROJECT}/blob/main/docs/causes.md lists all"
    return did_you_mean(cause, CAUSES, 0.7) or several


def expectations_for(spec: StrategySpec, expect: Expect, registry: StrategyRegistry) -> Expectations:
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
            known = f"{name!r} is a cause, and its reason must be text" if cause_of(name) in CAUSES else str(error)
            raise HintedError(f"{Hint.OF_STRATEGY(name, repr(value))}: {known}") from None
        if isinstance(value, str) or not isinstance(value, Collection):
            raise HintedError(f"{Hint.OF_STRATEGY(name, repr(value))} must map the strategy to {{cause id: reason}}")
        declared = parse_expectations(value)
        if "[" not in name and wanted.name == spec.name:
            levels[1].update(declared)
        elif "[" in name and wanted == spec:
            levels[2].update(declared)
    parse_expectations(levels[0])
    return Expectations({cause: reason for level in levels for cause, reason in level.items()})


def cause_of(key: str) -> str:
    """Return the id of the cause in a key of ``expect=``."""
    match = _KEY.fullmatch(key)
    return match["cause"] if match else key


def _names(key: str, finding: Finding) -> bool:
    """Return whether a key names the cause of a finding and all variables that the finding is about."""
    match = _KEY.fullmatch(key)
    if match is None or match["name"] is None or match["cause"] != finding.cause or finding.variable is None:
        return False
    return all(_is_about(match["name"], variable) for variable in (finding.variable, *finding.others))


def _is_about(pattern: str, variable: str) -> bool:
    return any(fnmatchcase(text, pattern) for text in _parts(variable))


def _parts(variable: str) -> Iterator[str]:
    """Yield the name of a variable, the paths of the layers around it, and its components."""
    components = variable.split("/")
    yield from ("/".join(components[:count]) for count in range(1, len(components) + 1))
    yield from components


def _is_strategy(name: str, registry: StrategyRegistry) -> bool:
    try:
        registry.parse_variant(name)
    except UnknownStrategyError:
        return False
    return True
