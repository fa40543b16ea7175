"""Start the process with the NumPy backend, ask it, and end it."""

from __future__ import annotations

import os
import pickle
import select
import subprocess
import sys
from collections.abc import Callable
from typing import Any

from suites.backends.answers import Answer

DEADLINE = 60.0
"""Longest time in seconds for one answer."""
IMPORT_DEADLINE = 300.0
"""Longest time in seconds for the first answer, which follows the import of Keras. It takes 40 s on a busy machine."""


class NumpyBackend:
    """A process that imports the same Keras as this one, with its NumPy backend."""

    def __init__(self) -> None:
        own = {name: value for name, value in os.environ.items() if name != "DDL_SUITE_DEFECT"}
        own |= {"KERAS_BACKEND": "numpy", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        command = [sys.executable, "-c", "from suites.backends.child import serve; serve()"]
        self._process = subprocess.Popen(command, env=own, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.ready = self._answer(IMPORT_DEADLINE)
        """The name of the backend, or why it cannot be imported."""

    def ask(self, function: Callable[..., Any], *given: Any) -> Answer:
        """Call a function of a module in the process.

        :raises RuntimeError: if it does not answer in time, or has ended.
        """
        assert self._process.stdin is not None
        self._process.stdin.write(pickle.dumps((function, given)))
        self._process.stdin.flush()
        return self._answer(DEADLINE)

    def _answer(self, deadline: float) -> Answer:
        source = self._process.stdout
        assert source is not None
        if not select.select([source], [], [], deadline)[0]:
            self.close()
            raise RuntimeError(f"the NumPy backend gave no answer in {deadline:.0f} s")
        try:
            found: Answer = pickle.load(source)
        except EOFError:
            self.close()
            raise RuntimeError("the process of the NumPy backend ended without an answer") from None
        return found

    def ended(self) -> bool:
        """Return whether the process has ended."""
        return self._process.poll() is not None

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.communicate()
