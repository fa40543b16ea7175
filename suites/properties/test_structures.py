"""Give models inputs and outputs in every structure, copy and serve them: structures and names stay."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from suites.pairwise import pairwise
from suites.parameters.spaces import Arguments, Wrong

pytestmark = [
    pytest.mark.ddl(strategies=["one_device"], keras="keras"),
    pytest.mark.filterwarnings("ignore:The structure of `inputs`:UserWarning"),
]

NAMES = ("zoo", "ark")
"""Names of the inputs, and of the outputs in a dictionary. They are not in the order of the alphabet."""
STRUCTURES: Mapping[str, Callable[[Any, Any], Any]] = {
    "list": lambda zoo, ark: [zoo, ark],
    "tuple": lambda zoo, ark: (zoo, ark),
    "dict": lambda zoo, ark: {"zoo": zoo, "ark": ark},
    "sorted dict": lambda zoo, ark: {"ark": ark, "zoo": zoo},
    "nested": lambda zoo, ark: {"pair": [zoo], "other": (ark,)},
}
WITH_TUPLES = ("tuple", "nested")
COPIES = ("as it is", "keras file", "clone", "configuration", "pickle", "deepcopy")
SERVED = ("saved model", "export")
DIMENSIONS: Mapping[str, tuple[str, ...]] = {
    "inputs": tuple(STRUCTURES),
    "outputs": tuple(STRUCTURES),
    "way": (*COPIES, *SERVED),
    "model": ("functional", "of a user"),
}
ROWS, FEATURES = 2, 3
ZOO, ARK = np.float32([[1, 2, 3], [4, 5, 6]]), np.float32([[7, 0, 1], [2, 8, 5]])


def allowed(case: Mapping[str, str]) -> bool:
    """Return whether choices go together: a signature has no nested outputs, and files hold no class of a user."""
    if case.get("way") in SERVED and case.get("outputs") == "nested":
        return False
    return case.get("model") != "of a user" or case.get("way") in (None, "as it is", *SERVED)


def of_case(zoo: Any, ark: Any) -> tuple[Any, Any]:
    """Return the outputs; none stays the same if the inputs are exchanged."""
    return zoo - 2 * ark, zoo * zoo + ark


def leaves(form: str, value: Any) -> tuple[Any, Any]:
    """Return the two parts of a structure."""
    if form in ("list", "tuple"):
        zoo, ark = value
        return zoo, ark
    return (value["pair"][0], value["other"][0]) if form == "nested" else (value["zoo"], value["ark"])


def types(value: Any) -> Any:
    """Return what a structure is, without its values; the order of the keys of a dictionary does not matter."""
    if isinstance(value, dict):
        return dict, {key: types(one) for key, one in value.items()}
    return (type(value), [types(one) for one in value]) if isinstance(value, (list, tuple)) else None


def built(keras: Any, case: Arguments) -> Any:
    """Return a model whose inputs have names."""
    make, give = STRUCTURES[case["inputs"]], STRUCTURES[case["outputs"]]
    if case["model"] == "functional":
        inputs = [keras.Input((FEATURES,), name=name) for name in NAMES]
        return keras.Model(make(*inputs), give(*of_case(*inputs)))

    class Own(keras.Model):  # type: ignore[misc]
        def call(self, inputs: Any) -> Any:
            return give(*of_case(*leaves(case["inputs"], inputs)))

    model = Own()
    model(make(ZOO, ARK))
    return model


def copied(keras: Any, model: Any, way: str, folder: Path) -> Any:
    def of_file() -> Any:
        model.save(folder / "model.keras")
        return keras.saving.load_model(folder / "model.keras")

    return {
        "as it is": lambda: model,
        "keras file": of_file,
        "clone": lambda: keras.models.clone_model(model),
        "configuration": lambda: keras.Model.from_config(model.get_config()),
        "pickle": lambda: pickle.loads(pickle.dumps(model)),
        "deepcopy": lambda: copy.deepcopy(model),
    }[way]()


def check(case: Arguments, found: Any) -> None:
    """Compare outputs, and the structure that they have.

    :raises AssertionError: if they differ.
    """
    expected = STRUCTURES[case["outputs"]](*of_case(ZOO, ARK))
    assert types(found) == types(expected)
    for part, other in zip(leaves(case["outputs"], found), of_case(ZOO, ARK), strict=True):
        np.testing.assert_array_equal(part, other)


@pytest.mark.ddl_item("saving.keras_file", "fit.multi_output", shows="behavior")
@pytest.mark.parametrize("outputs", ["lists", "tuples"])
@pytest.mark.parametrize("way", COPIES)
def test_a_copy_keeps_the_structures_of_a_model(way, outputs, ddl_strategy, tmp_path):
    """Its outputs are the same lists, tuples and dictionaries, also where a tuple is in a dictionary."""
    from suites.subject import keras

    wrong = Wrong()
    for number, case in enumerate(pairwise(DIMENSIONS, allowed)):
        if case["way"] == way and (case["outputs"] in WITH_TUPLES) == (outputs == "tuples"):
            with wrong.of(case), ddl_strategy.scope():
                folder = tmp_path / str(number)
                folder.mkdir()
                model, inputs = built(keras, case), STRUCTURES[case["inputs"]](ZOO, ARK)
                new = copied(keras, model, way, folder)
                check(case, new(inputs))
                check(case, new.predict_on_batch(inputs))
    wrong.check()


@pytest.mark.ddl_item("fit.multi_output", shows="behavior")
@pytest.mark.parametrize("form", STRUCTURES)
def test_inputs_in_another_structure_are_those_of_their_names(form, ddl_strategy):
    """A dictionary has names, in any order. A list is refused, or has the order of the inputs of the model."""
    from suites.subject import keras

    wrong = Wrong()
    with ddl_strategy.scope():
        model = built(keras, {"inputs": form, "outputs": "list", "model": "functional"})
    for other in ("list", "tuple", "dict", "sorted dict"):
        if form == "nested" and "dict" in other:
            continue  # has other names
        with wrong.of(other):
            try:
                found = model(STRUCTURES[other](ZOO, ARK))
            except ValueError:
                assert other in ("list", "tuple")
                continue
            in_order = form == "sorted dict" and other in ("list", "tuple")
            given = (ARK, ZOO) if in_order else (ZOO, ARK)
            for part, expected in zip(found, of_case(*given), strict=True):
                np.testing.assert_array_equal(part, expected)
    wrong.check()


def served(model: Any, case: Arguments, folder: Path) -> list[Any]:
    """Return the outputs for a client: an export takes the structure, and a signature has a name for each input."""
    import tensorflow as tf

    given = STRUCTURES[case["inputs"]](tf.constant(ZOO), tf.constant(ARK))
    if case["way"] == "export":
        model.export(str(folder), verbose=False)
        found = tf.saved_model.load(str(folder)).serve(given)
    else:
        tf.saved_model.save(model, str(folder))
        signature = tf.saved_model.load(str(folder)).signatures["serving_default"]
        # Names of inputs without a name are numbered. A set orders them in a function that was loaded.
        names = sorted(signature.structured_input_signature[1])
        flat = (ARK, ZOO) if names == sorted(NAMES) else tf.nest.flatten(given)
        found = signature(**{name: tf.constant(one) for name, one in zip(names, flat, strict=True)})
    return [*tf.nest.flatten(found)]


@pytest.mark.ddl_item("saving.export", shows="behavior")
@pytest.mark.parametrize("way", SERVED)
def test_a_model_of_any_structure_is_served(way, ddl_strategy, tmp_path):
    """A server knows names, so that outputs come in any order."""
    from suites.subject import keras

    wrong = Wrong()
    for number, case in enumerate(pairwise(DIMENSIONS, allowed)):
        if case["way"] == way:
            with wrong.of(case), ddl_strategy.scope():
                found = served(built(keras, case), case, tmp_path / str(number))
                expected = of_case(ZOO, ARK)
                assert any(
                    all(np.array_equal(one, other) for one, other in zip(found, order, strict=True))
                    for order in (expected, expected[::-1])
                ), found
    wrong.check()
