"""Globals that a test has changed in the controlling process: found there, put in place in the ranks.

A function travels by its name, and a rank imports its module anew. What ``monkeypatch.setattr(module, name,
value)`` put into the module must be there too: a test that sets it means the run that it starts.
"""

from __future__ import annotations

import pickle
import sys
import types
from collections.abc import Iterator, Mapping
from types import ModuleType
from typing import Any

import cloudpickle

from pytest_ddl.cluster.libraries import FRAMEWORKS, Libraries
from pytest_ddl.cluster.remembered import Remembered, is_user_file
from pytest_ddl.cluster.user_modules import MISSING, UserModules, resolve

MAX_UNUSED_BYTES = 1 << 20
"""Size above which a value is sent only if the function's code has its name."""
_REMOVED = b""
_modules: UserModules | None = None
_libraries: Libraries | None = None


class ShippingError(TypeError):
    """A function, argument or result cannot be pickled; the message says which and what to do."""


def remember() -> None:
    """Take globals and frameworks for what their imports have left; the first call counts."""
    global _libraries, _modules
    if _modules is None:
        _modules, _libraries = UserModules(), Libraries()


def forget() -> None:
    """Remember nothing any more."""
    global _libraries, _modules
    if _modules is not None:
        _modules.close()
    _modules = _libraries = None


def collect(call: Any) -> dict[str, dict[str, bytes]]:
    """Return the globals that were changed since they were remembered, pickled, by module.

    :param call: the function and its arguments.
    :raises ShippingError: for a global that cannot be pickled and that the function refers to, and for a function
        of a framework that was replaced in this process.
    """
    _refuse_patches()
    found: dict[str, dict[str, bytes]] = {}
    changes = {} if _modules is None else _modules.changes()
    used = set(_names(call, set())) if changes else set()
    for key, memo in changes.items():
        module, _, name = key.partition(":")
        data = _pickled(memo, name.rpartition(".")[2] in used, key.replace(":", "."))
        if data is not None:
            found.setdefault(module, {})[name] = data
    return found


def _refuse_patches() -> None:
    """Raise if a framework was patched in this process: the ranks would run the original without a word."""
    patched = [] if _libraries is None else [key for key in _libraries.changes() if key.split(".")[0] in FRAMEWORKS]
    if patched:
        raise ShippingError(
            f"{patched[0]} was replaced in the pytest process; the ranks have their own {patched[0].split('.')[0]}, in "
            "which it is not. Replace it inside the function that the ranks run"
        )


def put(module: ModuleType, values: Mapping[str, bytes]) -> None:
    """Put changed globals into a module of this process."""
    for name, data in values.items():
        owner, attribute = resolve(module, name)
        if data == _REMOVED:
            if hasattr(owner, attribute):
                delattr(owner, attribute)
        else:
            setattr(owner, attribute, pickle.loads(data))


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


def _names(value: Any, seen: set[int]) -> Iterator[str]:
    """Names that the code of functions refers to: in arguments, closures and globals of the user's modules too."""
    if id(value) in seen:
        return
    seen.add(id(value))
    if isinstance(value, (tuple, list)):
        for item in value:
            yield from _names(item, seen)
    elif isinstance(value, dict):
        yield from _names(list(value.values()), seen)
    elif isinstance(value, types.CodeType):
        yield from value.co_names
        yield from _names(value.co_consts, seen)
    elif isinstance(value, types.FunctionType):
        names = set(_names(value.__code__, seen))
        yield from names
        inside = [cell.cell_contents for cell in value.__closure__ or () if _is_filled(cell)]
        inside += [value.__globals__[name] for name in names if name in value.__globals__]
        inside.append(getattr(value, "__wrapped__", None))
        yield from _names(inside, seen)
    elif isinstance(value, types.MethodType):
        yield from _names([value.__func__, value.__self__], seen)
    elif isinstance(value, type):
        module = sys.modules.get(value.__module__)
        if is_user_file(getattr(module, "__file__", None)):
            for kind in value.__mro__[:-1]:
                yield from _names(list(vars(kind).values()), seen)
    elif isinstance(value, ModuleType):
        if is_user_file(getattr(value, "__file__", None)):
            yield from _names(list(vars(value).values()), seen)
    elif is_user_file(getattr(sys.modules.get(type(value).__module__), "__file__", None)):
        yield from _names([type(value), getattr(value, "__dict__", {})], seen)


def _is_filled(cell: Any) -> bool:
    try:
        return cell.cell_contents is not None
    except ValueError:
        return False
