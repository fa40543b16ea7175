"""Globals that a test has changed in the controlling process: found there, put in place in the ranks.

A function travels by its name, and a rank imports its module anew. What ``monkeypatch.setattr(module, name,
value)`` put into the module must be there too: a test that sets it means the run that it starts.
"""

from __future__ import annotations

import functools
import pickle
import sys
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

import cloudpickle

from pytest_ddl.cluster.installed import InstalledModules
from pytest_ddl.cluster.libraries import FRAMEWORKS, Libraries
from pytest_ddl.cluster.reach import Reach
from pytest_ddl.cluster.remembered import Remembered
from pytest_ddl.cluster.user_modules import MISSING, UserModules, resolve

MAX_UNUSED_BYTES = 1 << 20
"""Size above which a value is sent only if the function's code has its name."""
_REMOVED = b""
_modules: UserModules | None = None
_libraries: Libraries | None = None
_installed: InstalledModules | None = None


class ShippingError(TypeError):
    """A function, argument or result cannot be pickled; the message says which and what to do."""


def remember() -> None:
    """Take globals and frameworks for what their imports have left; the first call counts."""
    global _installed, _libraries, _modules
    if _modules is None:
        _libraries, _installed = Libraries(), InstalledModules()
        _modules = UserModules(_installed.imported)


def forget() -> None:
    """Remember nothing any more."""
    global _installed, _libraries, _modules
    if _modules is not None:
        _modules.close()
    _modules = _libraries = _installed = None


def collect(call: Any) -> dict[str, dict[str, bytes]]:
    """Return the globals that were changed since they were remembered, pickled, by module.

    :param call: the function and its arguments.
    :raises ShippingError: for a global that cannot be pickled and that the function refers to, and for a function
        of a framework that was replaced in this process.
    """
    reach = Reach(call)
    _refuse_patches(reach)
    found: dict[str, dict[str, bytes]] = {}
    changes = {} if _modules is None else _modules.changes()
    for key, memo in changes.items():
        module, _, name = key.partition(":")
        data = _pickled(memo, name.rpartition(".")[2] in reach.names, key.replace(":", "."))
        if data is not None:
            found.setdefault(module, {})[name] = data
    installed = {} if _installed is None else _installed.travelling(reach)
    for (module, name), (memo, needed) in installed.items():
        data = _pickled(memo, needed, f"{module}.{name}")
        if data is not None:
            found.setdefault(module, {})[name] = data
    return found


def _refuse_patches(reach: Reach) -> None:
    """Raise if a library was patched in this process: the ranks would run the original without a word."""
    patched = [] if _libraries is None else [key for key in _libraries.changes() if key.split(".")[0] in FRAMEWORKS]
    name = patched[0] if patched else None if _installed is None else _installed.refused(reach)
    if name is not None:
        raise ShippingError(
            f"{name} was replaced in the pytest process; the ranks have their own {name.split('.')[0]}, in "
            "which it is not. Replace it inside the function that the ranks run, or pass the value as an argument"
        )


def put(module: ModuleType, values: Mapping[str, bytes]) -> list[Callable[[], None]]:
    """Put changed globals into a module of this process; return what puts each of them back."""
    undo: list[Callable[[], None]] = []
    for name, data in values.items():
        owner, attribute = resolve(module, name)
        present = vars(owner)
        if attribute in present:
            undo.append(functools.partial(setattr, owner, attribute, present[attribute]))
        else:
            undo.append(functools.partial(_delete, owner, attribute))
        if data == _REMOVED:
            _delete(owner, attribute)
        else:
            setattr(owner, attribute, pickle.loads(data))
    return undo


def _delete(owner: Any, attribute: str) -> None:
    if attribute in vars(owner):
        delattr(owner, attribute)


def _pickled(memo: Remembered, used: bool, name: str) -> bytes | None:
    if memo is MISSING:
        return _REMOVED
    size = getattr(memo.value, "nbytes", None) or sys.getsizeof(memo.value, 0)
    if not used and size > MAX_UNUSED_BYTES:
        return None
    try:
        return bytes(cloudpickle.dumps(memo.value, protocol=5))
    except Exception as error:
        if not used:
            return None
        raise ShippingError(
            f"{name} was changed after its module was imported, the function refers to it, and its value "
            f"cannot be sent to the ranks: {type(error).__name__}: {error}. Make the value inside the "
            "function, or set it to plain values"
        ) from error
