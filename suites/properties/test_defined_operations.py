"""Compare the operations of ``keras.ops`` that NumPy does not have with their definitions in NumPy and Python."""

from __future__ import annotations

import inspect

import numpy as np
import pytest

from suites.parameters.spaces import Wrong
from suites.properties.operations import DEFINED, calls_of, mapped_results, operation, same, tensors, told
from suites.tables.image_operations import IMAGE_OPERATIONS

pytestmark = [
    pytest.mark.ddl(strategies=["one_device"], keras="keras"),
    pytest.mark.ddl_item("fit.subclass", shows="values"),
]

LEFT_OUT = {
    *("convert_to_numpy", "custom_gradient", "dtype", "is_tensor", "jvp", "rearrange", "shape"),
    *("divide_no_nan", "get_item", "slogdet", "view"),
}
"""Operations that return no tensor, take a function with its gradients, or have another name in NumPy."""
OTHER_NAMES = {"swish", "relu6", "name_scope", "log_sigmoid"}
"""Names in some versions of what ``keras.activations`` has, and a scope."""
OPTIONS_ELSEWHERE = {
    *("adaptive_average_pool(data_format)", "adaptive_max_pool(data_format)", "conv_transpose(output_padding)"),
    *("dot_product_attention(attn_logits_soft_cap)", "moments(synchronized)"),
}
"""Options that layers pass on, whose tests vary them, and one that only TPUs have."""


def test_each_operation_is_defined(ddl_strategy):
    """Others are functions of layers, or NumPy has them, and ``test_operations.py`` and ``test_activations.py`` too."""
    from suites.subject import keras

    elsewhere = {name for name in vars(keras.ops) if hasattr(np, name)} | {*vars(keras.activations)}
    named = {name for name, one in vars(keras.ops).items() if inspect.isfunction(one)}
    assert named - {one.api for one in DEFINED.values()} - elsewhere - LEFT_OUT <= OTHER_NAMES
    of_images = {f"image.{name}" for name, one in vars(keras.ops.image).items() if inspect.isfunction(one)}
    assert of_images - {one.api for one in IMAGE_OPERATIONS} == set()


def test_each_option_is_given(ddl_strategy):
    """Each argument that may be left out, except those that say how a result is computed."""
    from suites.subject import keras

    missing = []
    for api in {one.api for one in DEFINED.values()}:
        owner = keras.ops.image if api.startswith("image.") else keras.ops
        function = getattr(owner, api.rpartition(".")[2], None)
        if function is None:
            continue
        named = {name for one in DEFINED.values() if one.api == api for _, options in one.calls for name in options}
        given = max(len(values) for one in DEFINED.values() if one.api == api for values, _ in one.calls)
        for at, parameter in enumerate(inspect.signature(function).parameters.values()):
            if parameter.kind is parameter.VAR_KEYWORD or parameter.default is parameter.empty or at < given:
                continue
            if parameter.name not in named:
                missing.append(f"{api}({parameter.name})")
    assert {*missing} <= OPTIONS_ELSEWHERE


@pytest.mark.parametrize("name", [name for name, one in DEFINED.items() if one.model])
def test_an_operation_is_as_defined(name, ddl_strategy):
    one, wrong = DEFINED[name], Wrong()
    function = operation(one)
    for given, options in calls_of(one, all_of=True):
        with wrong.of(*told(given, options)):
            with np.errstate(all="ignore"):
                wanted = one.model(*given, **options)
            found = mapped_results(function(*tensors(given), **tensors(options)))
            same(one.view(found, *given, **options), wanted, one.rtol, one.atol)
    wrong.check()
