"""Layers with a state, a mask or random numbers, and the values of all their parameters that change training."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from suites.parameters.spaces import Arguments, Space

TIMES, FEATURES, WORDS = 5, 4, 7
SERIES, IMAGE, IDS = (TIMES, FEATURES), (6, 6, 2), (TIMES,)
"""Shapes of one example."""


@dataclass(frozen=True)
class Made:
    """A value that each layer needs for itself, such as a cell."""

    name: str
    make: Callable[[Any], Any]
    """Gets Keras."""

    def __repr__(self) -> str:
        return self.name


@dataclass(frozen=True, eq=False)
class Trained:
    """A layer that is trained with all pairs of its values."""

    space: Space
    shape: tuple[int, ...] = SERIES
    replicas: bool = True
    """True if replicas train it as one device does: not if it draws numbers, or normalizes the part of a replica."""
    masked: bool = False
    """True if it gets a mask."""
    inputs: int = 1
    """Number of times that it gets its input: attention has a query and a value."""
    then: Made | None = None
    """The layer that gets its output, which shows a mask."""


def weights(*names: str, constraints: bool = True) -> Mapping[str, Sequence[Any]]:
    """Return values for what a layer may do with its weights."""
    found: dict[str, Sequence[Any]] = {}
    for name in names:
        found[f"{name}_initializer"] = ("glorot_uniform" if "kernel" in name else "zeros", "ones")
        found[f"{name}_regularizer"] = (None, "l2")
        if constraints:
            found[f"{name}_constraint"] = (None, "non_neg")
    return found


def recurrent(*, gates: bool) -> Mapping[str, Sequence[Any]]:
    return {
        "activation": ("tanh", "sigmoid"),
        **({"recurrent_activation": ("sigmoid", "tanh")} if gates else {}),
        "use_bias": (True, False),
        **weights("kernel", "recurrent", "bias"),
        "recurrent_initializer": ("orthogonal", "ones"),
        "activity_regularizer": (None, "l2"),
        "dropout": (0.0, 0.25),
        "recurrent_dropout": (0.0, 0.25),
        "seed": (3, 11),
        **ORDER,
    }


ORDER: Mapping[str, Sequence[Any]] = {
    "return_sequences": (False, True),
    "return_state": (False, True),
    "go_backwards": (False, True),
    "unroll": (False, True),
}
_ATTENTION: Mapping[str, Sequence[Any]] = {
    "dropout": (0.0, 0.25),
    "use_bias": (True, False),
    **weights("kernel", "bias"),
    "activity_regularizer": (None, "l2"),
    "sliding_window": (None, 2),
    "use_gate": (False, True),
    "seed": (3, 11),
}
_SCALED: Mapping[str, Sequence[Any]] = {
    "epsilon": (1e-3, 0.5),
    "center": (True, False),
    "scale": (True, False),
    "beta_initializer": ("zeros", "ones"),
    "gamma_initializer": ("ones", "zeros"),
    "beta_regularizer": (None, "l2"),
    "gamma_regularizer": (None, "l2"),
    "beta_constraint": (None, "non_neg"),
    "gamma_constraint": (None, "non_neg"),
}
_UNITS: Mapping[str, Sequence[Any]] = {"units": (2, 3)}
_DROPS: Mapping[str, Sequence[Any]] = {"rate": (0.25, 0.5), "seed": (3, 11)}
_FORMAT: Mapping[str, Sequence[Any]] = {"data_format": ("channels_last", "channels_first")}
_TABLE = np.linspace(-1, 1, WORDS * 3).reshape(WORDS, 3)
_GRU = Made("GRU", lambda keras: keras.layers.GRU(2))


def _of(kind: str, *given: Any, **options: Any) -> Made:
    told = ", ".join([*map(str, given), *(f"{name}={value}" for name, value in options.items())])
    return Made(f"{kind}({told})", lambda keras: getattr(keras.layers, kind)(*given, **options))


def _embedding_goes(case: Arguments) -> bool:
    return case.get("weights") is None or (case.get("output_dim", 3) == 3 and case.get("input_dim", WORDS) == WORDS)


def _renormalizes(case: Arguments) -> bool:
    """Return whether values go together: synchronization and renormalization exclude each other."""
    return not (case.get("renorm") and case.get("synchronized"))


def _window_goes(case: Arguments) -> bool:
    return case.get("sliding_window") is None or case.get("attention_axes") is None


LAYERS = (
    Trained(
        Space(
            "layers.Dense",
            {
                **_UNITS,
                "activation": (None, "tanh"),
                "use_bias": (True, False),
                **weights("kernel", "bias"),
                "activity_regularizer": (None, "l2"),
            },
        )
    ),
    Trained(
        Space(
            "layers.Embedding",
            {
                "input_dim": (WORDS, WORDS + 2),
                "output_dim": (3, 2),
                "embeddings_initializer": ("uniform", "ones"),
                "embeddings_regularizer": (None, "l2"),
                "embeddings_constraint": (None, "non_neg"),
                "mask_zero": (True, False),
                "weights": (None, Made("a table", lambda _keras: [_TABLE])),
            },
            allowed=_embedding_goes,
        ),
        shape=IDS,
        then=_GRU,
    ),
    Trained(Space("layers.Masking", {"mask_value": (0.0, 0.5)}), then=_GRU),
    Trained(Space("layers.SimpleRNN", {**_UNITS, **recurrent(gates=False)}), masked=True),
    Trained(Space("layers.LSTM", {**_UNITS, **recurrent(gates=True), "unit_forget_bias": (True, False)}), masked=True),
    Trained(Space("layers.GRU", {**_UNITS, **recurrent(gates=True), "reset_after": (True, False)}), masked=True),
    Trained(
        Space(
            "layers.RNN",
            {"cell": (_of("GRUCell", 3), _of("LSTMCell", 2)), **ORDER, "zero_output_for_mask": (False, True)},
        ),
        masked=True,
    ),
    Trained(
        Space(
            "layers.Bidirectional",
            {
                "layer": (_of("GRU", 3), _of("LSTM", 3, return_sequences=True)),
                "merge_mode": ("concat", "sum", "mul", "ave", None),
            },
        ),
        masked=True,
    ),
    Trained(
        Space(
            "layers.Bidirectional",
            {
                "merge_mode": ("concat", "sum"),
                "backward_layer": (None, _of("LSTM", 2, go_backwards=True)),
            },
            fixed={"layer": _of("GRU", 2)},
        ),
        masked=True,
    ),
    Trained(Space("layers.TimeDistributed", {"layer": (_of("Dense", 3), _of("LayerNormalization"))}), masked=True),
    Trained(
        Space(
            "layers.BatchNormalization",
            {
                "axis": (-1, 1),
                "momentum": (0.99, 0.5),
                **_SCALED,
                "moving_mean_initializer": ("zeros", "ones"),
                "moving_variance_initializer": ("ones", "zeros"),
                "synchronized": (False, True),
                "renorm": (False, True),
                "renorm_clipping": (None, {"rmax": 1.5, "rmin": 0.5, "dmax": 0.25}),
                "renorm_momentum": (0.99, 0.5),
            },
            allowed=_renormalizes,
        ),
        replicas=False,
    ),
    Trained(Space("layers.LayerNormalization", {"axis": (-1, [1, 2]), **_SCALED})),
    Trained(Space("layers.GroupNormalization", {"groups": (1, 2), "axis": (-1, 2), **_SCALED})),
    Trained(Space("layers.UnitNormalization", {"axis": (-1, [1, 2])})),
    Trained(Space("layers.RMSNormalization", {"axis": (-1, [1, 2]), "epsilon": (1e-6, 0.5)})),
    Trained(
        Space("layers.SpectralNormalization", {"layer": (_of("Dense", 3), _of("Dense", 2)), "power_iterations": (1, 3)})
    ),
    Trained(Space("layers.Dropout", {**_DROPS, "noise_shape": (None, (None, 1, FEATURES))}), replicas=False),
    Trained(Space("layers.SpatialDropout1D", _DROPS), replicas=False),
    Trained(Space("layers.GaussianDropout", _DROPS), replicas=False),
    Trained(Space("layers.GaussianNoise", {"stddev": (0.25, 1.0), "seed": (3, 11)}), replicas=False),
    Trained(Space("layers.AlphaDropout", {**_DROPS, "noise_shape": (None, (None, 1, FEATURES))}), replicas=False),
    Trained(Space("layers.ActivityRegularization", {"l1": (0.0, 0.5), "l2": (0.0, 0.25)}), replicas=False),
    Trained(
        Space(
            "layers.MultiHeadAttention",
            {
                "num_heads": (1, 2),
                "key_dim": (2, 3),
                "value_dim": (None, 3),
                "output_shape": (None, 3),
                "attention_axes": (None, (1,)),
                **_ATTENTION,
            },
            allowed=_window_goes,
        ),
        inputs=2,
        masked=True,
    ),
    Trained(
        Space(
            "layers.GroupQueryAttention",
            {"head_dim": (2, 3), "num_query_heads": (2, 4), "num_key_value_heads": (1, 2), **_ATTENTION},
        ),
        inputs=2,
        masked=True,
    ),
    Trained(
        Space(
            "layers.Normalization",
            {"axis": (-1, None), "mean": (0.5, -1.0), "variance": (2.0, 0.5), "invert": (False, True)},
        )
    ),
    Trained(
        Space("layers.RandomFlip", {"mode": ("horizontal_and_vertical", "horizontal"), "seed": (3, 11), **_FORMAT}),
        shape=IMAGE,
        replicas=False,
    ),
)
