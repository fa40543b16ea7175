"""Change each parameter of every class of Keras, and ask whether its configuration has the value.

``test_configurations.py`` has the values that other tests vary, and what the copies compute. Here is every class with a
configuration and every parameter that has a default, also those that no other test knows.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from suites import subject
from suites.parameters.classes import classes, needed, parameters
from suites.parameters.spaces import Wrong, find
from suites.properties.test_configurations import KINDS, again

OTHERS = (3, 0.5, "channels_first", "same", "relu", "zeros", "sum", "max", True, (1, 2))
"""Values for a parameter whose default does not say what it may be; the first is taken that the class accepts."""
TOGETHER = {"lora_alpha": {"lora_rank": 2}, "output_padding": {"strides": 4}}
"""Parameters that have no meaning, or no other value, without another one."""
CHOOSES_A_KERNEL = ("use_cudnn", "flash_attention")
"""Parameters that do not change what is computed."""
NAMES = ("name", "dtype")
"""``test_configurations.py`` and the tests of half precision have them."""
FORMATS = ("AugMix", "CutMix", "Equalization", "MixUp", "RandAugment", "RandomColorDegeneration", "RandomColorJitter")
FORMATS += ("RandomElasticTransform", "RandomErasing", "RandomGaussianBlur", "RandomGrayscale", "RandomHue")
FORMATS += ("RandomInvert", "RandomPerspective", "RandomPosterization", "RandomSaturation", "RandomSharpness")
"""Layers whose ``data_format`` was forgotten before Keras 3.15."""
WRONG = {
    "layers": (
        *FORMATS,
        *("Attention", "CategoryEncoding", "Conv1DTranspose", "Conv2DTranspose", "Conv3DTranspose", "Discretization"),
        *("MaxNumBoundingBoxes", "RandomShear"),
    ),
    "losses": ("SparseCategoricalCrossentropy",),
}
"""Classes that some version of Keras gives an incomplete configuration: each has a test, and an entry for it."""
ELSEWHERE = {
    "initializers": ("Identity",),
    "layers": ("SimpleRNN", "Lambda", "InputLayer", "InputSpec"),
    "losses": ("CosineSimilarity", "Huber"),
    "metrics": ("AUC", "CosineSimilarity"),
}
"""Classes with an entry for ``test_configurations.py``, one that holds any function, and two that are no layers."""


@pytest.fixture(autouse=True)
def keras_3():
    if subject.name() != subject.KERAS_3:
        pytest.skip("nobody has written the entries of tf_keras yet")


def others(default: Any) -> tuple[Any, ...]:
    """Return values that a parameter with this default may also have."""
    if isinstance(default, bool):
        return (not default,)
    if isinstance(default, int):
        return (default + 1, default + 2, 2 * default)
    if isinstance(default, float):
        return (default / 2, 2 * default) if default else (0.5,)
    if default is None or isinstance(default, str):
        return tuple(one for one in OTHERS if str(one).lower() != str(default).lower())
    return ()


def objects(kind: type) -> Iterator[tuple[str, Any, Any]]:
    """Yield a parameter, a value that is not its default, and an object that has it.

    A class whose other parameters cannot be guessed, and a parameter that takes none of the values, are left out.
    """
    for name, one in parameters(kind).items():
        if name in (*NAMES, *CHOOSES_A_KERNEL):
            continue
        for value in others(needed(kind).get(name, one.default)):
            try:
                made = kind(**(needed(kind) | TOGETHER.get(name, {}) | {name: value}))
            except Exception:
                continue  # not a value of this parameter
            yield name, value, made
            break


def differences(kind: type) -> tuple[int, list[str]]:
    """Return the number of parameters that were changed, and what is wrong with the configurations."""
    number, found, plain = 0, [], None
    for name, value, one in objects(kind):
        number += 1
        config = one.get_config()
        if name not in config:
            found.append(f"{name}={value!r} is not in the configuration")
            continue
        plain = kind(**needed(kind)).get_config() if plain is None else plain
        if json.dumps(config[name], default=str) == json.dumps(plain.get(name), default=str):
            found.append(f"{name}={value!r} has the same configuration as the default")
            continue
        try:
            other = again(one).get_config()
        except Exception as error:
            found.append(f"{name}={value!r} cannot be read: {type(error).__name__}")
            continue
        if json.dumps(other, default=str) != json.dumps(config, default=str):
            found.append(f"{name}={value!r} is read as {other.get(name)!r}")
    return number, found


@pytest.mark.filterwarnings("ignore:You passed `rms_scaling:UserWarning")
@pytest.mark.ddl(strategies=["one_device"])
@pytest.mark.ddl_item("saving.keras_file", shows="behavior", keras=">=3")
@pytest.mark.parametrize("kind", [*KINDS[:-1], "optimizers.schedules"])
def test_each_parameter_is_in_the_configuration(kind, ddl_strategy):
    """Most classes must have a parameter that could be changed, or the test would show little."""
    wrong, changed = Wrong(), []
    left_out = (*WRONG.get(kind, ()), *ELSEWHERE.get(kind, ()))
    for name, one in classes(kind).items():
        if name in left_out or not parameters(one).keys() - {*NAMES, *CHOOSES_A_KERNEL}:
            continue
        with wrong.of(name):
            number, found = differences(one)
            changed.append(number > 0)
            assert not found, found
    wrong.check()
    assert sum(changed) > len(changed) / 2


@pytest.mark.ddl(strategies=["one_device"])
@pytest.mark.ddl_item("saving.keras_file", shows="behavior", keras=">=3")
@pytest.mark.parametrize("api", [f"{kind}.{name}" for kind, names in WRONG.items() for name in names])
def test_a_class_that_forgets_a_parameter(api, ddl_strategy):
    one = find(api)
    if one is None:
        pytest.skip(f"this version has no {api}")
    number, found = differences(one)
    assert number
    assert not found, found
