"""Recognize scripts for Keras 2, and scripts that no strategy of ``tf.distribute`` can run, from their text."""

from __future__ import annotations

import ast
import re

_OLD = {
    ("losses", "Reduction"): "losses.Reduction",
    ("optimizers", "legacy"): "optimizers.legacy",
    ("optimizers", "experimental"): "optimizers.experimental",
}
"""Attributes of modules that Keras 3 does not have, with their names in messages."""
_OLD_METHODS = ("reset_states", "save_spec")
_KERAS_3 = re.compile(r"^\s*(?:import keras\b|from keras\b)", re.MULTILINE)
_ADVICE = "Write its loop as train(run), and use `pytest-ddl check --strategy=model_parallel`"
_JAX = (
    "the script sets a backend of Keras other than TensorFlow. Set it to 'tensorflow', and create the model in the "
    "scope of a strategy of tf.distribute"
)
_DISTRIBUTION = (
    "keras.distribution does not distribute anything with the backend TensorFlow. Create the model in the scope of a "
    "strategy of tf.distribute"
)
_MESH = f"a mesh of DTensor is not a strategy of tf.distribute, so there is no strategy to compare. {_ADVICE}"
_REFUSED = (
    (re.compile(r"\bdtensor\.create_(?:distributed_)?mesh\("), _MESH),
    (re.compile(r"KERAS_BACKEND['\"]\s*[\],]\s*=?\s*['\"](?!tensorflow)\w+"), _JAX),
    (re.compile(r"\bdistribution\.(?:DataParallel|ModelParallel)\("), _DISTRIBUTION),
)
"""Patterns of lines that no strategy can run, and the reasons."""


def imports_keras(code: str) -> bool:
    """Return whether a script imports ``keras`` itself, which is always Keras 3."""
    return _KERAS_3.search(code) is not None


def keras_2_name(code: str) -> tuple[int, str] | None:
    """Return the first line that needs Keras 2, and the name that Keras 3 does not have. ``None`` if there is none.

    A script that imports ``keras`` itself needs Keras 3, because no package for Keras 2 has this name.
    """
    if imports_keras(code):
        return None
    uses = []
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Attribute):
            name = _OLD.get((node.value.attr, node.attr))
            if name is not None:
                uses.append((node.lineno, name))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _OLD_METHODS:
            uses.append((node.lineno, f"{node.func.attr}()"))
    return min(uses, default=None)


def refusal(code: str) -> tuple[int, str] | None:
    """Return the first line that no strategy of ``tf.distribute`` can run, and the reason."""
    for number, line in enumerate(code.splitlines(), start=1):
        for pattern, reason in _REFUSED:
            if pattern.search(line.partition("#")[0]):
                return number, reason
    return None
