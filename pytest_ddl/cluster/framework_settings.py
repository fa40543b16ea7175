"""Read and restore process-wide settings of NumPy, TensorFlow and Keras that a test can change."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from pytest_ddl.cluster import adapter

_SEED = "random seed"
TENSORFLOW_SEED = f"tensorflow: {_SEED}"


@dataclass(frozen=True)
class Setting:
    """Pair of functions that read and restore a setting."""

    read: Callable[[], Any]
    write: Callable[[Any], Any]


def framework_settings() -> Iterator[tuple[str, Setting]]:
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


def _numpy(np: Any) -> dict[str, Setting]:
    return {
        "floating point errors": Setting(np.geterr, lambda value: np.seterr(**value)),
        "print options": Setting(np.get_printoptions, lambda value: np.set_printoptions(**value)),
        "random state": Setting(lambda: _plain(np.random.get_state()), np.random.set_state),
    }


def _plain(state: Any) -> Any:
    """Make a state of NumPy's generator that can be compared with ``==`` and that NumPy accepts."""
    return (state[0], state[1].tolist(), *state[2:])


def _tensorflow(tf: Any) -> dict[str, Setting]:
    config, experimental = tf.config, tf.config.experimental
    return {
        "functions run eagerly": Setting(config.functions_run_eagerly, config.run_functions_eagerly),
        "soft device placement": Setting(config.get_soft_device_placement, config.set_soft_device_placement),
        "optimizer options": Setting(
            config.optimizer.get_experimental_options, config.optimizer.set_experimental_options
        ),
        "just-in-time compilation": Setting(config.optimizer.get_jit, config.optimizer.set_jit),
        "TensorFloat-32": Setting(
            experimental.tensor_float_32_execution_enabled, experimental.enable_tensor_float_32_execution
        ),
        "determinism of operations": Setting(adapter.is_deterministic, adapter.set_deterministic),
        "numeric checks": Setting(
            adapter.checks_numerics,
            lambda value: tf.debugging.enable_check_numerics() if value else tf.debugging.disable_check_numerics(),
        ),
        "debug mode of tf.data": Setting(adapter.debugs_data, adapter.set_debugs_data),
        # Setting the seed to its present value restarts its sequence, as in a fresh process.
        _SEED: Setting(adapter.seed, tf.random.set_seed),
        "random generator": Setting(adapter.global_generator, tf.random.set_global_generator),
        "strategy scope": Setting(tf.distribute.has_strategy, _cannot("a strategy's scope was entered and never left")),
        "eager execution": Setting(tf.executing_eagerly, _cannot("eager execution was switched off")),
    }


def _keras(keras: Any) -> dict[str, Setting]:
    config = keras.config
    return {
        "global state": Setting(adapter.keras_state, adapter.set_keras_state),
        "floatx": Setting(config.floatx, config.set_floatx),
        "epsilon": Setting(config.epsilon, config.set_epsilon),
        "image data format": Setting(config.image_data_format, config.set_image_data_format),
        "dtype policy": Setting(lambda: config.dtype_policy().name, config.set_dtype_policy),
        "traceback filtering": Setting(
            config.is_traceback_filtering_enabled,
            lambda value: config.enable_traceback_filtering() if value else config.disable_traceback_filtering(),
        ),
        "interactive logging": Setting(
            config.is_interactive_logging_enabled,
            lambda value: config.enable_interactive_logging() if value else config.disable_interactive_logging(),
        ),
        "custom objects": _custom_objects(keras),
    }


def _legacy_keras(keras: Any) -> dict[str, Setting]:
    backend, mixed = keras.backend, keras.mixed_precision
    return {
        "floatx": Setting(backend.floatx, backend.set_floatx),
        "epsilon": Setting(backend.epsilon, backend.set_epsilon),
        "image data format": Setting(backend.image_data_format, backend.set_image_data_format),
        "dtype policy": Setting(lambda: mixed.global_policy().name, mixed.set_global_policy),
        "custom objects": _custom_objects(keras),
    }


def _custom_objects(keras: Any) -> Setting:
    def refill(value: dict[str, Any]) -> None:
        keras.saving.get_custom_objects().clear()
        keras.saving.get_custom_objects().update(value)

    return Setting(lambda: dict(keras.saving.get_custom_objects()), refill)


def _cannot(what: str) -> Callable[[Any], None]:
    def refuse(_value: Any) -> None:
        raise RuntimeError(what)

    return refuse
