"""Give the program in this process a notice that its machine will be taken away."""

from __future__ import annotations

import threading


class Notice:
    """Notice of preemption. A program asks for it, often in a thread that looks at it again and again."""

    def __init__(self) -> None:
        self._given = False
        self._watcher: int | None = None
        self._seen = threading.Event()

    def asked(self) -> bool:
        """Return whether the notice was given."""
        self._watcher = threading.get_ident()
        if self._given:
            self._seen.set()
        return self._given

    def give(self, patience: float) -> None:
        """Give the notice, and wait until a thread that watches for it has seen it, so that a fault can be repeated.

        :param patience: maximum seconds to wait.
        """
        self._given = True
        if self._watcher not in (None, threading.get_ident()):
            self._seen.wait(patience)


_current = Notice()


def renew() -> None:
    """Begin a run, which has no notice yet."""
    global _current
    _current = Notice()


def current() -> Notice:
    """Return the notice of the run in this process."""
    return _current
