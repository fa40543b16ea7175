"""Import the modules that every worker needs, and explain why one cannot be imported.

It must be possible to import this module with only the standard library.
"""

from __future__ import annotations

import importlib.util
import os
import sys
import sysconfig
from collections.abc import Sequence

PRELOAD = (
    "tensorflow",
    "keras",
    "pytest",
    "cloudpickle",
    "?hypothesis",
    "pytest_ddl.cluster.worker",
    "pytest_ddl.cluster.rank_session",
    "pytest_ddl.training.execute",
    "pytest_ddl.training.observers.registry",
    "pytest_ddl.cluster.state.process_state",
)
"""Modules that a worker imports before it serves requests. ``process_state`` remembers those before it."""


def import_all(names: Sequence[str]) -> str:
    """Import the modules to preload. Return why one cannot be imported, or an empty string.

    A module whose name has a leading ``?`` may be missing.
    """
    for name in names:
        try:
            importlib.import_module(name.lstrip("?"))
        except ImportError as error:
            if not name.startswith("?"):
                return f"cannot import {name}: {error}{_shadowing(names)}"
        except Exception as error:
            return f"importing {name} failed: {type(error).__name__}: {error}{_shadowing(names)}"
    return ""


def wants_tf_keras() -> bool:
    """Return whether the environment makes ``tf.keras`` the package tf_keras. TensorFlow reads these three values."""
    return os.environ.get("TF_USE_LEGACY_KERAS") in ("1", "true", "True")


def choose_keras() -> None:
    """Let ``from tensorflow.keras import ...`` import the package that the environment of a forked worker names.

    TensorFlow has chosen it for the environment of the zygote, when the zygote imported TensorFlow. ``tf.keras`` itself
    is chosen at its first use.
    """
    tensorflow, spec = sys.modules.get("tensorflow"), importlib.util.find_spec("tf_keras")
    if tensorflow is None or spec is None or spec.origin is None:
        return
    folder = os.path.join(os.path.dirname(spec.origin), "api", "_v2")
    path, wanted = tensorflow.__path__, wants_tf_keras()
    if (folder in path) == wanted:
        return
    tensorflow.__path__ = [folder, *path] if wanted else [entry for entry in path if entry != folder]
    for name in [name for name in sys.modules if f"{name}.".startswith("tensorflow.keras.")]:
        del sys.modules[name]


def _shadowing(names: Sequence[str]) -> str:
    """Name files of the user that were imported instead of a standard or required module, as part of a message."""
    paths = sysconfig.get_paths()
    installed = tuple({paths[key] for key in ("stdlib", "platstdlib", "purelib", "platlib")})
    # Only a file with the module's name counts. A package that is installed elsewhere has a folder with its name.
    taken = {*sys.stdlib_module_names, *(name.lstrip("?").partition(".")[0] for name in names)} - {"pytest_ddl"}
    files = {name: str(getattr(sys.modules.get(name), "__file__", None) or "") for name in sorted(taken)}
    shadowing = [
        f"{file} has the name of the module {name} and was imported instead of it: rename the file"
        for name, file in files.items()
        if os.path.basename(file) == f"{name}.py" and not file.startswith(installed)
    ]
    return "".join(f". {text}" for text in shadowing)
