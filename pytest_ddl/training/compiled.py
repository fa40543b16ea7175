"""The training function of a project that has a compiled Keras model and its data, and no ``train(run)``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

STEPS_OF_FIT = 8
"""Number of steps to compare if none is given: enough for each part of a step, and few enough to take seconds."""
CALLED = ("callbacks", "validation_data")
"""Arguments of ``fit`` that may be given as a function, because each run needs its own, or because they are large."""


@dataclass(frozen=True)
class CompiledTraining:
    """Training function that builds a model in the scope of the strategy and fits it."""

    build: Callable[[], Any]
    """Function that returns a compiled model, or the model and its data."""
    data: Any
    """``x``, ``(x, y)``, ``(x, y, sample_weight)``, a dataset, a dict of arguments of ``fit``, or a function of one.
    ``None`` if ``build`` returns it."""
    arguments: Mapping[str, Any]
    """Further arguments of ``fit``."""

    def __call__(self, run: Any) -> None:
        """Train.

        :raises TypeError: if ``build`` does not return a compiled model, and its data if these are not given.
        """
        name = getattr(self.build, "__name__", "build")
        with run.strategy.scope():
            model, data = self.build(), self.data
        if data is None:
            if type(model) is not tuple or len(model) != 2:
                raise TypeError(f"{name}() must return a compiled Keras model and its data: `return model, (x, y)`")
            model, data = model
        if getattr(model, "optimizer", None) is None:
            raise TypeError(f"{name}() must return a compiled Keras model, but it returned {_described(model)}")
        run.watch(model=model)
        arguments = {**self.arguments, **_arguments(data() if callable(data) else data)}
        for name in CALLED:
            if callable(arguments.get(name)):
                arguments[name] = arguments[name]()
        run.fit(model, arguments.pop("x"), **arguments)


def _described(model: Any) -> str:
    kind = type(model).__name__
    return f"a {kind} without an optimizer: call compile" if hasattr(model, "compile") else f"a {kind}"


def _arguments(data: Any) -> dict[str, Any]:
    """Return data as arguments of ``fit``. A dict without ``x`` is the inputs of a model by name."""
    if isinstance(data, Mapping) and "x" in data:
        return dict(data)
    given = data if isinstance(data, tuple) else (data,)
    if not 1 <= len(given) <= 3:
        raise TypeError(f"data must be x, (x, y) or (x, y, sample_weight), and not {len(given)} values")
    return dict(zip(("x", "y", "sample_weight"), given, strict=False))
