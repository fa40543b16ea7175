"""Every layer of Keras without random numbers, with the inputs that it takes, and what it does with a mask."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

SERIES, IMAGE, VIDEO = (5, 4), (6, 6, 4), (4, 4, 4, 2)
"""Shapes of one example."""
ALONG, WHOLE, NONE = "along", "whole", "none"
"""Given a mask, the output keeps the input's times, or equals that of the unpadded example; or no mask is taken."""


@dataclass(frozen=True)
class Layer:
    """A layer with its options, and how it is called."""

    name: str
    options: Mapping[str, Any] = field(default_factory=dict)
    shape: tuple[int, ...] = SERIES
    inputs: int = 1
    together: bool = False
    """True if several inputs are one list, as for a layer that adds them."""
    mask: str = NONE
    over_batch: bool = False
    """True if an example depends on the others of its batch."""
    scale: float = 1.0
    """Factor of the inputs."""
    cancels: float = 0.0
    """Size of what cancels in a gradient that is 0, if it is not that of the output for inputs of this size."""
    wrapped: Callable[[Any, Any], Mapping[str, Any]] | None = None
    """Takes Keras and the policy, and returns further options: layers that are inside this one."""

    def __str__(self) -> str:
        told = (f"{name}={value}" for name, value in self.options.items() if not name.endswith("initializer"))
        masked, large = [f"mask={self.mask}"] * (self.mask != NONE), ["large"] * (self.scale > 1)
        return "-".join([self.name, *told, *masked, *large])

    def make(self, keras: Any, policy: str) -> Any:
        """Return a layer whose weights have the policy, or skip the test if the installed version has no such layer."""
        if not hasattr(keras.layers, self.name):
            pytest.skip(f"this version has no {self.name}")
        inside = self.wrapped(keras, policy) if self.wrapped else {}
        return getattr(keras.layers, self.name)(**self.options, **inside, dtype=policy)

    def call(self, layer: Any, x: Any, **given: Any) -> Any:
        """Call a layer of this kind."""
        same = [x] * self.inputs
        return layer(same, **given) if self.together else layer(*same, **given)


def _pooling() -> list[Layer]:
    found = []
    for dimensions, shape in (("1D", SERIES), ("2D", IMAGE), ("3D", VIDEO)):
        for kind in ("Average", "Max"):
            if dimensions != "3D":
                found.append(Layer(f"{kind}Pooling{dimensions}", {"pool_size": 2}, shape))
                found.append(Layer(f"Adaptive{kind}Pooling{dimensions}", {"output_size": 2}, shape))
            masked = WHOLE if (kind, dimensions) == ("Average", "1D") else NONE
            found.append(Layer(f"Global{kind}Pooling{dimensions}", {}, shape, mask=masked))
    return found


def _convolutions() -> list[Layer]:
    found = []
    for dimensions, shape in (("1D", SERIES), ("2D", IMAGE), ("3D", VIDEO)):
        given = {"filters": 3, "kernel_size": 2}
        found += [Layer(f"Conv{dimensions}{kind}", given, shape) for kind in ("", "Transpose")]
        if dimensions != "3D":
            found.append(Layer(f"SeparableConv{dimensions}", given, shape))
            found.append(Layer(f"DepthwiseConv{dimensions}", {"kernel_size": 2}, shape))
    found.append(Layer("ConvLSTM1D", {"filters": 2, "kernel_size": 2, "recurrent_initializer": "ones"}, (3, 4, 2)))
    return found


def _inside(kind: str, **options: Any) -> Callable[[Any, Any], Mapping[str, Any]]:
    return lambda keras, policy: {"layer": getattr(keras.layers, kind)(**options, dtype=policy)}


UNITS: Mapping[str, Any] = {"units": 3, "recurrent_initializer": "ones"}
"""TensorFlow has no decomposition for the default, orthogonal weights, in 16 bits."""


def _cells(keras: Any, policy: Any) -> Mapping[str, Any]:
    return {
        "cell": [
            keras.layers.GRUCell(**UNITS, dtype=policy),
            keras.layers.LSTMCell(**UNITS, dtype=policy),
        ]
    }


def _recurrent() -> list[Layer]:
    found = []
    for kind in ("SimpleRNN", "LSTM", "GRU"):
        found.append(Layer(kind, {**UNITS}, mask=WHOLE))
        found.append(Layer(kind, {**UNITS, "return_sequences": True}, mask=ALONG))
    found.append(Layer("GRU", {**UNITS, "reset_after": False, "unroll": True}, mask=WHOLE))
    found.append(Layer("RNN", {"return_sequences": True}, mask=ALONG, wrapped=_cells))
    for kind, times, merge in (("LSTM", False, "ave"), ("GRU", True, "concat")):
        inside = _inside(kind, **UNITS, return_sequences=times)
        found.append(Layer("Bidirectional", {"merge_mode": merge}, mask=ALONG if times else WHOLE, wrapped=inside))
    found.append(Layer("TimeDistributed", mask=ALONG, wrapped=_inside("Dense", units=3)))
    return found


def _normalizing() -> list[Layer]:
    """Return layers with small outputs for inputs of any size, and inputs whose squares are no numbers of float16."""
    found = []
    for scale in (1.0, 256.0):
        found += [
            Layer("BatchNormalization", {"momentum": 0.5}, mask=ALONG, over_batch=True, scale=scale),
            Layer("BatchNormalization", {"epsilon": 0.01}, (5, 3, 4), mask=ALONG, over_batch=True, scale=scale),
            Layer("LayerNormalization", mask=ALONG, scale=scale),
            Layer("LayerNormalization", {"axis": [2, 1]}, scale=scale),
            Layer("RMSNormalization", {"axis": [2, 1]}, scale=scale),
            Layer("GroupNormalization", {"groups": 2}, scale=scale),
            Layer("GroupNormalization", {"groups": -1}, IMAGE, scale=scale),
            Layer("RMSNormalization", scale=scale),
            Layer("UnitNormalization", mask=ALONG, scale=scale),
            Layer("Dot", {"axes": -1, "normalize": True}, inputs=2, together=True, scale=scale),
            Layer("Softmax", {"axis": -1}, scale=scale, cancels=1.0),  # the slopes times 1
        ]
    return found


LAYERS: Sequence[Layer] = (
    *_pooling(),
    *_convolutions(),
    *_recurrent(),
    Layer("Dense", {"units": 3, "activation": "softmax"}, mask=ALONG),
    Layer("Dense", {"units": 3, "activation": "gelu"}, mask=ALONG),
    Layer("EinsumDense", {"equation": "abc,cd->abd", "output_shape": (None, 3), "bias_axes": "d"}),
    *(
        Layer("Activation", {"activation": name}, mask=ALONG)
        for name in ("softmax", "log_softmax", "softplus", "silu", "selu", "tanh", "sigmoid", "exponential", "mish")
    ),
    *(Layer(name, mask=ALONG) for name in ("ELU", "LeakyReLU", "ReLU", "Identity", "ActivityRegularization")),
    Layer("PReLU", {"shared_axes": [1]}, mask=ALONG),
    Layer("Softmax", {"axis": [1, 2]}),
    Layer("Rescaling", {"scale": 0.5, "offset": 0.25}, mask=ALONG),
    Layer("Normalization", {"mean": 0.5, "variance": 4.0}, mask=ALONG),
    *_normalizing(),
    Layer("SpectralNormalization", wrapped=_inside("Dense", units=3)),
    Layer("MultiHeadAttention", {"num_heads": 2, "key_dim": 3}, inputs=2, mask=ALONG),
    Layer("MultiHeadAttention", {"num_heads": 2, "key_dim": 3, "value_dim": 2}, inputs=3, mask=ALONG),
    Layer(
        "GroupQueryAttention",
        {"head_dim": 2, "num_query_heads": 4, "num_key_value_heads": 2},
        inputs=2,
        mask=ALONG,
    ),
    Layer("Attention", {"use_scale": True}, inputs=2, together=True, mask=ALONG),
    Layer("Attention", {"score_mode": "concat"}, inputs=3, together=True, mask=ALONG),
    Layer("AdditiveAttention", inputs=2, together=True, mask=ALONG),
    *(
        Layer(name, inputs=2, together=True, mask=ALONG)
        for name in ("Add", "Average", "Maximum", "Minimum", "Multiply", "Subtract", "Concatenate")
    ),
    Layer("Concatenate", {"axis": 1}, inputs=2, together=True),
    Layer("Flatten"),
    Layer("Reshape", {"target_shape": (4, 5)}),
    Layer("Permute", {"dims": (2, 1)}),
    Layer("RepeatVector", {"n": 2}, (4,)),
    Layer("Cropping1D"),
    Layer("ZeroPadding1D"),
    Layer("UpSampling1D"),
    Layer("Cropping2D", {"cropping": 1}, IMAGE),
    Layer("ZeroPadding2D", {}, IMAGE),
    Layer("UpSampling2D", {"interpolation": "bilinear"}, IMAGE),
)
LEFT_OUT = (
    *("InputLayer", "Layer", "Wrapper", "Lambda", "Pipeline", "Masking", "Embedding", "ReversibleEmbedding"),
    # They begin with numbers that are no values, or run a program of another package.
    *("CategoryEncoding", "Discretization", "HashedCrossing", "Hashing", "IntegerLookup", "StringLookup"),
    *("TextVectorization", "FlaxLayer", "JaxLayer", "TFSMLayer", "TorchModuleWrapper"),
    # They are inside a layer of the table.
    *("GRUCell", "LSTMCell", "SimpleRNNCell", "StackedRNNCells"),
    # They prepare images, mostly at random, or draw numbers.
    *("AlphaDropout", "Dropout", "GaussianDropout", "GaussianNoise", "SpatialDropout1D", "SpatialDropout2D"),
    *("SpatialDropout3D", "AugMix", "AutoContrast", "CenterCrop", "ContrastLimitedAdaptiveHistogramEqualization"),
    *("CutMix", "Equalization", "MaxNumBoundingBoxes", "MixUp", "RandAugment", "Resizing", "Solarization"),
    *("MelSpectrogram", "STFTSpectrogram"),
    # TensorFlow pools no volumes in float16 on CPUs, and none in float64.
    *("AveragePooling3D", "MaxPooling3D", "AdaptiveAveragePooling3D", "AdaptiveMaxPooling3D"),
    # The same for more dimensions, which take longest.
    *("ConvLSTM2D", "ConvLSTM3D", "Cropping3D", "UpSampling3D", "ZeroPadding3D"),
)
"""Layers that are not in the table. Those whose name begins with "Random" are not in it either."""
