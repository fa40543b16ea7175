"""Define the exception that ends a training function without an error of the program."""

from __future__ import annotations


class RestartRequested(BaseException):
    """Exception that ``run.restart()`` raises; a BaseException, so that no ``except Exception`` catches it."""
