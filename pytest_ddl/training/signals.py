"""The signals that leave a training function without being an error of the program."""

from __future__ import annotations


class RestartRequested(BaseException):
    """Raised by ``run.restart()``; a BaseException so that no ``except Exception`` swallows it."""
