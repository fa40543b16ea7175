"""Name the objects that a test checks: the decorator, and what may be said about one object."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from pytest_ddl.conformance.kinds import KINDS
from pytest_ddl.conformance.registry import Tags
from pytest_ddl.messages import not_one_of

FIXTURE = "ddl_check"
"""Fixture of the plugin that a decorated test asks for."""
PLAN = "_pytest_ddl_conformance"
"""Attribute of a decorated test."""
Function = TypeVar("Function", bound=Callable[..., Any])


@dataclass(frozen=True)
class Case:
    """An object to check, with what pytest-ddl cannot find out by itself.

    :raises ValueError: if an argument is wrong. The message is one line.
    """

    factory: Callable[[], Any]
    """Function without arguments that makes a new object. Every rank calls it in the scope of its strategy."""
    name: str | None = None
    """Name in the ids of tests; by default the class of the object."""
    kind: str | None = None
    """``"layer"``, ``"metric"``, ``"loss"``, ``"optimizer"`` or ``"callback"``; by default from its class."""
    tags: Tags = field(default_factory=Tags)
    data: Callable[[int], tuple[Any, ...]] | None = None
    """Function of a number of examples. It returns the arguments of a call as NumPy arrays with that many rows: inputs
    of a layer, arguments of ``update_state``, or labels and predictions of a loss. They are the same in each process.
    By default, pytest-ddl tries common shapes."""
    expected_failures: Mapping[str, str] = field(default_factory=dict)
    """Check -> reason, for this object only; see :func:`parametrize_with_ddl_checks`."""

    def __post_init__(self) -> None:
        if not callable(self.factory) or (hasattr(self.factory, "get_config") and not isinstance(self.factory, type)):
            raise ValueError(
                f"{self.factory!r} must be a function without arguments that makes the object, because each rank makes "
                "its own in the scope of its strategy: write lambda: ..."
            )
        if self.kind is not None and self.kind not in KINDS:
            raise ValueError(not_one_of("kind", self.kind, KINDS))
        if not isinstance(self.tags, Tags):
            raise ValueError(f"tags={self.tags!r} must be pytest_ddl.conformance.Tags(...)")
        if self.data is not None and not callable(self.data):
            raise ValueError(f"data={self.data!r} must be a function of a number of examples")
        check_reasons(self.expected_failures)


@dataclass(frozen=True)
class Plan:
    """Objects and checks of a decorated test."""

    cases: tuple[Case, ...]
    expected_failures: Mapping[str, str]


def check_reasons(expected_failures: object) -> None:
    """Check that expected failures are names with reasons.

    :raises ValueError: if they are not. The message is one line.
    """
    if not isinstance(expected_failures, Mapping):
        raise ValueError(f"expected_failures={expected_failures!r} must map names of checks to reasons")
    for name, reason in expected_failures.items():
        if not isinstance(name, str) or not isinstance(reason, str) or not reason.strip():
            raise ValueError(f"expected_failures={{{name!r}: {reason!r}}} must map the name of a check to a reason")


def parametrize_with_ddl_checks(
    factories: Iterable[Callable[[], Any] | Case], *, expected_failures: Mapping[str, str] | None = None
) -> Callable[[Function], Function]:
    """Parametrize a test with the checks that apply to objects of Keras, under each selected strategy.

    The test has the argument ``ddl_check``, and calls it::

        @parametrize_with_ddl_checks([MyMetric, lambda: MyLayer(3)])
        def test_my_objects(ddl_check):
            ddl_check()

    :param factories: functions without arguments, or classes, each of which makes a new object; or a :class:`Case`.
    :param expected_failures: ``"check"``, or ``"strategy:check"`` for one strategy -> why the check is known to fail.
        They hold for all objects; those of a ``Case`` hold for that one. If such a check passes, the test fails.
    :raises ValueError: if an argument is wrong. The message is one line.
    """
    made = tuple(one if isinstance(one, Case) else Case(one) for one in factories)
    if not made:
        raise ValueError("parametrize_with_ddl_checks: the list of factories is empty, so nothing would be checked")
    expected = dict(expected_failures or {}) if isinstance(expected_failures or {}, Mapping) else expected_failures
    check_reasons(expected)

    def decorate(function: Function) -> Function:
        setattr(function, PLAN, Plan(made, expected or {}))
        return function

    return decorate
