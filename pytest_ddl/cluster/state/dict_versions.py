"""Read the number that CPython up to 3.13 gives to a dictionary anew with each change of it.

Python has no function for this number, which PEP 509 describes, so it is read from the memory of the dictionary.
Tried with CPython 3.11. The number is used only if it follows some changes of a dictionary when this module is
imported: CPython 3.14 has none (PEP 699).
"""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Callable, Mapping
from typing import Any

Version = ctypes.c_uint64
"""View of the number of a dictionary: its attribute ``value`` is the present number."""


def version_of(namespace: Mapping[str, Any]) -> Version:
    """Return a view of the number of a dictionary, or of the dictionary behind a mapping proxy.

    Reading it takes a tenth of the time in which the attributes are compared. Without it, each of 50,000 objects would
    be touched after each test.
    """
    body = namespace if isinstance(namespace, dict) else gc.get_referents(namespace)[0]
    return ctypes.c_uint64.from_address(id(body) + _OFFSET)


_OFFSET = 3 * ctypes.sizeof(ctypes.c_void_p)
"""Bytes before the version: the number of references, the type, and the number of items."""


def _exist() -> bool:
    """Return whether this interpreter has such numbers."""
    one: dict[str, object] = {"name": None}
    version = version_of(one)
    seen = [version.value]
    changes: tuple[Callable[[], object], ...] = (
        lambda: one.update(name=1),
        lambda: one.__setitem__("name", 2),
        lambda: one.__setitem__("other", 3),
        lambda: one.__delitem__("name"),
        one.clear,
    )
    for change in changes:
        change()
        seen.append(version.value)
    return len(set(seen)) == len(seen) and version.value == seen[-1]


EXIST = _exist()
"""False if no number can be read: whoever asks for one compares the values themselves."""
