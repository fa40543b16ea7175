"""Describe generated models and optimizers, which a rank builds with Keras.

Only ``build()`` imports TensorFlow. ``repr`` gives an expression to paste into a test, and ``program()`` gives
Keras code that is equivalent to ``build()``.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

from pytest_ddl.generators.arguments import at_least

if TYPE_CHECKING:
    import numpy as np

    Arrays = tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]


def import_of_keras() -> str:
    """Return the line that imports the Keras of ``tf.keras`` by its own name."""
    return "import tf_keras as keras" if os.environ.get("TF_USE_LEGACY_KERAS") == "1" else "import keras"


class Pasteable:
    """Dataclass base whose ``repr`` is a constructor call with the fields that differ from their defaults."""

    def __repr__(self) -> str:
        settings = [
            f"{item.name}={getattr(self, item.name)!r}"
            for item in fields(self)  # type: ignore[arg-type]
            if getattr(self, item.name) != (item.default_factory() if callable(item.default_factory) else item.default)
        ]
        return f"{type(self).__name__}({', '.join(settings)})"


@dataclass(frozen=True, repr=False)
class ModelSpec(Pasteable):
    """A small Keras model: hidden ``Dense`` layers over features, or over an embedding of ids, and one output layer.

    ``ModelSpec()`` is linear regression.
    """

    inputs: int = 4
    """Number of features of an example, or of its ids if there is a ``vocabulary``."""
    vocabulary: int | None = None
    """Number of different ids; ``None`` for a model of dense features. Embeddings have sparse gradients."""
    embedding_width: int = 2
    widths: tuple[int, ...] = ()
    """Number of units in each hidden layer."""
    activations: tuple[str, ...] = ()
    """Activation of each hidden layer."""
    frozen: tuple[int, ...] = ()
    """Positions of hidden layers that are not trained."""
    tied: bool = False
    """True if the last hidden layer is applied twice, so that its weights have two uses."""
    outputs: int = 1

    def __post_init__(self) -> None:
        for name in ("inputs", "embedding_width", "outputs"):
            at_least(name, getattr(self, name), 1)
        if self.vocabulary is not None:
            at_least("vocabulary", self.vocabulary, 1)
        for width in self.widths:
            at_least("widths", width, 1)
        if len(self.widths) != len(self.activations):
            raise ValueError(
                f"widths={self.widths} and activations={self.activations} must be equally long: one per hidden layer"
            )
        for position in self.frozen:
            if position not in range(len(self.widths)):
                raise ValueError(f"frozen={self.frozen}: there is no hidden layer {position} of {len(self.widths)}")
        if self.tied and (not self.widths or self._width_before_last() != self.widths[-1]):
            raise ValueError(
                f"tied=True needs a last hidden layer that is as wide as its input: widths={self.widths} "
                f"over {self._features()} features"
            )

    def _features(self) -> int:
        return self.inputs if self.vocabulary is None else self.inputs * self.embedding_width

    def _width_before_last(self) -> int:
        return self.widths[-2] if len(self.widths) > 1 else self._features()

    def build(self) -> Any:
        """Create the model with the Keras of ``tf.keras``; call this in ``strategy.scope()``, after seeding."""
        from tensorflow import keras

        values = inputs = keras.Input((self.inputs,), dtype=None if self.vocabulary is None else "int64")
        if self.vocabulary is not None:
            values = keras.layers.Embedding(self.vocabulary, self.embedding_width)(values)
            values = keras.layers.Flatten()(values)
        for position, (width, activation) in enumerate(zip(self.widths, self.activations, strict=True)):
            layer = keras.layers.Dense(width, activation=activation, trainable=position not in self.frozen)
            values = layer(values)
            if self.tied and position == len(self.widths) - 1:
                values = layer(values)
        return keras.Model(inputs, keras.layers.Dense(self.outputs)(values))

    def program(self) -> str:
        """Return the Keras code of :meth:`build`, to paste into a bug report."""
        dtype = "" if self.vocabulary is None else ", dtype='int64'"
        lines = [import_of_keras(), "", f"values = inputs = keras.Input(({self.inputs},){dtype})"]
        if self.vocabulary is not None:
            lines.append(f"values = keras.layers.Embedding({self.vocabulary}, {self.embedding_width})(values)")
            lines.append("values = keras.layers.Flatten()(values)")
        for position, (width, activation) in enumerate(zip(self.widths, self.activations, strict=True)):
            frozen = ", trainable=False" if position in self.frozen else ""
            lines.append(f"layer = keras.layers.Dense({width}, activation={activation!r}{frozen})")
            tied = self.tied and position == len(self.widths) - 1
            lines.append("values = layer(layer(values))" if tied else "values = layer(values)")
        lines.append(f"model = keras.Model(inputs, keras.layers.Dense({self.outputs})(values))")
        return "\n".join(lines) + "\n"

    def examples(self, number: int, seed: int = 0) -> Arrays:
        """Return inputs and targets that fit the model: different for every example, equal on every rank."""
        import numpy as np

        at_least("number", number, 0)
        generator = np.random.default_rng(seed)
        targets = generator.normal(size=(number, self.outputs)).astype("float32")
        if self.vocabulary is None:
            return generator.normal(size=(number, self.inputs)).astype("float32"), targets
        return generator.integers(self.vocabulary, size=(number, self.inputs)), targets

    def examples_program(self, number: int) -> str:
        """Return the NumPy code of :meth:`examples`, for the body of a function that has a ``generator``."""
        size = f"size=({number}, {self.inputs})"
        drawn = (
            f'normal({size}).astype("float32")' if self.vocabulary is None else f"integers({self.vocabulary}, {size})"
        )
        targets = f'targets = generator.normal(size=({number}, {self.outputs})).astype("float32")'
        return f"{targets}\nreturn generator.{drawn}, targets\n"


@dataclass(frozen=True, repr=False)
class OptimizerSpec(Pasteable):
    """A Keras optimizer, described by its class name and the settings that are not its defaults."""

    name: str = "SGD"
    learning_rate: float = 0.1
    settings: Mapping[str, float | bool] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not isinstance(self.learning_rate, (int, float)) or not 0 < self.learning_rate < float("inf"):
            raise ValueError(f"learning_rate={self.learning_rate!r} must be a positive number")

    def __hash__(self) -> int:
        return hash((self.name, self.learning_rate, tuple(sorted(self.settings.items()))))

    def build(self) -> Any:
        """Create the optimizer with the Keras of ``tf.keras``; call this in ``strategy.scope()``."""
        from tensorflow import keras

        if not hasattr(keras.optimizers, self.name):
            raise ValueError(f"name={self.name!r} is not a class of keras.optimizers")
        return getattr(keras.optimizers, self.name)(learning_rate=self.learning_rate, **self.settings)

    def program(self) -> str:
        """Return the Keras code of :meth:`build`, to paste into a bug report."""
        settings = "".join(f", {name}={value!r}" for name, value in self.settings.items())
        call = f"keras.optimizers.{self.name}(learning_rate={self.learning_rate!r}{settings})"
        return f"{import_of_keras()}\n\noptimizer = {call}\n"
