"""Pickle any Python value, functions included, so that a function still says which file it comes from."""

from __future__ import annotations

import io
from collections import ChainMap
from collections.abc import Callable
from types import CodeType
from typing import Any, ClassVar

import cloudpickle

from pytest_ddl.cluster.relocating import WHOLE_PATHS

PROTOCOL = 5


def dumps(value: Any) -> bytes:
    """Pickle a value. Functions that cannot be imported elsewhere are pickled by value; ``pickle.loads`` reads all.

    :raises Exception: whatever an object of the value raises while it is pickled.
    """
    file = io.BytesIO()
    _Pickler(file, protocol=PROTOCOL).dump(value)
    return file.getvalue()


def _reduce_code(code: CodeType) -> tuple[Any, ...]:
    """Reduce code to what makes it again, and the name of its file.

    cloudpickle 3.1.3 replaces the name by ``<dynamic-code>``. AutoGraph then finds no source, so that a condition on a
    tensor fails in a rank, and no message can name a line of the program.
    """
    make, arguments = cloudpickle.CloudPickler.dispatch_table[CodeType](code)
    return _make_code, (make, arguments, code.co_filename)


def _make_code(make: Callable[..., CodeType], arguments: tuple[Any, ...], file: str) -> CodeType:
    return make(*arguments).replace(co_filename=file)


class _Pickler(cloudpickle.CloudPickler):  # type: ignore[misc]  # cloudpickle has no types
    dispatch_table: ClassVar[Any] = ChainMap(
        {CodeType: _reduce_code, **WHOLE_PATHS}, cloudpickle.CloudPickler.dispatch_table
    )
