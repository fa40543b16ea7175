"""The one place where the state of a worker touches TensorFlow and Keras beyond their public API.

Each of these settings has a public setter, and no public way to read it or to undo it. Tried on
TensorFlow 2.21 and Keras 3.15; the names are the same in TensorFlow 2.16 and Keras 3.3.
"""

from __future__ import annotations

import copy
import importlib
import sys
from typing import Any


def seed() -> int | None:
    """The global seed of TensorFlow; ``tf.random.set_seed`` has no getter."""
    from tensorflow.python.eager import context

    value = context.global_seed()
    return None if value is None else int(value)


def is_deterministic() -> bool:
    """Whether operations are deterministic; ``tf.config.experimental.enable_op_determinism`` has no getter."""
    return bool(_module("framework.config").is_op_determinism_enabled())


def set_deterministic(value: bool) -> None:
    """Switch determinism of operations on or off; publicly it can only be switched on."""
    config = _module("framework.config")
    config.enable_op_determinism() if value else config.disable_op_determinism()


def checks_numerics() -> bool:
    """Whether ``tf.debugging.enable_check_numerics`` is on; it has no getter."""
    state = getattr(sys.modules.get("tensorflow.python.debug.lib.check_numerics_callback"), "_state", None)
    return hasattr(state, "check_numerics_callback")


def debugs_data() -> bool:
    """Whether ``tf.data.experimental.enable_debug_mode`` is on; publicly it can only be switched on."""
    return bool(getattr(sys.modules.get("tensorflow.python.data.ops.debug_mode"), "DEBUG_MODE", False))


def set_debugs_data(value: bool) -> None:
    """Switch the debug mode of ``tf.data`` on or off."""
    _module("data.ops.debug_mode").DEBUG_MODE = value


def global_generator() -> Any:
    """The generator of ``tf.random.get_global_generator``, which would make one; ``None`` if there is none."""
    return getattr(sys.modules.get("tensorflow.python.ops.stateful_random_ops"), "global_generator", None)


def keras_state() -> dict[str, Any]:
    """What Keras keeps for the whole process: policy, seed, scopes and how often it has used a name."""
    return {name: copy.copy(value) for name, value in _keras_tracker().items()}


def set_keras_state(state: dict[str, Any]) -> None:
    """Put back what :func:`keras_state` has returned; ``clear_session`` would empty it."""
    tracker = _keras_tracker()
    tracker.clear()
    tracker.update((name, copy.copy(value)) for name, value in state.items())


def _keras_tracker() -> dict[str, Any]:
    state = sys.modules.get("keras.src.backend.common.global_state")
    return vars(state.GLOBAL_STATE_TRACKER) if state is not None else {}


def _module(name: str) -> Any:
    return importlib.import_module(f"tensorflow.python.{name}")
