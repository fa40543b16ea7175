"""Shared by all tests of the plugin: the path to the suite, tiers, and what a test must not leave to the next one."""

from __future__ import annotations

import os
import re
import sys
import tempfile
from collections.abc import Iterator
from inspect import isfunction
from pathlib import Path

import pytest

# Under importmode=importlib, pytest adds no folder to the path. Several tests, and their ranks, import modules of these
# folders by name. The root stands at the end, so that an installed pytest_ddl is found before it.
sys.path.extend(
    str(Path(__file__).parents[1] / folder)
    for folder in (
        "tests/bench",
        "tests/bench/evaluating",
        "tests/checks",
        "tests/equivalence",
        "tests/faults",
        "tests/guarding",
        "tests/hosts",
        "tests/training",
        ".",
    )
)

from pytest_ddl.cluster.warm import servers as warm
from pytest_ddl.cluster.warm.fitting import Server, key_of
from pytest_ddl.harness import process_harness
from tests.nightly import left_to_the_night

OWN = "_PYTEST_DDL_TEST_SERVERS"
"""Environment variable with the folder of the warm servers of a pytest process. Sessions in its tests inherit it."""

IDLE_MINUTES = 240.0
"""Minutes after which the server of the tests ends, if their pytest process was killed. That process ends it before.

On a slow machine, more than the usual 15 minutes lie between two tests that use it.
"""

MAX_ID = 45
"""Most characters that a text adds to the id of a test."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--nightly", action="store_true", help="Also run the tests of the plugin that are marked with nightly"
    )


def pytest_make_parametrize_id(val: object) -> str | None:
    """Return a short id for a text with several lines or many words, such as a message or the content of a file."""
    text = val.pattern if isinstance(val, re.Pattern) else val
    if not isinstance(text, str) or (len(text) <= MAX_ID and "\n" not in text):
        return None
    first_line = text.strip().partition("\n")[0]
    return f"{first_line[:MAX_ID]}...".encode("unicode_escape").decode("ascii")


def pytest_pycollect_makeitem(collector: pytest.Module | pytest.Class, obj: object) -> list[pytest.Item] | None:
    """Make no items of slow tests in the quick loop: the parameters of some are objects that a cluster tries first.

    Their files are imported all the same, so that a name that was moved is found.
    """
    if collector.config.option.markexpr != "not slow":
        return None
    marks = [*collector.iter_markers("slow"), *(getattr(obj, "pytestmark", ()) if isfunction(obj) else ())]
    return [] if any(mark.name == "slow" for mark in marks) else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    # A test that an argument names runs always.
    if any("::" in argument for argument in config.args):
        return
    left_out = set() if "soak" in config.option.markexpr else {item for item in items if _is_soak(item)}
    if not config.getoption("--nightly"):
        left_out |= left_to_the_night(items)
    if left_out:
        config.hook.pytest_deselected(items=[item for item in items if item in left_out])
        items[:] = [item for item in items if item not in left_out]


def _is_soak(item: pytest.Item) -> bool:
    # It takes hours, so the other tests of the night do not wait for it.
    # Few tests have the mark, and paths are compared slowly.
    return item.get_closest_marker("soak") is not None and item.path.is_relative_to(Path(__file__).parent)


def pytest_configure(config: pytest.Config) -> None:
    if OWN in os.environ and not hasattr(config, "workerinput"):
        return
    # Each worker of pytest-xdist has servers of its own, so what one of its servers has forked is of its own tests.
    # Sockets need short paths, so the folder is not a test's own temporary folder.
    folder = tempfile.TemporaryDirectory(prefix="ddl-")
    patch = pytest.MonkeyPatch()
    patch.setenv("XDG_RUNTIME_DIR", folder.name)
    patch.setenv(OWN, folder.name)
    # Two tests with other home folders then read the same configuration of Keras, which nobody has changed.
    patch.setenv("KERAS_HOME", folder.name)
    Path(folder.name, "keras.json").write_text("{}")

    def end() -> None:
        warm.stop()
        patch.undo()
        folder.cleanup()

    config.add_cleanup(end)


@pytest.fixture(autouse=True)
def modules_of_this_test() -> Iterator[None]:
    """Forget what a test imports from its temporary folder: the gate and launchers over hosts look at every module.

    Forget where it looked for modules, too. Ranks of later tests would look there first.
    """
    before, path = set(sys.modules), list(sys.path)
    yield
    sys.path[:] = path
    for name in set(sys.modules) - before:
        if "pytest-of-" in str(getattr(sys.modules[name], "__file__", None)):
            del sys.modules[name]


@pytest.fixture(autouse=True)
def environment_of_this_test() -> Iterator[None]:
    """Take back the environment variables that a test leaves, as mypy does: a warm server fits only its environment."""
    before = dict(os.environ)
    yield
    # pytest sets and deletes its own variable between the phases of a test.
    for name in (os.environ.keys() | before.keys()) - {"PYTEST_CURRENT_TEST"}:
        if name not in before:
            del os.environ[name]
        elif os.environ.get(name) != before[name]:
            os.environ[name] = before[name]


@pytest.fixture(scope="module")
def warm_server() -> Server:
    """A process that has imported TensorFlow. Sessions in tests fork theirs from it within milliseconds.

    One serves all modules. It is started again if the servers that tests leave have displaced it.
    """
    environ = process_harness().worker_environ()
    key = key_of(environ)
    warm.start(key, environ, IDLE_MINUTES)
    return warm.wait_until_ready(key)


@pytest.fixture
def warm_sessions(warm_server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the sessions that a test starts fork their zygotes from the warm server."""
    monkeypatch.setenv("PYTEST_DDL_WARM", "1")


@pytest.fixture(autouse=True)
def warm_sessions_of_pytester(request: pytest.FixtureRequest) -> None:
    """Let the sessions that a slow test runs by pytester use the warm server."""
    if "pytester" in request.fixturenames and request.node.get_closest_marker("slow") is not None:
        request.getfixturevalue("warm_sessions")
