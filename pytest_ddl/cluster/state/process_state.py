"""Restore the state of a rank's process after a test, and name the changes that cannot be restored.

Many tests use one rank, and each must find it in the state of a fresh process. Changes by a fixture with a wider scope
than one test stay until the fixture is torn down, as in any pytest run.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from pytest_ddl.cluster.state import process_settings
from pytest_ddl.cluster.state.libraries import Libraries
from pytest_ddl.cluster.state.process_settings import DIRECTORY, ENVIRON, MISSING, PATH, TENSORFLOW_SEED
from pytest_ddl.cluster.state.surroundings import Surroundings
from pytest_ddl.cluster.state.user_modules import UserModules, loaded

# The zygote imports this module after the frameworks, so all workers share what is remembered and judged here.
LIBRARIES = Libraries()
loaded()
MAX_NAMED = 5
"""Maximum number of changes in a message. One change is enough to find the test that made it."""


class _Part(Protocol):
    """Interface of a part of the state, which compares its expected values with the present ones."""

    def changes(self) -> dict[str, Any]:
        """Return the present values that differ from the expected ones, by key."""

    def expect(self, key: str, value: Any) -> Any:
        """Expect another value from now on. Return the value that was expected before."""


class ProcessState:
    """State of this process between tests. It is made after the strategy was built."""

    def __init__(self) -> None:
        self._settings = _Settings()
        self._modules = UserModules()
        self._parts: dict[str, _Part] = {"setting": self._settings, "global": self._modules, "library": LIBRARIES}
        self._layers: dict[object, dict[tuple[str, str], Any]] = {}
        """For each fixture that is alive, the values that were expected before it was set up."""
        self._threads = set(threading.enumerate())
        self._children = _children()

    def adopt(self) -> None:
        """Record the present state as the clean one, because a pytest session has just collected its files."""
        self._layers.clear()
        self._settings.adopt()
        self._modules.remember()
        for key, value in LIBRARIES.changes().items():
            LIBRARIES.expect(key, value)
        self._threads |= set(threading.enumerate())
        self._children |= _children()

    def surround(self, surroundings: Surroundings) -> None:
        """Apply the changes of the pytest process's environment, working directory and import path to this process.

        :raises OSError: if this process cannot enter the working directory.
        """
        values: dict[str, Any] = {
            ENVIRON + name: MISSING if value is None else value for name, value in surroundings.environ.items()
        }
        if surroundings.directory is not None:
            values[DIRECTORY] = surroundings.directory
        if surroundings.path is not None:
            values[PATH] = list(surroundings.path)
        for name, value in values.items():
            key = "setting", name
            above = next((layer for layer in self._layers.values() if key in layer), None)
            if above is not None:
                # A fixture of this rank has set another value, which stays until the fixture is torn down.
                above[key] = value
            else:
                process_settings.write(name, value)
                self._settings.expect(name, value)

    @contextmanager
    def kept_by(self, fixture: object) -> Iterator[None]:
        """Accept the changes that happen in this context until :meth:`release` is called for the fixture."""
        before = self._changes()
        yield
        changed = {key: value for key, value in self._changes().items() if key not in before or before[key] != value}
        self._layers[fixture] = {key: self._expect(key, value) for key, value in changed.items()}
        self._threads |= set(threading.enumerate())
        self._children |= _children()

    def release(self, fixture: object) -> None:
        """Expect again the values that were expected before the set-up of the fixture."""
        fixtures = list(self._layers)
        if fixture not in self._layers:
            return
        later = [self._layers[one] for one in fixtures[fixtures.index(fixture) + 1 :]]
        for key, value in self._layers.pop(fixture).items():
            above = next((layer for layer in later if key in layer), None)
            if above is not None:
                above[key] = value
            else:
                self._expect(key, value)

    def settle(self) -> tuple[str, ...]:
        """Restore all settings that can be restored exactly. Return descriptions of all other changes."""
        left = self._settings.restore()
        self._modules.rewind_generators()
        left += [f"{key.replace(':', '.')} was changed" for key in self._modules.changes()]
        left += [f"{key} was replaced" for key in LIBRARIES.changes()]
        left += [f"the thread {thread.name} still runs" for thread in self._new_threads()]
        left += [f"the process {pid} still runs" for pid in _children() - self._children]
        return (*left[:MAX_NAMED], *([f"and {len(left) - MAX_NAMED} more"] if len(left) > MAX_NAMED else []))

    def _changes(self) -> dict[tuple[str, str], Any]:
        self._modules.rewind_generators()
        return {(part, key): value for part in self._parts for key, value in self._parts[part].changes().items()}

    def _expect(self, key: tuple[str, str], value: Any) -> Any:
        part, name = key
        return self._parts[part].expect(name, value)

    def _new_threads(self) -> list[threading.Thread]:
        return [thread for thread in threading.enumerate() if thread not in self._threads]


class _Settings:
    """Settings of the process between tests."""

    def __init__(self) -> None:
        self._expected: dict[str, Any] = {}
        self.adopt()

    def adopt(self) -> None:
        self._expected = process_settings.read_all()

    def changes(self) -> dict[str, Any]:
        present = process_settings.read_all()
        names = [*present, *(name for name in self._expected if name not in present)]
        pairs = {name: (self._expected.get(name, MISSING), present.get(name, MISSING)) for name in names}
        return {name: now for name, (expected, now) in pairs.items() if expected is not now and expected != now}

    def expect(self, key: str, value: Any) -> Any:
        before = self._expected.get(key, MISSING)
        if value is MISSING:
            self._expected.pop(key, None)
        else:
            self._expected[key] = value
        return before

    def restore(self) -> list[str]:
        """Restore the settings that differ. Return descriptions of those that cannot be restored."""
        left = []
        if self._expected.get(TENSORFLOW_SEED) is not None:
            # Drawing from the seeded sequence does not change the seed, so the sequence is restarted in any case.
            process_settings.write(TENSORFLOW_SEED, self._expected[TENSORFLOW_SEED])
        for name in self.changes():
            expected = self._expected.get(name, MISSING)
            if expected is MISSING and not name.startswith(ENVIRON):
                # A framework was imported since then. Its present settings become the expected ones.
                self._expected[name] = process_settings.read_all()[name]
                continue
            try:
                process_settings.write(name, expected)
            except Exception as error:
                left.append(f"{name} cannot be restored: {error}")
        return left


def _children() -> set[int]:
    """Return the pids of processes that this one has started and that still run."""
    try:
        with open(f"/proc/self/task/{os.getpid()}/children") as file:
            return {int(pid) for pid in file.read().split()}
    except OSError:
        # Without Linux's /proc, only the processes of multiprocessing are known.
        started = multiprocessing.active_children() if "multiprocessing" in sys.modules else []
        return {child.pid for child in started if child.pid is not None}
