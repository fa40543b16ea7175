"""Functions that the programs of ``exception_programs`` call, in a module of their own."""

from __future__ import annotations


class PrivateError(Exception):
    """An exception of the program, which cannot be unpickled: its arguments are not those of ``__init__``."""

    def __init__(self, first, second):
        super().__init__(f"{first} and {second}")


def scale(factor):
    return 1.0 / factor  # the line that raises


def refuse(value):
    if value is not None:
        raise ValueError("the value is refused\nbecause of its shape")
    return value
