"""Remember the content of a Python value, to find out later whether code has changed it in place."""

from __future__ import annotations

import functools
import itertools
import os
import random
import sys
import sysconfig
import types
import zlib
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

_ATOMS = frozenset({type(None), bool, int, float, complex, str, bytes, type(...), type(NotImplemented), range, slice})
_FLAT_SIZE = 256
"""Maximum number of plain values in a container that is described item by item. A larger one is compared with a copy,
which the interpreter does in C."""
_DEEPEST = 100
"""Maximum number of objects on a path. Objects that are deeper, as in a long linked list, are compared by identity."""
_SAMPLED_BYTES = 1 << 24
"""Maximum bytes of an array that is compared completely. If an array is larger, only equally spaced rows of about this
total size are compared."""


@dataclass(frozen=True)
class Remembered:
    """Remembered value: the object and a description of its content that can be compared."""

    value: Any = field(compare=False, repr=False)
    """The object itself. It is kept so that no other object can get its identity."""
    content: Any

    @classmethod
    def of(cls, value: Any) -> Remembered:
        return cls(value, _content(value))

    def holds(self, value: Any) -> bool:
        """Return whether ``value`` has the remembered content. For most objects, the content includes the identity."""
        if value is self.value and type(value) in _ATOMS:
            return True
        if isinstance(self.content, _Copy):
            return type(value) is type(self.content.value) and bool(value == self.content.value)
        try:
            return bool(self.content == _content(value))
        except Exception:
            return value is self.value


@dataclass(frozen=True)
class _Copy:
    """Shallow copy of a large container that holds only plain values."""

    value: Any


def generator_state(value: Any) -> tuple[Any, Callable[[], None]] | None:
    """Return the state of a random generator and a function that restores it, or ``None`` for other values."""
    if isinstance(value, random.Random):
        state = value.getstate()
        return state, lambda: value.setstate(state)
    numpy = sys.modules.get("numpy")
    if numpy is None:
        return None
    if isinstance(value, numpy.random.RandomState):
        legacy = value.get_state(legacy=True)
        return _content(legacy), lambda: value.set_state(legacy)
    if isinstance(value, numpy.random.Generator):
        bits = value.bit_generator
        current = bits.state
        return _content(current), lambda: setattr(bits, "state", current)
    return None


def _content(value: Any) -> Any:
    return _Walk().content(value)


class _Walk:
    """Walk through an object and all that it refers to. It visits each object once, however many paths lead there."""

    def __init__(self) -> None:
        self._seen: dict[int, tuple[int, Any]] = {}
        """Identity -> number in the order of visits, and the object, kept so that no other one gets its identity."""

    def content(self, value: Any, depth: int = 0) -> Any:
        kind = type(value)
        if kind in _ATOMS:
            return kind, repr(value) if kind is float else value
        if isinstance(value, (types.ModuleType, type, Enum)):
            return "same", id(value)
        if kind in (list, tuple) and _is_flat(value):
            return _Copy(kind(value)) if len(value) > _FLAT_SIZE else (kind, [self.content(item) for item in value])
        if id(value) in self._seen:
            return "seen", self._seen[id(value)][0]
        if depth > _DEEPEST:
            return "same", id(value)
        self._seen[id(value)] = len(self._seen), value
        return self._first(value, depth + 1)

    def _first(self, value: Any, depth: int) -> Any:
        """Describe an object that was not visited before, or one that the walk made, whose identity means nothing."""
        kind = type(value)
        if isinstance(value, (set, frozenset)):
            if kind in (set, frozenset) and len(value) > _FLAT_SIZE and _is_flat(value):
                return _Copy(kind(value))
            # The order of a set depends on its past, and would give other numbers to what is visited.
            return kind, sorted((self.content(item, depth) for item in sorted(value, key=_place)), key=repr)
        if isinstance(value, (list, tuple, deque)):
            return kind, [self.content(item, depth) for item in value]
        if isinstance(value, dict):
            if kind is dict and len(value) > _FLAT_SIZE and _is_flat(value.values()):
                return _Copy(dict(value))
            return kind, [(self.content(key, depth), self.content(item, depth)) for key, item in list(value.items())]
        if isinstance(value, functools.partial):
            return id(value), self.content(value.args, depth), self.content(value.keywords, depth)
        if isinstance(value, types.FunctionType):
            return self._of_function(value, depth)
        return self._of_instance(value, depth)

    def _of_function(self, value: types.FunctionType, depth: int) -> Any:
        public = {name: item for name, item in vars(value).items() if not name.startswith("_")}
        # A list as a default value keeps the items that a call appends to it.
        defaults = (value.__defaults__, value.__kwdefaults__)
        return id(value), id(value.__code__), self._first(defaults, depth), self._first(public, depth)

    def _of_instance(self, value: Any, depth: int) -> Any:
        generator = generator_state(value)
        if generator is not None:
            return id(value), generator[0]
        if isinstance(value, (itertools.count, itertools.cycle, bytearray)):
            return id(value), repr(value) if not isinstance(value, itertools.cycle) else None
        numpy = sys.modules.get("numpy")
        if numpy is not None and isinstance(value, numpy.ndarray):
            content = self._first(value.ravel().tolist(), depth) if value.dtype.hasobject else _digest(value)
            return id(value), str(value.dtype), value.shape, content
        variables = _variables(value)
        if variables is not None:
            return id(value), variables
        module = sys.modules.get(type(value).__module__)
        is_user = module is not None and is_user_file(getattr(module, "__file__", None))
        if type(value) is types.SimpleNamespace or is_user:
            return id(value), self._first(_attributes(value), depth)
        return "same", id(value)


def _place(item: Any) -> str:
    return f"{type(item).__name__} {item!r}" if type(item) in _ATOMS else f"~{id(item)}"


def _attributes(value: Any) -> dict[str, Any]:
    found = dict(getattr(value, "__dict__", {}))
    for kind in type(value).__mro__:
        slots = kind.__dict__.get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if hasattr(value, name):
                found[name] = getattr(value, name)
    return found


def _variables(value: Any) -> Any:
    """Return checksums of a TensorFlow variable, or of all variables of a Keras object or ``tf.Module``.

    Return ``None`` for other objects, and if the values of the variables cannot be read.
    """
    tensorflow = sys.modules.get("tensorflow")
    if tensorflow is None or type(value).__module__ == "builtins":
        return None
    try:
        if isinstance(value, tensorflow.Variable):
            return _digest(value.numpy())
        keras = sys.modules.get("keras")
        kinds = (tensorflow.Module, *((keras.Layer, keras.Optimizer, keras.Metric) if keras is not None else ()))
        if isinstance(value, kinds):
            return [_digest(variable.numpy()) for variable in value.variables]
    except Exception:
        # Variables in a replica context, or not built yet, have no value that can be read here.
        return None
    return None


def _digest(array: Any) -> int:
    numpy = sys.modules["numpy"]
    array = numpy.asarray(array)
    if array.nbytes > _SAMPLED_BYTES and array.ndim:
        array = array[:: array.nbytes // _SAMPLED_BYTES + 1]
    return zlib.crc32(numpy.ascontiguousarray(array).view(numpy.uint8).data if array.size else b"")


def _is_flat(values: Any) -> bool:
    return all(type(item) in _ATOMS for item in values)


@functools.cache
def is_user_file(file: str | None) -> bool:
    """Return whether a file belongs neither to Python nor to an installed package, including this one."""
    if not file or str(file).startswith(_installed()) or any(folder in str(file) for folder in _PACKAGES):
        return False
    return not any(_has_packages(folder) for folder in sys.path if folder and str(file).startswith(folder + os.sep))


_PACKAGES = ("/site-packages/", "/dist-packages/")


@functools.cache
def _has_packages(folder: str) -> bool:
    """Return whether packages were installed into a folder of the search path, for example by ``pip install --target``.

    The folder in which pytest was started, and those above it, hold the user's own files too.
    """
    try:
        here = os.getcwd() + os.sep
        return not here.startswith(folder + os.sep) and any(name.endswith(".dist-info") for name in os.listdir(folder))
    except OSError:
        return False


@functools.cache
def _installed() -> tuple[str, ...]:
    paths = sysconfig.get_paths()
    own = os.path.dirname(os.path.dirname(__file__)) + os.sep
    return (*{paths[key] for key in ("stdlib", "platstdlib", "purelib", "platlib")}, own, "<")
