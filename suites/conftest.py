"""What the suite adds to the plugin: known failures, and few but fixed examples for its property tests."""

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

# Fixed examples: a run that is red for one commit must not be green for the next by another draw. The fixture
# that compares has no state that an example could leave to the next one.
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
    # An entry that is out of date must not hide what the tests have to say.
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
    """Whether a run that was asked for this path collects every test here."""
    return FILE.parent.is_relative_to(path.resolve())


@pytest.fixture
def ddl_equivalence(ddl_equivalence: Callable[..., Any], request: pytest.FixtureRequest) -> Callable[..., Any]:
    """The plugin's, where known failures must fail, and must fail as they are known to."""
    known = request.node.stash.get(_KNOWN, None)
    if known is None:
        return ddl_equivalence

    def compare(train: Any, **arguments: Any) -> Any:
        __tracebackhide__ = True
        # Where it fails in float64 it would be tried again in the program's own precision.
        arguments.setdefault("precision", "float64")
        try:
            ddl_equivalence(train, **arguments)
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
