"""Turn a decorated test into its parameters: the checks that apply to each object."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from pytest_ddl.conformance.bench import Planned
from pytest_ddl.conformance.cases import Plan
from pytest_ddl.conformance.checks import CONFORMANCE_CHECKS
from pytest_ddl.conformance.describing import describe
from pytest_ddl.conformance.registry import Subject
from pytest_ddl.messages import did_you_mean


def planned(plan: Plan, call: Callable[..., Any], strategies: Collection[str]) -> list[Planned]:
    """Return the checks of all objects of a test.

    :param call: calls a function on one device, in another process.
    :param strategies: names of all strategies.
    :raises ValueError: if an object cannot be checked, or if an expected failure is none. The message is one line.
    """
    for failures in (plan.expected_failures, *(case.expected_failures for case in plan.cases)):
        _check_names(failures, strategies)
    described: Sequence[Subject | str] = call(describe, plan.cases)
    problems = [one for one in described if isinstance(one, str)]
    if problems:
        raise ValueError(problems[0])
    subjects = [one for one in described if isinstance(one, Subject)]
    plans: list[Planned] = []
    for case, subject in zip(plan.cases, _with_names(subjects), strict=True):
        checks = [check for check in CONFORMANCE_CHECKS.values() if check.applies(subject)]
        _check_used(case.expected_failures, [check.name for check in checks], subject.name)
        for check in checks:
            both = {**_of(plan.expected_failures, check.name), **_of(case.expected_failures, check.name)}
            plans.append(Planned(check, subject, both))
    _check_used(plan.expected_failures, [one.check.name for one in plans], "the objects of the test")
    return plans


def _parts(name: str) -> tuple[str, str]:
    """Return strategy and check of a name; the strategy is empty for all of them."""
    strategy, _, check = name.rpartition(":")
    return strategy, check


def _of(expected_failures: Mapping[str, str], check: str) -> dict[str, str]:
    parts = {_parts(name): reason for name, reason in expected_failures.items()}
    return {strategy: reason for (strategy, name), reason in parts.items() if name == check}


def _check_names(expected_failures: Mapping[str, str], strategies: Collection[str]) -> None:
    """Check that strategies and checks exist.

    :raises ValueError: if one does not. The message is one line.
    """
    for name in expected_failures:
        strategy, check = _parts(name)
        if check not in CONFORMANCE_CHECKS:
            suggestion = did_you_mean(check, CONFORMANCE_CHECKS)
            raise ValueError(f"expected_failures: there is no check {check!r}{suggestion}")
        if strategy and strategy not in strategies:
            suggestion = did_you_mean(strategy, strategies)
            raise ValueError(f"expected_failures={{{name!r}: ...}}: there is no strategy {strategy!r}{suggestion}")


def _check_used(expected_failures: Mapping[str, str], checks: Collection[str], whose: str) -> None:
    """Check that expected failures are of checks that run.

    :raises ValueError: if one is not. The message is one line.
    """
    for name in expected_failures:
        if _parts(name)[1] not in checks:
            raise ValueError(
                f"expected_failures={{{name!r}: ...}}: this check does not apply to {whose}; those that do: "
                f"{', '.join(dict.fromkeys(checks)) or 'none'}"
            )


def _with_names(subjects: Sequence[Subject]) -> Iterator[Subject]:
    """Give objects of the same name a number."""
    counts: dict[str, int] = {}
    for subject in subjects:
        counts[subject.name] = counts.get(subject.name, 0) + 1
        number = counts[subject.name]
        yield subject if number == 1 else replace(subject, name=f"{subject.name}{number}")
