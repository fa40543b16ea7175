"""Fail a test that asked for a fixture of this package and did nothing with it."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from pytest_ddl.training.threads import Threads

if TYPE_CHECKING:
    from pytest_ddl.cluster.handle import ClusterHandle

_NAME = "ddl_cluster"
_DONE = {"ddl_equivalence": "compared", "ddl_check": "checked", "ddl_gate": "measured"}
"""Fixture that a test must call -> what it does."""
_JUDGED_LATER = pytest.StashKey[bool]()


class FixtureCalls:
    """Calls of the fixtures that compare something, and the threads in which a test calls them."""

    def __init__(self) -> None:
        self.numbers: dict[str, int] = {}
        """Fixture that a test must call -> number of calls."""
        self.threads = Threads()

    @contextmanager
    def of(self, name: str) -> Iterator[None]:
        """Count a call, and follow the thread that makes it."""
        self.numbers[name] = self.numbers.get(name, 0) + 1
        with self.threads.training():
            yield


CALLS = pytest.StashKey[FixtureCalls]()


def calls_of(item: pytest.Item, *needed: str) -> FixtureCalls:
    """Return the calls of a test, to which the named fixtures are added as ones that it must call."""
    calls = item.stash.setdefault(CALLS, FixtureCalls())
    calls.numbers.update(dict.fromkeys(needed, 0))
    return calls


def after_body(item: pytest.Function, calls: FixtureCalls, handle: ClusterHandle | None) -> None:
    """Judge a test whose body has passed.

    :param handle: the cluster of the test, if it asked for one.
    :raises pytest.fail.Exception: if it never called such a fixture, or ran nothing on its cluster.
    """
    for name in (name for name, number in calls.numbers.items() if number == 0):
        made_of_it = ("ddl_fit", "ddl_script") if name == "ddl_equivalence" else ()
        asked = next((other for other in made_of_it if other in item.fixturenames), name)
        pytest.fail(f"the test asked for {asked} and never called it, so nothing was {_DONE[name]}", pytrace=False)
    if handle is not None:
        _judge_cluster(item, handle)


def _judge_cluster(item: pytest.Function, handle: ClusterHandle) -> None:
    """Judge whether a test used its cluster. A fixture with a tear-down may still use it: then judge later."""
    # Only this object says which fixtures the test itself names (private name: pytest 2.4 to 9.2).
    info = item._fixtureinfo
    found = {name: fixtures[-1] for name, fixtures in info.name2fixturedefs.items() if fixtures}
    needs = {name: fixture.argnames for name, fixture in found.items()}
    # A fixture that a test does not name (autouse) may ask for a cluster that only other tests use.
    if handle.used or not any(_leads(name, needs) for name in info.argnames):
        return
    later = [name for name, fixture in found.items() if name != _NAME and inspect.isgeneratorfunction(fixture.func)]
    if any(_leads(name, needs) for name in later):
        item.stash[_JUDGED_LATER] = True
    else:
        _refuse()


def after_fixtures(item: pytest.Item, handle: ClusterHandle) -> None:
    """Judge a test whose fixtures could use the cluster until now.

    :raises pytest.fail.Exception: if neither the test nor its fixtures ran anything on the cluster.
    """
    if item.stash.get(_JUDGED_LATER, False) and not handle.used:
        _refuse()


def _leads(name: str, needs: dict[str, tuple[str, ...]]) -> bool:
    """Return whether a fixture is the cluster, or is made from it."""
    return name == _NAME or any(_leads(other, needs) for other in needs.get(name, ()) if other != name)


def _refuse() -> None:
    pytest.fail(f"the test asked for {_NAME} and ran nothing on it: call {_NAME}.run(function)", pytrace=False)
