"""Configure the suite: handle known failures, and give property tests a few fixed examples."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from pytest_ddl import DivergenceError, RankError
from pytest_ddl.items.selection import SPEC_FIXTURE
from suites.known_failures import FILE, KnownFailure, installed, known_failures

# The examples are fixed, because a test that fails for one commit must not pass for the next with other examples.
# The health check about function-scoped fixtures is off, because ddl_equivalence keeps no state between examples.
settings.register_profile(
    "suite",
    max_examples=4,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
settings.load_profile("suite")

_KNOWN = pytest.StashKey[KnownFailure]()


def pytest_configure(config: pytest.Config) -> None:
    # The warning about an outdated entry must not become an error, which would hide the results of the tests.
    config.addinivalue_line("filterwarnings", rf"default:{FILE.stem}\.toml:pytest.PytestWarning")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    strategies = set()
    unmatched = set(known_failures())
    for item in items:
        spec = getattr(item, "callspec", None) and item.callspec.params.get(SPEC_FIXTURE)  # type: ignore[attr-defined]
        if spec is None:
            continue
        strategies.add(spec.name)
        for entry in known_failures():
            if entry.matches(item.nodeid, spec.name):
                unmatched.discard(entry)
                item.stash[_KNOWN] = entry
                if "ddl_equivalence" not in item.fixturenames:  # type: ignore[attr-defined]
                    reason = f"{', '.join(entry.causes)}: {entry.explanation}"
                    item.add_marker(pytest.mark.xfail(reason=reason, raises=RankError, strict=True))
    if not any(_holds_the_suite(config.invocation_params.dir / argument) for argument in config.args):
        return
    for entry in unmatched:
        if not entry.strategies or strategies.issuperset(entry.strategies):
            warnings.warn(f"{FILE.name}: {entry} matches no test", pytest.PytestWarning, stacklevel=1)


def _holds_the_suite(path: Path) -> bool:
    """Return whether a run with this path as its argument collects every test of the suite."""
    return FILE.parent.is_relative_to(path.resolve())


@pytest.fixture
def ddl_equivalence(ddl_equivalence: Callable[..., Any], request: pytest.FixtureRequest) -> Callable[..., Any]:
    """The plugin's ``ddl_equivalence``. A test with a known failure must fail with one of the known causes."""
    known = request.node.stash.get(_KNOWN, None)
    if known is None:
        return ddl_equivalence

    def compare(train: Any, **arguments: Any) -> Any:
        __tracebackhide__ = True
        # Without this argument, a comparison that fails in float64 is repeated in the program's own precision.
        arguments.setdefault("precision", "float64")
        try:
            report = ddl_equivalence(train, **arguments)
            if known.known in {behavior.id for behavior in report.known_behaviors}:
                return report  # the plugin reports the test as an expected failure
        except DivergenceError as error:
            causes = {finding.cause for finding in error.report.findings}
            if not causes <= set(known.causes):
                raise
            pytest.xfail(f"{', '.join(sorted(causes))}: {known.explanation}")
        versions = ", ".join(f"{name} {number}" for name, number in installed().items())
        pytest.fail(
            f"{FILE.name}: {known} passes with {versions}: take the entry out, or narrow its versions", pytrace=False
        )

    return compare
