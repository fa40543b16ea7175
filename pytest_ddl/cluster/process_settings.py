"""Read and restore the settings of this process that a test can change. Each setting has one entry."""

from __future__ import annotations

import contextlib
import gc
import locale
import logging
import os
import random
import signal
import socket
import sys
import tempfile
import threading
import warnings
from collections.abc import Mapping
from typing import Any

from pytest_ddl.cluster.framework_settings import Setting, framework_settings

NOT_SHARED = frozenset({"PYTEST_CURRENT_TEST", "PYTEST_VERSION"})
"""Environment variables that pytest sets in every process separately."""
ENVIRON = "os.environ "
DIRECTORY = "the working directory"
PATH = "sys.path"
MISSING: Any = type("Missing", (), {"__repr__": lambda _self: "missing"})()


def read_all() -> dict[str, Any]:
    """Return the values of all settings by name. The values can be compared with ``==``."""
    found: dict[str, Any] = {ENVIRON + name: value for name, value in os.environ.items() if name not in NOT_SHARED}
    for name, setting in _SETTINGS.items():
        found[name] = setting.read()
    for name, setting in framework_settings():
        found[name] = setting.read()
    return found


def write(name: str, value: Any) -> None:
    """Restore a setting.

    :raises Exception: if it cannot be restored, for example because a folder was removed.
    """
    if name.startswith(ENVIRON):
        variable = name.removeprefix(ENVIRON)
        if value is MISSING:
            os.environ.pop(variable, None)
        else:
            os.environ[variable] = value
    elif name in _SETTINGS:
        _SETTINGS[name].write(value)
    elif value is not MISSING:
        dict(framework_settings())[name].write(value)


def _directory() -> str | None:
    with contextlib.suppress(OSError):
        return os.getcwd()
    return None


def _umask() -> int:
    # The mask cannot be read without setting it.
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def _handlers() -> dict[int, Any]:
    return {number: signal.getsignal(number) for number in signal.valid_signals()}


def _set_handlers(handlers: Mapping[int, Any]) -> None:
    for number, handler in handlers.items():
        if signal.getsignal(number) != handler:
            # A handler that was not set from Python is None here and cannot be set again.
            signal.signal(number, handler)


def _loggers() -> dict[str, Any]:
    names = ("", "tensorflow", "absl", "keras")
    found = {}
    for name in names:
        logger = logging.getLogger(name)
        found[name] = logger.level, logger.disabled, logger.propagate, tuple(logger.handlers), tuple(logger.filters)
    return {**found, "disable": logging.root.manager.disable}


def _set_loggers(state: Mapping[str, Any]) -> None:
    logging.disable(state["disable"])
    for name, values in state.items():
        if name != "disable":
            logger = logging.getLogger(name)
            logger.disabled, logger.propagate = values[1], values[2]
            logger.handlers[:], logger.filters[:] = values[3], values[4]
            logger.setLevel(values[0])


def _set_warnings(filters: Any) -> None:
    # Leaving the context clears the decisions that Python has cached for the old filters.
    with warnings.catch_warnings():
        pass
    warnings.filters[:] = filters  # type: ignore[index]
    with warnings.catch_warnings():
        pass


_SETTINGS: dict[str, Setting] = {
    DIRECTORY: Setting(_directory, os.chdir),
    PATH: Setting(lambda: list(sys.path), lambda value: sys.path.__setitem__(slice(None), value)),
    "sys.argv": Setting(lambda: list(sys.argv), lambda value: sys.argv.__setitem__(slice(None), value)),
    "the file mode mask": Setting(_umask, os.umask),
    "the signal handlers": Setting(_handlers, _set_handlers),
    "the alarm timer": Setting(
        lambda: signal.getitimer(signal.ITIMER_REAL)[0] > 0, lambda _value: signal.setitimer(signal.ITIMER_REAL, 0)
    ),
    "the filters of warnings": Setting(lambda: list(warnings.filters), _set_warnings),
    "logging": Setting(_loggers, _set_loggers),
    "sys.stdout": Setting(lambda: sys.stdout, lambda value: setattr(sys, "stdout", value)),
    "sys.stderr": Setting(lambda: sys.stderr, lambda value: setattr(sys, "stderr", value)),
    "sys.excepthook": Setting(lambda: sys.excepthook, lambda value: setattr(sys, "excepthook", value)),
    "threading.excepthook": Setting(
        lambda: threading.excepthook, lambda value: setattr(threading, "excepthook", value)
    ),
    "the recursion limit": Setting(sys.getrecursionlimit, sys.setrecursionlimit),
    "the locale": Setting(
        lambda: locale.setlocale(locale.LC_ALL), lambda value: locale.setlocale(locale.LC_ALL, value)
    ),
    "the garbage collector": Setting(gc.isenabled, lambda value: gc.enable() if value else gc.disable()),
    "the default timeout of sockets": Setting(socket.getdefaulttimeout, socket.setdefaulttimeout),
    "tempfile.tempdir": Setting(lambda: tempfile.tempdir, lambda value: setattr(tempfile, "tempdir", value)),
    "the state of random": Setting(random.getstate, random.setstate),
}
