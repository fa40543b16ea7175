"""Configure the suite: items, tiers and known failures, and a few fixed examples for property tests."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Sequence
from functools import partial
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from pytest_ddl import DivergenceError, current_rank
from pytest_ddl.config import SETTINGS
from pytest_ddl.items.selection import SPEC_FIXTURE
from pytest_ddl.session import harness_of
from suites import absent, coverage, expecting, items, subject, tiers
from suites.installed import version_of
from suites.items import missing
from suites.known_failures import FILE, KnownFailure, versions_of

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


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("suite of pytest-ddl")
    group.addoption(
        "--ddl-tier",
        choices=tiers.TIERS,
        default=tiers.DEFAULT,
        help="Tests of the suite to run: before each commit, by default, or every night (default: %(default)s)",
    )
    expecting.add_option(group)
    group.addoption(
        "--ddl-coverage",
        action="store_true",
        help="Show which items the tests of the suite have covered. With --collect-only: which they would cover",
    )


@pytest.hookimpl(trylast=True)  # after the plugin has read its options
def pytest_configure(config: pytest.Config) -> None:
    # A GPU rounds the factors of products of float32 to 10 bits, unless TensorFloat-32 is off. The tolerances of the
    # suite are those of float32. Ranks inherit the variable.
    os.environ.setdefault("NVIDIA_TF32_OVERRIDE", "0")
    subject.follow(config)
    call = f"{items.MARKER}(*ids, shows='values', under=(), tensorflow='', keras='')"
    text = f"{call}: entries of {items.FILE.name} that a test is about, and versions that it needs"
    config.addinivalue_line("markers", text)
    config.pluginmanager.register(coverage.Reporter(config), "ddl-suite-coverage")
    expecting.register(config)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if current_rank() is not None:
        return  # it collects hundreds of tests, and may run only one of them: pytest_runtest_protocol prepares it
    own = [item for item in items if item.path.is_relative_to(FILE.parent)]
    chosen = [item for item in own if _is_chosen(item, config)]
    left_out = set(own) - set(chosen)
    if left_out:
        config.hook.pytest_deselected(items=[item for item in own if item in left_out])
        items[:] = [item for item in items if item not in left_out]
    for item in chosen:
        _prepare(item)
    config.stash[expecting.EXPECTED].apply(chosen, whole=not left_out)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Prepare a test in its rank, in time for pytest to read its markers."""
    if current_rank() is not None and item.path.is_relative_to(FILE.parent):
        _prepare(item)
        item.config.stash[expecting.EXPECTED].apply([item], whole=False)
    return (yield)


def _prepare(item: pytest.Item) -> None:
    """Attach what a test covers, and skip it if its package lacks what it needs."""
    coverage.attach(item, harness_of(item.config).registry)
    if version_of(subject.of_test(item)) is None:
        item.add_marker(pytest.mark.skip(reason=f"{subject.of_test(item)} is not installed"))
    if lacking := missing(item, versions_of(subject.of_test(item))):
        item.add_marker(pytest.mark.skip(reason=lacking))
    absent.skip(item)
    if item.config.pluginmanager.hasplugin("rerunfailures") and _drops_iterators(item):
        item.add_marker(pytest.mark.flaky(reruns=1, only_rerun=["was killed by SIG(SEGV|ABRT)"]))


def _is_chosen(item: pytest.Item, config: pytest.Config) -> bool:
    """Return whether a test is in the tier, and whether --ddl-strategy has its strategy, even if the test names it."""
    if not tiers.is_in(item.nodeid, config.getoption("--ddl-tier")):
        return False
    spec = getattr(item, "callspec", None) and item.callspec.params.get(SPEC_FIXTURE)  # type: ignore[attr-defined]
    if spec is None:
        return True
    selected = harness_of(config).registry.parse_selection(config.stash[SETTINGS]["strategy"])
    return spec.name in {one.name for one in selected}


def _drops_iterators(item: pytest.Item) -> bool:
    """Return whether TensorFlow may end the process of a test, because fit of Keras drops an iterator that reads ahead.

    One of a few hundred iterators is hit under ``OneDeviceStrategy``, most on a busy machine
    (``repros/dropped_iterator.py``). Such a test runs once more, and the summary counts it.
    """
    spec = getattr(item, "callspec", None) and item.callspec.params.get(SPEC_FIXTURE)  # type: ignore[attr-defined]
    return spec is not None and spec.name == "one_device"


@pytest.fixture
def ddl_equivalence(ddl_equivalence: Callable[..., Any], request: pytest.FixtureRequest) -> Callable[..., Any]:
    """The plugin's ``ddl_equivalence``. A test with a known failure must fail with one of the known causes."""
    known = request.node.stash.get(expecting.KNOWN, None)
    of_faults = request.node.stash.get(expecting.OF_FAULTS, ())
    if known is None:
        return partial(_with_faults, ddl_equivalence, of_faults) if of_faults else ddl_equivalence

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
            if not causes <= set(known.causes) or not expecting.shows(known, error):
                raise
            pytest.xfail(f"{', '.join(sorted(causes))}: {known.explanation}")
        versions = ", ".join(f"{name} {number}" for name, number in versions_of(subject.of_test(request.node)).items())
        raise expecting.NoLongerFailsError(
            f"{known.file.name}: {known} passes with {versions}: take the entry out, or narrow its versions",
            pytrace=False,
        )

    return compare


def _with_faults(compare: Callable[..., Any], entries: Sequence[KnownFailure], train: Any, **arguments: Any) -> None:
    __tracebackhide__ = True
    expecting.injected(entries, partial(compare, train, **arguments))
