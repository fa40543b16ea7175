"""Shared by all tests of the plugin: the path to the suite, tiers, and what a test must not leave to the next one."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

# At the end, so that an installed pytest_ddl is found first. Under importmode=importlib the root folder is not on the
# path by itself.
sys.path.append(str(Path(__file__).parents[1]))

from suites import tiers

TIERS = Path(__file__).with_name("tiers.toml")
OWN = "_PYTEST_DDL_TEST_SERVERS"
"""Environment variable of the pytest process that has made the folder. Workers of pytest-xdist inherit it."""


def pytest_addoption(parser: pytest.Parser) -> None:
    told = f"Also run the tests of the plugin that {TIERS.name} leaves to the night"
    parser.addoption("--nightly", action="store_true", help=told)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    # A test that an argument names runs always.
    if any("::" in argument for argument in config.args):
        return
    left_out = set() if "soak" in config.option.markexpr else {item for item in items if _is_soak(item)}
    if not config.getoption("--nightly"):
        left_out |= {item for item in items if _is_nightly(item)}
    if left_out:
        config.hook.pytest_deselected(items=[item for item in items if item in left_out])
        items[:] = [item for item in items if item not in left_out]


def _is_soak(item: pytest.Item) -> bool:
    # It takes hours, so the other tests of the night do not wait for it.
    return item.path.is_relative_to(TIERS.parent) and item.get_closest_marker("soak") is not None


def _is_nightly(item: pytest.Item) -> bool:
    own = item.path.is_relative_to(TIERS.parent) and item.get_closest_marker("slow") is not None
    return own and not tiers.is_in(item.nodeid, tiers.DEFAULT, TIERS)


def pytest_configure(config: pytest.Config) -> None:
    if OWN in os.environ:
        return
    # Sockets need short paths, so the folder is not a test's own temporary folder.
    folder = tempfile.TemporaryDirectory(prefix="ddl-")
    patch = pytest.MonkeyPatch()
    patch.setenv("XDG_RUNTIME_DIR", folder.name)
    patch.setenv(OWN, folder.name)

    def end() -> None:
        from pytest_ddl.cluster.warm import servers as warm

        warm.stop()
        patch.undo()
        folder.cleanup()

    config.add_cleanup(end)


@pytest.fixture(autouse=True)
def modules_of_this_test() -> Iterator[None]:
    """Forget what a test imports from its temporary folder: the gate and launchers over hosts look at every module."""
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        if "pytest-of-" in str(getattr(sys.modules[name], "__file__", None)):
            del sys.modules[name]
