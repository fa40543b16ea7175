"""Give tests the signals of a terminal, and forget the modules that they import from temporary folders."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator

import pytest

DEFAULTS = {
    signal.SIGINT: signal.default_int_handler,
    signal.SIGTERM: signal.SIG_DFL,
    signal.SIGHUP: signal.SIG_DFL,
}


@pytest.fixture(autouse=True)
def signals_as_in_a_terminal() -> Iterator[None]:
    """Commands leave a signal ignored if it is so, so a test that sends one must not begin in this way."""
    ignored = [number for number in DEFAULTS if signal.getsignal(number) is signal.SIG_IGN]
    for number in ignored:
        signal.signal(number, DEFAULTS[number])
    yield
    for number in ignored:
        signal.signal(number, signal.SIG_IGN)


@pytest.fixture(autouse=True)
def modules_of_this_test() -> Iterator[None]:
    """Forget what a test imports from its temporary folder: the gate and launchers over hosts look at every module."""
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        if "pytest-of-" in str(getattr(sys.modules[name], "__file__", None)):
            del sys.modules[name]
