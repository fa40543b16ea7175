"""Read and restore the settings of this process that a test can change: those of Python and of the frameworks.

Each setting has one entry.
"""

from __future__ import annotations

import contextlib
import gc
import locale
import logging
import os
import random
import signal
import socket
import sys
import tempfile
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pytest_ddl.cluster.state import adapter
from pytest_ddl.strategies.adapter import is_deterministic, set_deterministic
from pytest_ddl.training.adapter import tf_seed

NOT_SHARED = frozenset({"PYTEST_CURRENT_TEST", "PYTEST_VERSION"})
"""Environment variables that pytest sets in every process separately."""
ENVIRON = "os.environ "
DIRECTORY = "the working directory"
PATH = "sys.path"
_SEED = "random seed"
TENSORFLOW_SEED = f"tensorflow: {_SEED}"
MISSING: Any = type("Missing", (), {"__repr__": lambda _self: "missing"})()


@dataclass(frozen=True)
class ProcessSetting:
    """Pair of functions that read and restore a setting."""

    read: Callable[[], Any]
    write: Callable[[Any], Any]


def read_all() -> dict[str, Any]:
    """Return the values of all settings by name. The values can be compared with ``==``."""
    settings: dict[str, Any] = {ENVIRON + name: value for name, value in os.environ.items() if name not in NOT_SHARED}
    for name, setting in _SETTINGS.items():
        settings[name] = setting.read()
    for name, setting in _framework_settings():
        settings[name] = setting.read()
    return settings


def write(name: str, value: Any) -> None:
    """Restore a setting.

    :raises Exception: if it cannot be restored, for example because a folder was removed.
    """
    if name.startswith(ENVIRON):
        variable = name.removeprefix(ENVIRON)
        if value is MISSING:
            os.environ.pop(variable, None)
        else:
            os.environ[variable] = value
    elif name in _SETTINGS:
        _SETTINGS[name].write(value)
    elif value is not MISSING:
        dict(_framework_settings())[name].write(value)


def _directory() -> str | None:
    with contextlib.suppress(OSError):
        return os.getcwd()
    return None


def _umask() -> int:
    # The mask cannot be read without setting it.
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


# Python makes an enumeration member of each number anew, which takes longer than the handlers.
_SIGNALS = tuple(map(int, signal.valid_signals()))


def _handlers() -> dict[int, Any]:
    return {number: signal.getsignal(number) for number in _SIGNALS}


def _set_handlers(handlers: Mapping[int, Any]) -> None:
    for number, handler in handlers.items():
        if signal.getsignal(number) != handler:
            # A handler that was not set from Python is None here and cannot be set again.
            signal.signal(number, handler)


def _loggers() -> dict[str, Any]:
    names = ("", "tensorflow", "absl", "keras")
    levels = {}
    for name in names:
        logger = logging.getLogger(name)
        levels[name] = logger.level, logger.disabled, logger.propagate, tuple(logger.handlers), tuple(logger.filters)
    return {**levels, "disable": logging.root.manager.disable}


def _set_loggers(state: Mapping[str, Any]) -> None:
    logging.disable(state["disable"])
    for name, values in state.items():
        if name != "disable":
            logger = logging.getLogger(name)
            logger.disabled, logger.propagate = values[1], values[2]
            logger.handlers[:], logger.filters[:] = values[3], values[4]
            logger.setLevel(values[0])


def _set_warnings(filters: Any) -> None:
    # Leaving the context clears the decisions that Python has cached for the old filters.
    with warnings.catch_warnings():
        pass
    warnings.filters[:] = filters  # type: ignore[index]
    with warnings.catch_warnings():
        pass


_SETTINGS: dict[str, ProcessSetting] = {
    DIRECTORY: ProcessSetting(_directory, os.chdir),
    PATH: ProcessSetting(lambda: list(sys.path), lambda value: sys.path.__setitem__(slice(None), value)),
    "sys.argv": ProcessSetting(lambda: list(sys.argv), lambda value: sys.argv.__setitem__(slice(None), value)),
    "the file mode mask": ProcessSetting(_umask, os.umask),
    "the signal handlers": ProcessSetting(_handlers, _set_handlers),
    "the alarm timer": ProcessSetting(
        lambda: signal.getitimer(signal.ITIMER_REAL)[0] > 0, lambda _value: signal.setitimer(signal.ITIMER_REAL, 0)
    ),
    "the filters of warnings": ProcessSetting(lambda: list(warnings.filters), _set_warnings),
    "logging": ProcessSetting(_loggers, _set_loggers),
    "sys.stdout": ProcessSetting(lambda: sys.stdout, lambda value: setattr(sys, "stdout", value)),
    "sys.stderr": ProcessSetting(lambda: sys.stderr, lambda value: setattr(sys, "stderr", value)),
    "sys.excepthook": ProcessSetting(lambda: sys.excepthook, lambda value: setattr(sys, "excepthook", value)),
    "threading.excepthook": ProcessSetting(
        lambda: threading.excepthook, lambda value: setattr(threading, "excepthook", value)
    ),
    "the recursion limit": ProcessSetting(sys.getrecursionlimit, sys.setrecursionlimit),
    "the locale": ProcessSetting(
        lambda: locale.setlocale(locale.LC_ALL), lambda value: locale.setlocale(locale.LC_ALL, value)
    ),
    "the garbage collector": ProcessSetting(gc.isenabled, lambda value: gc.enable() if value else gc.disable()),
    "the default timeout of sockets": ProcessSetting(socket.getdefaulttimeout, socket.setdefaulttimeout),
    "tempfile.tempdir": ProcessSetting(lambda: tempfile.tempdir, lambda value: setattr(tempfile, "tempdir", value)),
    "the state of random": ProcessSetting(random.getstate, random.setstate),
}


def _framework_settings() -> Iterator[tuple[str, ProcessSetting]]:
    """Yield the name and the functions of each setting of the frameworks that this process has imported."""
    for module, settings in (
        ("numpy", _numpy),
        ("tensorflow", _tensorflow),
        ("keras", _keras),
        ("tf_keras", _legacy_keras),
    ):
        if module in sys.modules:
            for name, setting in settings(sys.modules[module]).items():
                yield f"{module}: {name}", setting


def _numpy(np: Any) -> dict[str, ProcessSetting]:
    return {
        "floating point errors": ProcessSetting(np.geterr, lambda value: np.seterr(**value)),
        "print options": ProcessSetting(np.get_printoptions, lambda value: np.set_printoptions(**value)),
        "random state": ProcessSetting(
            lambda: _plain(np.random.get_state()),
            lambda state: np.random.set_state((state[0], np.frombuffer(state[1], np.uint32), *state[2:])),
        ),
    }


def _plain(state: Any) -> Any:
    """Make a state of NumPy's generator that can be compared with ``==``."""
    return (state[0], state[1].tobytes(), *state[2:])


def _tensorflow(tf: Any) -> dict[str, ProcessSetting]:
    config, experimental = tf.config, tf.config.experimental
    return {
        "functions run eagerly": ProcessSetting(config.functions_run_eagerly, config.run_functions_eagerly),
        "soft device placement": ProcessSetting(config.get_soft_device_placement, config.set_soft_device_placement),
        "optimizer options": ProcessSetting(
            config.optimizer.get_experimental_options, config.optimizer.set_experimental_options
        ),
        "just-in-time compilation": ProcessSetting(config.optimizer.get_jit, config.optimizer.set_jit),
        "TensorFloat-32": ProcessSetting(
            experimental.tensor_float_32_execution_enabled, experimental.enable_tensor_float_32_execution
        ),
        "determinism of operations": ProcessSetting(is_deterministic, set_deterministic),
        "numeric checks": ProcessSetting(
            adapter.checks_numerics,
            lambda value: tf.debugging.enable_check_numerics() if value else tf.debugging.disable_check_numerics(),
        ),
        "debug mode of tf.data": ProcessSetting(adapter.debugs_data, adapter.set_debugs_data),
        # Setting the seed to its present value restarts its sequence, as in a fresh process.
        _SEED: ProcessSetting(tf_seed, tf.random.set_seed),
        "random generator": ProcessSetting(adapter.global_generator, tf.random.set_global_generator),
        "strategy scope": ProcessSetting(
            tf.distribute.has_strategy, _cannot("a strategy's scope was entered and never left")
        ),
        "eager execution": ProcessSetting(tf.executing_eagerly, _cannot("eager execution was switched off")),
    }


def _keras(keras: Any) -> dict[str, ProcessSetting]:
    config = keras.config
    return {
        "global state": ProcessSetting(adapter.keras_state, adapter.set_keras_state),
        "floatx": ProcessSetting(config.floatx, config.set_floatx),
        "epsilon": ProcessSetting(config.epsilon, config.set_epsilon),
        "image data format": ProcessSetting(config.image_data_format, config.set_image_data_format),
        "dtype policy": ProcessSetting(lambda: config.dtype_policy().name, config.set_dtype_policy),
        "traceback filtering": ProcessSetting(
            config.is_traceback_filtering_enabled,
            lambda value: config.enable_traceback_filtering() if value else config.disable_traceback_filtering(),
        ),
        "interactive logging": ProcessSetting(
            config.is_interactive_logging_enabled,
            lambda value: config.enable_interactive_logging() if value else config.disable_interactive_logging(),
        ),
        "custom objects": _custom_objects(keras),
    }


def _legacy_keras(keras: Any) -> dict[str, ProcessSetting]:
    backend, mixed = keras.backend, keras.mixed_precision
    return {
        "floatx": ProcessSetting(backend.floatx, backend.set_floatx),
        "epsilon": ProcessSetting(backend.epsilon, backend.set_epsilon),
        "image data format": ProcessSetting(backend.image_data_format, backend.set_image_data_format),
        "dtype policy": ProcessSetting(lambda: mixed.global_policy().name, mixed.set_global_policy),
        "custom objects": _custom_objects(keras),
    }


def _custom_objects(keras: Any) -> ProcessSetting:
    def refill(value: dict[str, Any]) -> None:
        keras.saving.get_custom_objects().clear()
        keras.saving.get_custom_objects().update(value)

    return ProcessSetting(lambda: dict(keras.saving.get_custom_objects()), refill)


def _cannot(what: str) -> Callable[[Any], None]:
    def refuse(_value: Any) -> None:
        raise RuntimeError(what)

    return refuse
