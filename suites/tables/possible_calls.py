"""Calls of functions and methods of Keras that work, in which one argument after the other is replaced."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np


def _layers() -> Any:
    from suites.subject import keras

    return keras.layers


OBJECTS: Mapping[str, Callable[[], Any]] = {
    "layer": lambda: _layers().LSTM(2, return_sequences=True),
    "cell": lambda: _layers().GRUCell(2),
    "cells": lambda: [_layers().GRUCell(2)],
    "layers": lambda: [_layers().ReLU()],
    "axes": lambda: 1,
    "num_bins": lambda: 4,
    "learning_rate": lambda: 0.5,
    "inner_optimizer": lambda: _optimizer(),
    "default_optimizer": lambda: _optimizer(),
    "schedule": lambda: abs,
    "filepath": lambda: "no_such_folder/no_such_file.keras",
    "filename": lambda: "no_such_folder/no_such_file",
    "backup_dir": lambda: "no_such_folder",
}
"""Values of parameters without a default, which are made when they are needed."""


def _optimizer() -> Any:
    from suites.subject import keras

    return keras.optimizers.SGD()


def _model(*, compiled: bool = True) -> Any:
    from suites.subject import keras

    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1, name="dense")])
    if compiled:
        model.compile("sgd", "mse")
    return model


X, Y = np.ones((4, 2), "float32"), np.ones((4, 1), "float32")
IMAGE = np.ones((4, 4, 3), "float32")
BOXES = np.array([[0.0, 0.0, 2.0, 2.0]], "float32")
METHODS: Mapping[str, Callable[[], dict[str, Any]]] = {
    "compile": dict,
    "fit": lambda: {"x": X, "y": Y, "verbose": 0},
    "evaluate": lambda: {"x": X, "y": Y, "verbose": 0},
    "predict": lambda: {"x": X, "verbose": 0},
    "train_on_batch": lambda: {"x": X, "y": Y},
    "test_on_batch": lambda: {"x": X, "y": Y},
    "predict_on_batch": lambda: {"x": X},
    "compute_output_shape": lambda: {"input_shape": (4, 2)},
    "get_layer": lambda: {"name": "dense"},
    "load_weights": lambda: {"filepath": "no_such_folder/a.weights.h5"},
    "quantize": lambda: {"mode": "int8"},
    "add": lambda: {"layer": _layers().Dense(1)},
    "set_weights": lambda: {"weights": [np.ones((2, 1)), np.ones(1)]},
    "stateless_call": lambda: {"trainable_variables": [], "non_trainable_variables": []},
    "summary": lambda: {"print_fn": lambda *_line, **_options: None},
}
"""Methods of a model, and arguments with which they work."""


def methods() -> Iterator[tuple[str, Callable[..., Any], dict[str, Any], list[str]]]:
    """Yield the calls of ``METHODS``, each of a model of its own."""
    for name, given in METHODS.items():
        call = getattr(_model(), name)
        yield name, call, given(), [*inspect.signature(call).parameters]


FUNCTIONS: Mapping[str, Mapping[str, Callable[[], dict[str, Any]]]] = {
    "activations": {
        name: lambda: {"x": X}
        for name in ("celu", "elu", "gelu", "glu", "leaky_relu", "log_softmax", "relu", "softmax", "squareplus")
    }
    | {"get": lambda: {"identifier": "relu"}, "deserialize": lambda: {"config": "relu"}},
    "config": {
        "set_dtype_policy": lambda: {"policy": "float32"},
        "set_floatx": lambda: {"value": "float32"},
        "set_image_data_format": lambda: {"data_format": "channels_last"},
    },
    "random": {
        "beta": lambda: {"shape": (2,), "alpha": 1.0, "beta": 1.0},
        "binomial": lambda: {"shape": (2,), "counts": 2.0, "probabilities": 0.5},
        "categorical": lambda: {"logits": X, "num_samples": 2},
        "dropout": lambda: {"inputs": X, "rate": 0.5},
        "gamma": lambda: {"shape": (2,), "alpha": 1.0},
        "normal": lambda: {"shape": (2,)},
        "randint": lambda: {"shape": (2,), "minval": 0, "maxval": 2},
        "shuffle": lambda: {"x": X},
        "truncated_normal": lambda: {"shape": (2,)},
        "uniform": lambda: {"shape": (2,)},
        "SeedGenerator": dict,
    },
    "saving": {
        "deserialize_keras_object": lambda: {"config": "relu"},
        "get_registered_object": lambda: {"name": "relu"},
        "load_model": lambda: {"filepath": "no_such_folder/a.keras"},
        "load_weights": lambda: {"model": _model(), "filepath": "no_such_folder/a.weights.h5"},
        "register_keras_serializable": dict,
        "save_model": lambda: {"model": _model(), "filepath": "no_such_folder/a.keras"},
        "save_weights": lambda: {"model": _model(), "filepath": "no_such_folder/a.weights.h5"},
        "KerasFileEditor": lambda: {"filepath": "no_such_folder/a.keras"},
    },
    "tree": {
        "assert_same_structure": lambda: {"a": [1, 2], "b": [1, 2]},
        "assert_same_paths": lambda: {"a": [1, 2], "b": [1, 2]},
        "pack_sequence_as": lambda: {"structure": [1, 2], "flat_sequence": [1, 2]},
        "traverse": lambda: {"func": lambda one: one, "structure": [1, 2]},
    },
    "utils": {
        "PyDataset": dict,
        "array_to_img": lambda: {"x": IMAGE},
        "img_to_array": lambda: {"img": IMAGE},
        "normalize": lambda: {"x": X},
        "pad_sequences": lambda: {"sequences": [[1, 2], [3]]},
        "split_dataset": lambda: {"dataset": X, "left_size": 0.5},
        "standardize_dtype": lambda: {"dtype": "float32"},
        "timeseries_dataset_from_array": lambda: {"data": X, "targets": None, "sequence_length": 2},
        "to_categorical": lambda: {"x": [0, 1]},
        "set_random_seed": lambda: {"seed": 1},
        "unpack_x_y_sample_weight": lambda: {"data": (X, Y)},
        "FeatureSpace": lambda: {"features": {"one": "float"}},
        **{
            f"{kind}_dataset_from_directory": lambda: {"directory": "no_such_folder"}
            for kind in ("audio", "image", "text")
        },
    },
}
"""Functions of modules, and arguments with which they work, or fail only because there is no such file."""
