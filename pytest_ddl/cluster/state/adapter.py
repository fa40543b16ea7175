"""Read and restore settings of TensorFlow and Keras through their private parts, for the state of a worker.

Each of these settings has a public setter, but no public way to read or to undo it. No other module of the state uses
private parts. Tested with TensorFlow 2.21 and Keras 3.15; the names are the same in TensorFlow 2.16 and Keras 3.3.
"""

from __future__ import annotations

import copy
import importlib
import sys
from typing import Any


def checks_numerics() -> bool:
    """Return whether ``tf.debugging.enable_check_numerics`` is on. It has no public getter."""
    state = getattr(sys.modules.get("tensorflow.python.debug.lib.check_numerics_callback"), "_state", None)
    return hasattr(state, "check_numerics_callback")


def debugs_data() -> bool:
    """Return whether ``tf.data.experimental.enable_debug_mode`` is on. It has no public getter."""
    return bool(getattr(sys.modules.get("tensorflow.python.data.ops.debug_mode"), "DEBUG_MODE", False))


def set_debugs_data(value: bool) -> None:
    """Switch the debug mode of ``tf.data`` on or off. The public API can only switch it on."""
    _module("data.ops.debug_mode").DEBUG_MODE = value


def global_generator() -> Any:
    """Return the global random generator, or ``None`` if there is none.

    The public ``tf.random.get_global_generator`` would make one.
    """
    return getattr(sys.modules.get("tensorflow.python.ops.stateful_random_ops"), "global_generator", None)


def keras_state() -> dict[str, Any]:
    """Return the global state of Keras: policy, seed, scopes and the number of uses of each name."""
    return {name: copy.copy(value) for name, value in _keras_tracker().items()}


def set_keras_state(state: dict[str, Any]) -> None:
    """Restore a state that :func:`keras_state` returned. The public ``clear_session`` would empty the state."""
    tracker = _keras_tracker()
    tracker.clear()
    tracker.update((name, copy.copy(value)) for name, value in state.items())


def _keras_tracker() -> dict[str, Any]:
    state = sys.modules.get("keras.src.backend.common.global_state")
    return vars(state.GLOBAL_STATE_TRACKER) if state is not None else {}


def _module(name: str) -> Any:
    return importlib.import_module(f"tensorflow.python.{name}")
