"""The state of a rank's process: what a test leaves behind is put back, or named where it cannot be.

A rank is warm: the next test must find it as a fresh one. What a fixture of a wider scope than one test
has changed stays until the fixture is torn down, as in any pytest run.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from pytest_ddl.cluster import process_settings
from pytest_ddl.cluster.framework_settings import TENSORFLOW_SEED
from pytest_ddl.cluster.libraries import Libraries
from pytest_ddl.cluster.process_settings import DIRECTORY, ENVIRON, MISSING, PATH
from pytest_ddl.cluster.protocol import Surroundings
from pytest_ddl.cluster.user_modules import UserModules

LIBRARIES = Libraries()
"""Made when the zygote imports this module, after the frameworks: so all workers share what it remembers."""
MAX_NAMED = 5
"""Changes named in a message; one is enough to find the test that made it."""


class _Part(Protocol):
    """A part of the state: what is expected of it, and what differs."""

    def changes(self) -> dict[str, Any]:
        """Return what is not as expected, with what it is now."""

    def expect(self, key: str, value: Any) -> Any:
        """Expect another value from now on; return what was expected so far."""


class ProcessState:
    """The state of this process as it is between tests; made when the strategy is built."""

    def __init__(self) -> None:
        self._settings = _Settings()
        self._modules = UserModules()
        self._parts: dict[str, _Part] = {"setting": self._settings, "global": self._modules, "library": LIBRARIES}
        self._layers: dict[object, dict[tuple[str, str], Any]] = {}
        """By fixture that is alive: what was expected before it was set up."""
        self._threads = set(threading.enumerate())
        self._children = _children()

    def adopt(self) -> None:
        """Take the present state for the clean one: a pytest session has collected its files."""
        self._layers.clear()
        self._settings.adopt()
        self._modules.remember()
        for key, value in LIBRARIES.changes().items():
            LIBRARIES.expect(key, value)
        self._threads |= set(threading.enumerate())
        self._children |= _children()

    def surround(self, surroundings: Surroundings) -> None:
        """Take over the environment, the working directory and the import path of the controlling process.

        :raises OSError: when the folder cannot be entered from here.
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
                # A fixture of this rank has set it: that holds until the fixture is torn down.
                above[key] = value
            else:
                process_settings.write(name, value)
                self._settings.expect(name, value)

    @contextmanager
    def kept_by(self, fixture: object) -> Iterator[None]:
        """Keep what changes in this context until :meth:`release` is called for the fixture."""
        before = self._changes()
        yield
        changed = {key: value for key, value in self._changes().items() if key not in before or before[key] != value}
        self._layers[fixture] = {key: self._expect(key, value) for key, value in changed.items()}
        self._threads |= set(threading.enumerate())
        self._children |= _children()

    def release(self, fixture: object) -> None:
        """Expect again what was expected before the fixture was set up."""
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
        """Put back what can be put back exactly, and return the rest in words."""
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
    """The settings of the process as they are between tests."""

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
        """Put back what differs; return what cannot be, in words."""
        left = []
        if self._expected.get(TENSORFLOW_SEED) is not None:
            # Who draws from the seeded sequence does not change the seed.
            process_settings.write(TENSORFLOW_SEED, self._expected[TENSORFLOW_SEED])
        for name in self.changes():
            expected = self._expected.get(name, MISSING)
            if expected is MISSING and not name.startswith(ENVIRON):
                # A framework that was imported since: how it was imported is how it is expected to be.
                self._expected[name] = process_settings.read_all()[name]
                continue
            try:
                process_settings.write(name, expected)
            except Exception as error:
                left.append(f"{name} cannot be put back: {error}")
        return left


def _children() -> set[int]:
    """Processes that this one has started and that still run."""
    try:
        with open(f"/proc/self/task/{os.getpid()}/children") as file:
            return {int(pid) for pid in file.read().split()}
    except OSError:
        # Not on Linux: those that multiprocessing knows.
        started = multiprocessing.active_children() if "multiprocessing" in sys.modules else []
        return {child.pid for child in started if child.pid is not None}
