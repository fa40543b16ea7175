"""Give each layer every regularizer that it takes, and see what they are asked about: each thing of theirs, once."""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest

from suites.parameters.spaces import Wrong
from suites.subject import value_of
from suites.tables.every_layer import LAYERS, Layer

pytestmark = [pytest.mark.ddl(strategies=["one_device"]), pytest.mark.ddl_item("fit.compute_loss", shows="values")]

END, OUTPUTS = "_regularizer", "activity_regularizer"
FURTHER = (
    Layer("Embedding", {"input_dim": 3, "output_dim": 2}, (5,)),
    Layer("ReversibleEmbedding", {"input_dim": 3, "output_dim": 2}, (5,)),
    *(
        Layer(f"LocallyConnected{n}D", {"filters": 2, "kernel_size": 2}, (5, 4) if n == 1 else (4, 4, 2))
        for n in (1, 2)
    ),
    Layer("ConvLSTM2D", {"filters": 2, "kernel_size": 2}, (2, 4, 4, 2)),
    Layer("ConvLSTM3D", {"filters": 2, "kernel_size": 2}, (2, 3, 3, 3, 2)),
)
"""Layers with weights that the table leaves out, for they take other inputs or most time."""
EACH = {one.name: one for one in (*LAYERS, *FURTHER) if one.name != "ActivityRegularization"}
"""Name -> the last layer of the name. The one that is left out makes its own regularizer of outputs."""
OF_WEIGHTS = (
    *("Dense", "EinsumDense", "Embedding", "ReversibleEmbedding", "PReLU", "SimpleRNN", "LSTM", "GRU"),
    *(f"Conv{n}D{kind}" for n in (1, 2, 3) for kind in ("", "Transpose")),
    *(f"{kind}Conv{n}D" for n in (1, 2) for kind in ("Separable", "Depthwise")),
    *(f"ConvLSTM{n}D" for n in (1, 2, 3)),
    *(f"LocallyConnected{n}D" for n in (1, 2)),
    *("BatchNormalization", "LayerNormalization", "GroupNormalization", "MultiHeadAttention", "GroupQueryAttention"),
)
"""Layers with regularizers of weights. The cells of recurrent layers are in these."""
PARTS_TOO = ("MultiHeadAttention", "GroupQueryAttention")
"""Layers that regularize their queries, keys and values beside the output. Their documentation says so."""


def asking() -> Any:
    """Return a regularizer that keeps what it is asked about."""
    import tensorflow as tf

    from suites.subject import keras, ops

    class Asking(keras.regularizers.Regularizer):  # type: ignore[misc]
        def __init__(self) -> None:
            self.asked: list[Any] = []

        def __call__(self, x: Any) -> Any:
            self.asked.append(tf.convert_to_tensor(x).numpy())
            return ops.sum(x)

        def get_config(self) -> dict[str, Any]:
            return {}

    return Asking()


def made(keras: Any, layer: Layer, **options: Any) -> tuple[Any, Any]:
    """Return a layer whose weights are all different, and an input."""
    kind, draw = layer.make(keras, "float32"), np.random.default_rng(2)
    inside = layer.wrapped(keras, "float32") if layer.wrapped else {}
    one = type(kind)(**layer.options, **inside, **options)
    x = draw.integers(0, 3, (2, *layer.shape)).astype("float32")
    layer.call(one, x)
    for variable in one.trainable_weights:
        variable.assign(draw.uniform(0.1, 1.0, variable.shape))
    return one, x


def of_parameter(weights: Sequence[Any], parameter: str) -> Counter[bytes]:
    """Return the values of the weights that a parameter is about, by their names."""
    named = [(variable.name.split("/")[-1].split(":")[0], np.asarray(value_of(variable))) for variable in weights]
    start = parameter.removesuffix(END)
    for names in ((start, f"{start}_kernel"), ("kernel",)):  # Keras 3 names the weights of a depthwise layer so
        if any(name in names for name, _values in named):
            break
    return Counter(values.tobytes() for name, values in named if name in names)


def parameters(kind: Any) -> Iterator[str]:
    own = inspect.signature(kind.__init__).parameters
    return (name for name in own if name.endswith(END) and name != OUTPUTS)


def test_each_layer_with_regularizers_of_weights_is_tested(ddl_strategy):
    from suites.subject import keras

    tested = [getattr(keras.layers, name, None) for name in OF_WEIGHTS]
    kinds = {name: kind for name, kind in vars(keras.layers).items() if inspect.isclass(kind) and kind not in tested}
    assert [name for name, kind in kinds.items() if any(parameters(kind)) and not name.endswith("Cell")] == []


@pytest.mark.parametrize("name", OF_WEIGHTS)
def test_a_regularizer_of_weights_is_asked_about_each_of_them_once(name, ddl_strategy):
    from suites.subject import keras

    wrong, kind = Wrong(), type(EACH[name].make(keras, "float32"))
    for parameter in parameters(kind):
        with wrong.of(parameter):
            regularizer = asking()
            one, _x = made(keras, EACH[name], **{parameter: regularizer})
            regularizer.asked.clear()
            penalties = one.losses
            found = Counter(values.tobytes() for values in regularizer.asked)
            assert found == of_parameter(one.trainable_weights, parameter), f"asked about {found.total()} weights"
            assert len(penalties) == len(regularizer.asked)
    wrong.check()


@pytest.mark.parametrize("name", EACH)
def test_a_regularizer_of_outputs_is_asked_about_them_once(name, ddl_strategy):
    """Each layer takes one, as the class of all layers does. A call without training is asked about, too."""
    from suites.subject import keras

    wrong = Wrong()
    for training in (None, False, True):
        with wrong.of(f"training={training}"):
            regularizer = asking()
            one, x = made(keras, EACH[name], **{OUTPUTS: regularizer})
            takes = "training" in inspect.signature(one.call).parameters
            regularizer.asked.clear()
            output = np.asarray(EACH[name].call(one, x, **({"training": training} if takes else {})))
            asked = [values for values in regularizer.asked if np.array_equal(values, output)]
            assert len(asked) == 1, f"asked about the output {len(asked)} times"
            assert name in PARTS_TOO or len(regularizer.asked) == 1
    wrong.check()


PRECISIONS = ("float16", "bfloat16", "float64", "mixed_float16", "mixed_bfloat16")


@pytest.mark.ddl(strategies=["one_device"], keras="keras")
@pytest.mark.ddl_item("precision.mixed_float16", shows="values")
@pytest.mark.parametrize("kind", ["kernel", "output", "loss"])
def test_a_model_trains_with_a_penalty_of_each_precision(kind, ddl_strategy):
    """The loss of the labels is in float32, and a penalty in the precision of its layer: fit adds them up."""
    from suites.subject import keras

    class Adding(keras.layers.Dense):  # type: ignore[misc]
        def call(self, inputs: Any, **options: Any) -> Any:
            outputs = super().call(inputs, **options)
            self.add_loss(keras.ops.sum(keras.ops.square(outputs)))
            return outputs

    wrong, l2 = Wrong(), keras.regularizers.L2(0.25)
    for policy in PRECISIONS:
        for eagerly in (False, True):
            with wrong.of(policy, f"run_eagerly={eagerly}"):
                options = {"kernel": {"kernel_regularizer": l2}, "output": {OUTPUTS: l2}}.get(kind, {})
                layer = (Adding if kind == "loss" else keras.layers.Dense)(
                    1, kernel_initializer="ones", dtype=policy, **options
                )
                model = keras.Sequential([keras.Input((2,)), layer])
                model.compile(keras.optimizers.SGD(0.0), "mse", run_eagerly=eagerly)
                log = model.fit(np.ones((4, 2)), np.zeros((4, 1)), verbose=0).history["loss"]
                penalty = {"kernel": 0.25 * 2, "output": 0.25 * 4, "loss": 4 * 4}[kind]
                np.testing.assert_allclose(log, [4 + penalty], rtol=1e-2)
    wrong.check()
