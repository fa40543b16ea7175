"""Remember the content of a Python value, to find out later whether code has changed it in place."""

from __future__ import annotations

import functools
import hashlib
import itertools
import marshal
import random
import sys
import types
import zlib
from collections import ChainMap, UserDict, UserList, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from operator import is_
from typing import Any

from pytest_ddl.cluster.state.user_files import is_user_file
from pytest_ddl.deferred import imported


class Trace:
    """Visited objects that may change, each with what it referred to.

    Describing the globals of a project anew takes ten times as long as comparing references, and mostly nothing has
    changed. The trace keeps the referred objects, so that no other one gets the identity of one of them.
    """

    def __init__(self) -> None:
        self._references: list[tuple[Callable[[Any], tuple[Any, ...]], Any, tuple[Any, ...]]] = []
        self._contents: list[tuple[Callable[[Any], Any], Any, Any]] = []

    def refers(self, read: Callable[[Any], tuple[Any, ...]], value: Any) -> None:
        """Note an object that is unchanged if ``read`` returns the same objects again."""
        self._references.append((read, value, read(value)))

    def contains(self, read: Callable[[Any], Any], value: Any) -> None:
        """Note an object that is unchanged if ``read`` returns something equal again."""
        self._contents.append((read, value, read(value)))

    def is_unchanged(self) -> bool:
        """Return True if no visited object has changed. False means that the values have to be compared."""
        for read, value, items in self._references:
            present = read(value)
            if len(present) != len(items) or not all(map(is_, present, items)):
                return False
        return all(read(value) == content for read, value, content in self._contents)


_ATOMS = frozenset({type(None), bool, int, float, complex, str, bytes, type(...), type(NotImplemented), range, slice})
_VALUE_MODULES = frozenset({"datetime", "decimal", "fractions", "pathlib", "uuid", "zoneinfo"})
"""Modules of immutable values, which are compared by their text. An equal one may replace another one."""
_FLAT_SIZE = 256
"""Maximum number of plain values in a container that is described item by item. A larger one is written as bytes, which
the interpreter does in C."""
_DEEPEST = 50
"""Maximum number of containers in each other. A deeper one is described apart and compared by identity too, so that no
recursion is too deep."""
_TRACED_ITEMS = 1 << 16
"""Maximum number of items of a container whose items are kept and compared by their identity."""
_SAMPLED_BYTES = 1 << 24
"""Maximum bytes of an array that is compared completely. If an array is larger, only equally spaced rows of about this
total size are compared."""


@dataclass(frozen=True)
class Remembered:
    """Remembered value: the object and a description of its content that can be compared."""

    value: Any = field(compare=False, repr=False)
    """The object itself. It is kept so that no other object can get its identity."""
    content: Any
    _trace: Trace | None = field(default=None, compare=False, repr=False)

    @classmethod
    def of(cls, value: Any) -> Remembered:
        trace = Trace()
        return cls(value, _Walk(trace).whole(value), trace)

    def holds(self, value: Any) -> bool:
        """Return whether ``value`` has the remembered content. For most objects, the content includes the identity."""
        try:
            if value is self.value and self._trace is not None and self._trace.is_unchanged():
                return True
            return bool(self.content == _described(value))
        except Exception:
            return value is self.value


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
        return _plain(legacy), lambda: value.set_state(legacy)
    if isinstance(value, numpy.random.Generator):
        bits = value.bit_generator
        current = bits.state
        return _plain(current), lambda: setattr(bits, "state", current)
    return None


def _plain(state: Any) -> Any:
    """Return a state of NumPy with bytes in place of arrays, which cannot be compared with ``==``."""
    if isinstance(state, dict):
        return {key: _plain(item) for key, item in state.items()}
    if isinstance(state, tuple):
        return tuple(map(_plain, state))
    return state.tobytes() if hasattr(state, "tobytes") else state


class _Walk:
    """Walk through an object and all that it refers to. It visits each object once, however many paths lead there.

    A container (a list, a set, a dict ...) is described by a digest of its items, so an equal copy has the same digest.
    Another object is described by its identity, and its attributes are described apart.
    """

    def __init__(self, trace: Trace | None = None) -> None:
        self._trace = trace
        self._digests: dict[int, Any] = {}
        """Identity of a container -> its description."""
        self._apart: dict[int, Any] = {}
        """Identity of another object -> description of its attributes."""
        self._waiting: deque[Any] = deque()
        self._kept: list[Any] = []
        """All visited objects. They are kept during the walk, so that no other one gets the identity of one of them."""

    def whole(self, value: Any) -> Any:
        root = self._content(value, 0)
        while self._waiting:
            one = self._waiting.popleft()
            self._apart[id(one)] = self._of_own_container(one, 0) if _is_container(one) else self._of_object(one)
        return (root, self._apart) if self._apart else root

    def _content(self, value: Any, depth: int) -> Any:
        kind = type(value)
        if kind in _ATOMS:
            return kind, repr(value) if kind is float else value
        if isinstance(value, (types.ModuleType, type, Enum)):
            return "same", id(value)
        if kind.__module__ in _VALUE_MODULES or _is_numpy_scalar(value):
            return kind, repr(value)
        if not _is_container(value) or depth > _DEEPEST:
            if id(value) not in self._apart:
                self._apart[id(value)] = None
                self._kept.append(value)
                self._waiting.append(value)
            return "apart", id(value)
        if id(value) not in self._digests:
            self._kept.append(value)
            self._digests[id(value)] = "above", id(value)
            self._digests[id(value)] = self._of_own_container(value, depth)
        return self._digests[id(value)]

    def _of_own_container(self, value: Any, depth: int) -> Any:
        """Describe a container that is not made here, and trace it."""
        if self._trace is not None and len(value) > _TRACED_ITEMS:
            self._contains(_described, value)
        elif isinstance(value, (dict, types.MappingProxyType)):
            self._refers(_entries, value)
        elif type(value) not in (tuple, frozenset):
            self._refers(tuple, value)
        return self._of_container(value, depth)

    def _refers(self, read: Callable[[Any], tuple[Any, ...]], value: Any) -> None:
        if self._trace is not None:
            self._trace.refers(read, value)

    def _contains(self, read: Callable[[Any], Any], value: Any) -> None:
        if self._trace is not None:
            self._trace.contains(read, value)

    def _of_container(self, value: Any, depth: int) -> Any:
        kind = type(value)
        if isinstance(value, (set, frozenset)):
            items = sorted((self._content(item, depth + 1) for item in value), key=repr)
        elif isinstance(value, (dict, types.MappingProxyType)):
            keys = self._items(list(value.keys()), depth)
            items = [keys, self._items(list(value.values()), depth)]
        else:
            items = self._items(value, depth)
        return kind, hashlib.blake2b(repr(items).encode(), digest_size=16).digest()

    def _items(self, values: Any, depth: int) -> Any:
        if len(values) > _FLAT_SIZE and all(type(item) in _ATOMS for item in values):
            try:
                return marshal.dumps(list(values), 2)  # later versions depend on who else refers to an item
            except ValueError:
                return repr(values)
        return [self._content(item, depth + 1) for item in values]

    def _of_object(self, value: Any) -> Any:
        # Containers that are made here have no lasting identity.
        if isinstance(value, functools.partial):
            self._refers(_of_partial, value)
            return self._of_container(_of_partial(value), 0)
        if isinstance(value, types.FunctionType):
            self._refers(_of_function, value)
            public = {name: item for name, item in vars(value).items() if not name.startswith("_")}
            # A list as a default value keeps the items that a call appends to it.
            return id(value.__code__), self._of_container([value.__defaults__, value.__kwdefaults__, public], 0)
        numpy = sys.modules.get("numpy")
        if numpy is not None and isinstance(value, numpy.ndarray) and value.dtype.hasobject:
            self._contains(_described, value)
            return str(value.dtype), value.shape, self._of_container(value.ravel().tolist(), 0)
        content = _content_of_object(value)
        if content is not None:
            self._contains(_content_of_object, value)
            return content
        if not _is_open(value):
            return None
        self._refers(_entries_of_attributes, value)
        return self._of_container(_attributes(value), 0)


def _described(value: Any) -> Any:
    return _Walk().whole(value)


def _entries(value: Any) -> tuple[Any, ...]:
    return (*value.keys(), *value.values())


def _of_partial(value: Any) -> tuple[Any, ...]:
    return value.func, value.args, value.keywords


def _of_function(value: Any) -> tuple[Any, ...]:
    own = vars(value)
    return (value.__code__, value.__defaults__, value.__kwdefaults__, *own, *own.values())


def _entries_of_attributes(value: Any) -> tuple[Any, ...]:
    return _entries(_attributes(value))


def _content_of_object(value: Any) -> Any:
    """Return the content of an object that is compared as a whole; ``None`` for all other objects."""
    generator = generator_state(value)
    if generator is not None:
        return generator[0]
    if isinstance(value, (itertools.count, bytearray)):
        return repr(value)
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(value, numpy.ndarray):
        return str(value.dtype), value.shape, _digest(value)
    return _variables(value)


def _is_container(value: Any) -> bool:
    return isinstance(value, (list, tuple, deque, set, frozenset, dict, types.MappingProxyType))


def _is_numpy_scalar(value: Any) -> bool:
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(value, numpy.generic) and not isinstance(value, numpy.void)


def _is_open(value: Any) -> bool:
    """Return whether the attributes of an object are its content. Those of libraries change by themselves."""
    kinds = (types.SimpleNamespace, UserDict, UserList, ChainMap)
    argparse = sys.modules.get("argparse")
    if isinstance(value, kinds) or (argparse is not None and isinstance(value, argparse.Namespace)):
        return True
    module = sys.modules.get(type(value).__module__)
    return module is not None and is_user_file(getattr(module, "__file__", None))


def _attributes(value: Any) -> dict[str, Any]:
    attributes = dict(getattr(value, "__dict__", {}))
    for kind in type(value).__mro__:
        slots = kind.__dict__.get("__slots__", ())
        for slot in (slots,) if isinstance(slots, str) else slots:
            is_private = slot.startswith("__") and not slot.endswith("__")
            name = f"_{kind.__name__.lstrip('_')}{slot}" if is_private else slot
            if hasattr(value, name):
                attributes[name] = getattr(value, name)
    return attributes


def _variables(value: Any) -> Any:
    """Return checksums of a TensorFlow variable, or of all variables of a Keras object or ``tf.Module``.

    Return ``None`` for other objects, and if the values of the variables cannot be read.
    """
    tensorflow = imported("tensorflow")
    if tensorflow is None or type(value).__module__ == "builtins":
        return None
    try:
        if isinstance(value, tensorflow.Variable):
            return _digest(value.numpy())
        keras = imported("keras")
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
