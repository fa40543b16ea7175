"""Hear of files that Python is about to open for writing or to rename, from its audit events.

TensorFlow and HDF5 write files without an audit event.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

_WRITING = os.O_WRONLY | os.O_RDWR
_listeners: list[Callable[[str, str], None]] = []
"""Functions that get the path and the call; none while no training function runs."""
_hooked: list[bool] = []


@contextmanager
def heard(listener: Callable[[str, str], None]) -> Iterator[None]:
    """Call a function before each change, with the path and ``open`` or ``os.rename``.

    If it raises an exception, the call of the program raises it.
    """
    if not _hooked:
        sys.addaudithook(_on_event)  # an audit hook cannot be removed, so it stays for the life of the process
        _hooked.append(True)
    _listeners.append(listener)
    try:
        yield
    finally:
        _listeners.remove(listener)


def _on_event(event: str, arguments: tuple[Any, ...]) -> None:
    """Pass on the changes of files. Python calls this hook for all audit events."""
    if not _listeners or event not in ("open", "os.rename"):
        return
    if event == "open":
        path, mode, flags = arguments
        # Without a mode it is os.open, for locks and files that are only touched.
        if not (isinstance(mode, str) and flags & _WRITING and isinstance(path, str | bytes | os.PathLike)):
            return
    else:
        path = arguments[1]
        if not os.path.isfile(arguments[0]):
            return
    for listener in list(_listeners):
        listener(os.fsdecode(path), event)
