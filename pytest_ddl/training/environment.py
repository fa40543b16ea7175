"""Set the process-wide state of the frameworks for a run (seeds, precision), and restore it afterwards.

Workers are reused, and each run must start as if it were the first in its process.
"""

from __future__ import annotations

import importlib.util
import inspect
import platform
import random
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

import numpy as np

from pytest_ddl.training import adapter
from pytest_ddl.training.host_generators import HostGenerators, seed_by_rank
from pytest_ddl.training.replacing import Replacements
from pytest_ddl.training.settings import RunSettings

_APART = 1_000_003


def keras_modules() -> list[Any]:
    """Return the flavors of Keras that the program may use: Keras 3, and tf_keras after its import."""
    import keras

    return [keras, *([sys.modules["tf_keras"]] if "tf_keras" in sys.modules else [])]


@contextmanager
def prepared(settings: RunSettings, rank: int = 0, generators: HostGenerators | None = None) -> Iterator[WidePolicies]:
    """Set seeds, precision and a clean Keras state for one run, and restore everything afterwards.

    Yield the dtype policies that were replaced.

    All ranks get the same seeds, except ``tf.data``. On a real cluster nobody seeds TensorFlow for the program, so
    an unseeded ``shuffle()`` has a different order on every worker.

    :param generators: notices what the program draws from the generators of Python and NumPy.
    """
    import tensorflow as tf

    eager = tf.config.functions_run_eagerly()
    policies = WidePolicies(settings.precision)
    generators = generators or HostGenerators()
    tf_seed = settings.seed + _APART

    def prepare_late(module: Any) -> None:
        with generators.paused():
            _prepare_late(module, settings, floats, policies)

    with _generators_kept():
        floats = [_FloatState(module) for module in keras_modules()]
        # The previous run has collected its own garbage.
        for module in keras_modules():
            _clear(module, collect=False)
        try:
            policies.widen_casts()
            for state in floats:
                state.widen(settings.precision, policies)
            for module in keras_modules():
                _seed(module, settings, policies)
            # No program would choose this seed, so a program that seeds TensorFlow itself can be recognized.
            tf.random.set_seed(tf_seed)
            if settings.seeds_by_rank:
                seed_by_rank(settings.seed, rank)
            with (
                policies,
                generators.watched(tf_seed),
                adapter.unseeded_data_apart(rank, tf_seed),
                on_import("tf_keras", prepare_late),
            ):
                yield policies
        finally:
            for module in keras_modules():
                _clear(module)
            for state in floats:
                state.restore()
            tf.config.run_functions_eagerly(eager)


def told_replicas(strategy: Any, number: int) -> Replacements:
    """Let one device read another number of replicas than its own, as a replica reads it; 0 changes nothing."""
    put = Replacements()
    return put.put(type(strategy), "num_replicas_in_sync", property(lambda _strategy: number)) if number else put


@contextmanager
def whole_products() -> Iterator[None]:
    """Keep TensorFloat-32 off, also if the program switches it on.

    A GPU would round the factors of float32 products to 10 bits, or not, depending on the size of the batch. So
    replicas would round differently from one device. Measurements leave the setting to the program.
    """
    switch = adapter.tensor_float_32()
    if switch is None:
        yield
        return
    before = switch.is_enabled()
    switch.enable(False)
    try:
        with Replacements().put(switch, "enable", lambda enabled: None):
            yield
    finally:
        switch.enable(before)


def _prepare_late(module: Any, settings: RunSettings, floats: list[_FloatState], policies: WidePolicies) -> None:
    """Set precision and seed of a flavor of Keras that the program just imported; other generators keep their state."""
    floats.append(_FloatState(module))
    floats[-1].widen(settings.precision, policies)
    with _generators_kept():
        _seed(module, settings, policies)


def _seed(module: Any, settings: RunSettings, put: Replacements) -> None:
    adapter.seed_all_threads(put, module)
    module.utils.set_random_seed(settings.seed)


@contextmanager
def _generators_kept() -> Iterator[None]:
    """Restore the generators of Python and NumPy, and TensorFlow's seed, when the context ends."""
    import tensorflow as tf

    python_state, numpy_state, tf_seed = random.getstate(), np.random.get_state(), adapter.tf_seed()
    try:
        yield
    finally:
        tf.random.set_seed(tf_seed)
        random.setstate(python_state)
        np.random.set_state(numpy_state)


def _clear(module: Any, collect: bool = True) -> None:
    """Reset the global state of a flavor of Keras, for example the counters of its names.

    :param collect: also collect garbage. This visits all that TensorFlow keeps of earlier runs in this process.
    """
    clear = getattr(module.utils, "clear_session", None) or module.backend.clear_session
    if "free_memory" in inspect.signature(clear).parameters:  # not in tf_keras and the first releases of Keras 3
        clear(free_memory=collect)
    else:
        clear()


class _FloatState:
    """Floatx, epsilon and dtype policy of one flavor of Keras, as they were when this object was made."""

    def __init__(self, module: Any) -> None:
        self.module = module
        backend = module.backend
        self._floatx = backend.floatx()
        self._epsilon = backend.epsilon()
        self._policy = self._policy_name()

    def _policy_name(self) -> str:
        if hasattr(self.module, "config"):
            return str(self.module.config.dtype_policy().name)
        return str(self.module.mixed_precision.global_policy().name)

    def widen(self, precision: str, policies: WidePolicies) -> None:
        """Set the precision of a run: ``native`` changes nothing, and ``float32`` only policies in half precision."""
        if precision == "float64":
            self._set("float64", "float64")
        if precision != "native":
            policies.widen(self.module)

    def _set(self, floatx: str, policy: str) -> None:
        self.module.backend.set_floatx(floatx)
        if hasattr(self.module, "config"):
            self.module.config.set_dtype_policy(policy)
        else:
            self.module.mixed_precision.set_global_policy(policy)

    def restore(self) -> None:
        self._set(self._floatx, self._policy)
        self.module.backend.set_epsilon(self._epsilon)


def versions() -> dict[str, str]:
    """Return the versions of Python and of the frameworks that the run used."""
    installed = {"python": platform.python_version(), "numpy": np.__version__}
    for name in ("tensorflow", "keras", "tf_keras"):
        module = sys.modules.get(name)
        if module is not None:
            installed[name] = str(getattr(module, "__version__", "unknown"))
    return installed


_HALF = ("float16", "bfloat16")
_WIDENED = (*_HALF, "float32")
_PROPERTIES = ("compute_dtype", "variable_dtype")


class WidePolicies(Replacements):
    """Replacement of dtype policies and of casts to half precision by a wider type while the context is open.

    A program that chooses ``mixed_float16`` overrides the ``floatx`` of the run, so the policies must be replaced too.
    Its own casts would keep half precision, and the rounding of a few operations would hide mistakes in all others. The
    names of policies stay, because ``compile`` decides by the name whether to scale the loss. So the program keeps its
    optimizer and its variables.
    """

    def __init__(self, dtype: str) -> None:
        """Prepare the replacement.

        :param dtype: ``float64``, ``float32``, or ``native``, which replaces nothing.
        """
        super().__init__()
        self._dtype = dtype
        self.names: set[str] = set()
        """Half precision policies that the program used, and the types of its casts as ``casts to float16``."""

    def widen(self, module: Any) -> None:
        """Widen the policies of one flavor of Keras."""
        owner = getattr(module, "DTypePolicy", None) or module.mixed_precision.Policy
        for name in _PROPERTIES:
            self.put(owner, name, property(self._widened(getattr(owner, name).fget)))

    def widen_casts(self) -> None:
        """Make casts to half precision give the wider type."""
        if self._dtype != "native":
            for module, name in adapter.cast_functions():
                self.put(module, name, self._widening(getattr(module, name)))

    def _widening(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def cast(x: Any, DstT: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N803 (the name in TensorFlow)
            name = getattr(DstT, "name", DstT)
            if name in _HALF:
                self.names.add(f"casts to {name}")
                DstT = self._dtype  # noqa: N806
            return original(x, DstT, *args, **kwargs)

        return cast

    def _widened(self, original: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def dtype(policy: Any) -> Any:
            found = original(policy)
            if found not in _WIDENED:
                return found
            if any(half in str(policy.name) for half in _HALF):
                self.names.add(str(policy.name))
            return self._dtype

        return dtype


class _PatchingFinder(MetaPathFinder):
    """Finder for one module, which calls ``imported`` after the module has been executed.

    A reused worker may have imported ``tf_keras`` for an earlier program, but a fresh worker has not. If ``tf_keras``
    were not prepared at its import, the same program would train in float64 on the first and in float32 on the second.
    """

    def __init__(self, name: str, imported: Callable[[ModuleType], None]) -> None:
        self._name = name
        self._imported = imported

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name != self._name or self not in sys.meta_path:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            execute, imported = spec.loader.exec_module, self._imported

            def executed(module: ModuleType) -> None:
                execute(module)
                imported(module)

            spec.loader.exec_module = executed  # type: ignore[method-assign]
        return spec


@contextmanager
def on_import(name: str, imported: Callable[[Any], None]) -> Iterator[None]:
    """Call ``imported`` with the module ``name`` if it is imported for the first time while the context is open."""
    finder = _PatchingFinder(name, imported)
    if name not in sys.modules:
        sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        if finder in sys.meta_path:
            sys.meta_path.remove(finder)
