"""Set the process-wide state of the frameworks for a run (seeds, precision), and restore it afterwards.

Workers are reused, and each run must start as if it were the first in its process.
"""

from __future__ import annotations

import platform
import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from pytest_ddl.training import adapter
from pytest_ddl.training.late_import import on_import
from pytest_ddl.training.policies import WidePolicies
from pytest_ddl.training.settings import RunSettings

_APART = 1_000_003


def keras_modules() -> list[Any]:
    """Return the flavors of Keras that the program may use: Keras 3, and tf_keras after its import."""
    import keras

    return [keras, *([sys.modules["tf_keras"]] if "tf_keras" in sys.modules else [])]


@contextmanager
def prepared(settings: RunSettings, rank: int = 0) -> Iterator[WidePolicies]:
    """Set seeds, precision and a clean Keras state for one run, and restore everything afterwards.

    Yield the dtype policies that were replaced.

    All ranks get the same seeds, except ``tf.data``. On a real cluster nobody seeds TensorFlow for the program, so
    an unseeded ``shuffle()`` has a different order on every worker.
    """
    import tensorflow as tf

    python_state, numpy_state, tf_seed = random.getstate(), np.random.get_state(), adapter.tf_seed()
    eager = tf.config.functions_run_eagerly()
    floats = [_FloatState(module) for module in keras_modules()]
    for module in keras_modules():
        _clear(module)
    policies = WidePolicies(settings.precision)
    try:
        for state in floats:
            if settings.precision == "float64":
                state.set("float64", "float64")
            if settings.precision != "native":
                policies.widen(state.module)
        for module in keras_modules():
            module.utils.set_random_seed(settings.seed)
        # A seed that no program would choose, so that a program that seeds TensorFlow itself can be recognized.
        tf.random.set_seed(settings.seed + _APART)
        with (
            policies,
            adapter.unseeded_data_apart(rank, settings.seed + _APART),
            on_import("tf_keras", lambda module: _prepare_late(module, settings, floats, policies)),
        ):
            yield policies
    finally:
        for module in keras_modules():
            _clear(module)
        for state in floats:
            state.restore()
        tf.config.run_functions_eagerly(eager)
        tf.random.set_seed(tf_seed)
        random.setstate(python_state)
        np.random.set_state(numpy_state)


def _prepare_late(module: Any, settings: RunSettings, floats: list[_FloatState], policies: WidePolicies) -> None:
    """Set precision and seed of a flavor of Keras that the program just imported; other generators keep their state."""
    import tensorflow as tf

    floats.append(_FloatState(module))
    if settings.precision == "float64":
        floats[-1].set("float64", "float64")
    if settings.precision != "native":
        policies.widen(module)
    python_state, numpy_state, tf_seed = random.getstate(), np.random.get_state(), adapter.tf_seed()
    module.utils.set_random_seed(settings.seed)
    tf.random.set_seed(tf_seed)
    random.setstate(python_state)
    np.random.set_state(numpy_state)


def _clear(module: Any) -> None:
    clear = getattr(module.utils, "clear_session", None) or module.backend.clear_session
    clear()


class _FloatState:
    """The floatx, epsilon and dtype policy of one Keras flavor."""

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

    def set(self, floatx: str, policy: str) -> None:
        self.module.backend.set_floatx(floatx)
        if hasattr(self.module, "config"):
            self.module.config.set_dtype_policy(policy)
        else:
            self.module.mixed_precision.set_global_policy(policy)

    def restore(self) -> None:
        self.set(self._floatx, self._policy)
        self.module.backend.set_epsilon(self._epsilon)


def versions() -> dict[str, str]:
    """Return the versions of Python and of the frameworks that the run used."""
    found = {"python": platform.python_version(), "numpy": np.__version__}
    for name in ("tensorflow", "keras", "tf_keras"):
        module = sys.modules.get(name)
        if module is not None:
            found[name] = str(getattr(module, "__version__", "unknown"))
    return found
