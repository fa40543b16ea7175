"""Find globals that a test has changed in the pytest process, and set them in the ranks.

A function is sent by its name, and a rank imports its module again. A value that ``monkeypatch.setattr(module, name,
value)`` has set in the pytest process must therefore be set in the rank as well.
"""

from __future__ import annotations

import functools
import pickle
import sys
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

from pytest_ddl import deferred
from pytest_ddl.cluster import pickling
from pytest_ddl.cluster.state.installed import InstalledModules
from pytest_ddl.cluster.state.libraries import FRAMEWORKS, Libraries
from pytest_ddl.cluster.state.reach import Reach
from pytest_ddl.cluster.state.remembered import Remembered
from pytest_ddl.cluster.state.user_modules import MISSING, UserModules, resolve

MAX_UNUSED_BYTES = 1 << 20
"""Maximum size in bytes of a value that is sent although the function's code does not contain its name."""
_REMOVED = b""
_modules: UserModules | None = None
_libraries: Libraries | None = None
_installed: InstalledModules | None = None


class ShippingError(TypeError):
    """A function, argument, result or changed global cannot be sent. The message names it and the fix."""


def remember() -> None:
    """Record the present globals and frameworks as unchanged. Only the first call has an effect."""
    global _installed, _libraries, _modules
    if _modules is None:
        _libraries, _installed = Libraries(), InstalledModules()
        _modules = UserModules(_installed.imported)
        deferred.call_after_import(_installed.imported)


def forget() -> None:
    """Drop everything that :func:`remember` has recorded."""
    global _installed, _libraries, _modules
    if _modules is not None:
        _modules.close()
        deferred.call_after_import(None)
    _modules = _libraries = _installed = None


def collect(call: Any) -> dict[str, dict[str, bytes]]:
    """Return the pickled values of globals that have changed since they were remembered, by module and name.

    :param call: the function and its arguments.
    :raises ShippingError: if the function refers to a changed global that cannot be pickled, or if a function of a
        framework was replaced in this process.
    """
    reach = Reach(call)
    _refuse_patches(reach)
    overrides: dict[str, dict[str, bytes]] = {}
    changes = {} if _modules is None else _modules.changes()
    for key, memo in changes.items():
        module, _, name = key.partition(":")
        data = _pickled(memo, name.rpartition(".")[2] in reach.names, key.replace(":", "."))
        if data is not None:
            overrides.setdefault(module, {})[name] = data
    installed = {} if _installed is None else _installed.traveling(reach)
    for (module, name), (memo, needed) in installed.items():
        data = _pickled(memo, needed, f"{module}.{name}")
        if data is not None:
            overrides.setdefault(module, {})[name] = data
    return overrides


def _refuse_patches(reach: Reach) -> None:
    """Raise an error if a library was patched in this process, because the ranks would silently run the original."""
    patched = [] if _libraries is None else [key for key in _libraries.changes() if key.split(".")[0] in FRAMEWORKS]
    name = patched[0] if patched else None if _installed is None else _installed.refused(reach)
    if name is not None:
        raise ShippingError(
            f"{name} was replaced in the pytest process, but the ranks have their own {name.split('.')[0]}, which is "
            "unchanged. Replace it inside the function that the ranks run, or pass the value as an argument"
        )


def put(module: ModuleType, values: Mapping[str, bytes]) -> list[Callable[[], None]]:
    """Set changed globals in a module of this process. Return functions that restore them."""
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
        return pickling.dumps(memo.value)
    except Exception as error:
        if not used:
            return None
        raise ShippingError(
            f"{name} was changed after its module was imported, the function refers to it, and its value "
            f"cannot be sent to the ranks: {type(error).__name__}: {error}. Make the value inside the "
            "function, or set it to plain values"
        ) from error
