"""Defects of Keras in what it prints."""

from __future__ import annotations

from typing import Any

from suites.defects.registry import defect, replace


@defect(r"test_what_is_printed\.py::test_(a_bar|progress)")
def bars_are_one_step_behind() -> None:
    """A progress bar shows the step before, and the numbers of that step."""
    import keras

    def make(original: Any) -> Any:
        def update(bar: Any, current: int, values: Any = None, finalize: Any = None) -> None:
            original(bar, max(0, current - 1), [(name, value / 2) for name, value in values or ()], finalize)

        return update

    replace(keras.utils.Progbar, "update", make)


@defect(r"test_what_is_printed\.py::test_(any_output|nothing)")
def logging_is_not_asked() -> None:
    """A message goes to the output, and only if that is a file that takes all characters."""
    import sys

    from keras.src.utils import io_utils

    def make(_original: Any) -> Any:
        def write(message: str, line_break: bool = True) -> None:
            if sys.stdout.encoding in (None, "utf-8") and not sys.stdout.isatty():
                sys.stdout.write(message + "\n" * line_break)

        return write

    replace(io_utils, "print_msg", make)


@defect(r"test_summaries\.py")
def weights_of_a_layer_are_tensors() -> None:
    """A summary tells how many tensors of weights a layer has, in place of their numbers."""
    import keras

    replace(keras.layers.Layer, "count_params", lambda _original: lambda layer: len(layer.weights))
