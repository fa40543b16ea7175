"""Give layers options that may not go together, and ask whether a symbol is refused whenever an array is.

A model is made of symbols. If a layer refuses only arrays, the model is made with a wrong shape and fails in training.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations, product
from typing import Any

import numpy as np
import pytest

from suites.parameters.spaces import Wrong, parameters
from suites.tables.every_layer import IMAGE, SERIES, VIDEO

pytestmark = [pytest.mark.ddl(strategies=["one_device"], keras="keras")]

SHAPES = {1: SERIES, 2: IMAGE, 3: VIDEO}
ROWS = 3
VALUES: Mapping[str, Sequence[Any]] = {
    "axis": (-1, 0, 1, 2, 4, (1, 2), (1, 7)),
    "cropping": (1, 3),
    "data_format": ("channels_last", "channels_first"),
    "depth_multiplier": (1, 2),
    "dilation_rate": (1, 2),
    "dims": ((1, 2), (2, 1), (1, 1), (1, 2, 3)),
    "filters": (3, 4),
    "groups": (1, 2, 3),
    "interpolation": ("nearest", "bilinear", "area"),
    "kernel_size": (1, 3, 9),
    "noise_shape": (None, (None, 1, None), (1, 1), (ROWS, *SERIES), (None,) * 4, (2, 1, 4)),
    "output_padding": (None, 0, 1, 2),
    "padding": ("valid", "same", "causal"),
    "pool_size": (1, 2),
    "rate": (0.5,),
    "size": (1, 2),
    "strides": (1, 2, 3),
    "target_shape": ((-1,), (2, -1), (7, 2), (-1, -1)),
}
"""Values of parameters, the first of which every layer takes. Many pairs of them are refused by many layers."""
MOVING = ("Conv{}D", "Conv{}DTranspose", "MaxPooling{}D", "AveragePooling{}D", "Cropping{}D", "UpSampling{}D")
FLAT = (
    *(f"{kind}Conv{number}D" for kind in ("Separable", "Depthwise") for number in (1, 2)),
    *("ConvLSTM1D", "ConvLSTM2D", "Dropout", "AlphaDropout", "Softmax", "Permute", "Reshape"),
    *(f"{kind}Normalization" for kind in ("Batch", "Layer", "Group", "Unit", "RMS")),
)
KINDS = (*(kind.format(number) for kind in MOVING for number in SHAPES), *FLAT)
POOLING = [kind.format(number) for kind in MOVING if "Pooling" in kind for number in SHAPES]


def dimensions(kind: str) -> int:
    return next((number for number in SHAPES if f"{number}D" in kind), 1)


def cases(kind: str) -> Iterator[dict[str, Any]]:
    """Yield each pair of values of two parameters. The others have their first value, as few refuse it."""
    varied = {name: VALUES[name] for name in parameters(f"layers.{kind}") if name in VALUES}
    if kind.startswith("ZeroPadding"):
        varied["padding"] = (1, 2)
    needed = {name: values[0] for name, values in varied.items() if name in ("filters", "kernel_size", "rate")}
    needed |= {name: varied[name][0] for name in ("dims", "target_shape") if name in varied}
    told = set()
    for one, other in combinations(varied, 2) if len(varied) > 1 else [(*varied, *varied)]:
        for value, its in product(varied[one], varied[other]):
            case = {**needed, one: value, other: its}
            if str(case) not in told:
                told.add(str(case))
                yield case


def shape_of(kind: str, case: dict[str, Any], x: Any) -> tuple[int, ...] | None:
    """Return the shape of a result, or ``None`` if the layer refuses its options or the input."""
    from suites.subject import keras

    try:
        layer = getattr(keras.layers, kind)(**case)
        return tuple(layer(x, **({"training": True} if "rate" in case else {})).shape)
    except Exception:
        return None


def agree(kind: str, case: dict[str, Any], shape: tuple[int, ...]) -> None:
    from suites.subject import keras

    told, real = (shape_of(kind, case, x) for x in (keras.KerasTensor(shape), np.ones(shape, "float32")))
    assert told == real, f"told {told or 'a refusal'}, in fact {real or 'a refusal'}"


@pytest.mark.ddl_item("layer.Conv", shows="behavior")
@pytest.mark.parametrize("kind", KINDS)
def test_a_symbol_is_refused_if_an_array_is(kind, ddl_strategy):
    from suites.subject import keras

    if not hasattr(keras.layers, kind):
        pytest.skip(f"this version has no {kind}")
    wrong = Wrong()
    shape = (ROWS, *([3] if "LSTM" in kind else []), *SHAPES[dimensions(kind)])
    for case in cases(kind):
        with wrong.of(case):
            agree(kind, case, shape)
    wrong.check()


@pytest.mark.ddl_item("layer.Conv", shows="behavior")
@pytest.mark.parametrize("kind", POOLING)
def test_a_window_that_does_not_fit_is_refused(kind, ddl_strategy):
    """It has a test of its own, because it ends the process."""
    wrong = Wrong()
    for strides in (None, 2):
        with wrong.of(f"strides={strides}"):
            agree(kind, {"pool_size": 9, "strides": strides}, (ROWS, *SHAPES[dimensions(kind)]))
    wrong.check()
