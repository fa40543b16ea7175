"""Print summaries of models of every kind with all pairs of options: each layer, its shape and its weights are told."""

from __future__ import annotations

import contextlib
import io
import re
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from suites.parameters.spaces import Arguments, Space, Wrong

pytestmark = pytest.mark.ddl(strategies=["one_device"], keras="keras")

WIDE = 200
"""Length of a line that cuts no name."""
SUMMARY = Space(
    "Model.summary",
    {
        "line_length": (None, 60, WIDE),
        "positions": (None, "given"),
        "print_fn": (None, "given"),
        "expand_nested": (False, True),
        "show_trainable": (False, True),
        "layer_range": (None, "one", "pattern"),
    },
)
Shapes = tuple[Any, ...] | None
"""Shapes of the outputs of a layer, or ``None`` if it has none yet."""


def returning(keras: Any, name: str, make: Callable[[Any], Any]) -> Any:
    """Return a layer without weights that returns a structure."""

    class Own(keras.layers.Layer):  # type: ignore[misc]
        def call(self, inputs: Any) -> Any:
            return make(inputs)

        def compute_output_shape(self, input_shape: Any) -> Any:
            return make(input_shape)

    return Own(name=name)


def functional(keras: Any, *layers: Any, **arguments: Any) -> Any:
    """Return a model of layers one after the other, whose outputs may be structures."""
    outputs = inputs = keras.Input((3,), name="start")
    for layer in layers:
        outputs = layer(outputs)
    return keras.Model(inputs, outputs, **arguments)


def dense(keras: Any, name: str = "dense", **arguments: Any) -> Any:
    return keras.layers.Dense(2, name=name, **arguments)


def shared(keras: Any) -> Any:
    one, other = keras.Input((3,), name="start"), keras.Input((3,), name="other")
    layer = dense(keras)
    return keras.Model([one, other], keras.layers.Add(name="sum")([layer(one), layer(other)]))


def of_a_user(keras: Any, *, called: bool, make: Callable[[Any], Any] | None = None) -> Any:
    """Return a model with a layer, and perhaps one that returns a structure."""

    class Own(keras.Model):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.one = dense(keras)
            self.own = make and returning(keras, "own", make)

        def call(self, inputs: Any) -> Any:
            return self.own(self.one(inputs)) if self.own else self.one(inputs)

    model = Own()
    if called:
        model(keras.Input((3,)))
    return model


def trained(keras: Any) -> Any:
    model = functional(keras, dense(keras))
    model.compile(keras.optimizers.SGD(momentum=0.5), "mse")
    model.optimizer.build(model.trainable_variables)
    return model


STRUCTURES: Mapping[str, tuple[Callable[[Any], Any], int]] = {
    "a dictionary": (lambda x: {"a": x, "b": x}, 2),
    "a dictionary of one": (lambda x: {"a": x}, 1),
    "a list": (lambda x: [x, x], 2),
    "a tuple of one": (lambda x: (x,), 1),
    "a nest": (lambda x: {"a": [x, x], "b": x}, 3),
}
"""What a layer returns, and of how many tensors."""
MODELS: Mapping[str, tuple[Callable[[Any], Any], Mapping[str, tuple[str, Shapes, int]], tuple[int, ...]]] = {
    "functional": (
        lambda keras: functional(keras, dense(keras), keras.layers.Dropout(0.5, name="drop")),
        {"dense": ("Y", (2,), 8), "drop": ("-", (2,), 0)},
        (8, 8, 0),
    ),
    "operation": (
        lambda keras: functional(keras, dense(keras), lambda x: keras.ops.exp(x)),
        {"dense": ("Y", (2,), 8), "exp": ("-", (2,), 0)},
        (8, 8, 0),
    ),
    "frozen": (
        lambda keras: functional(keras, dense(keras, trainable=False), dense(keras, "last")),
        {"dense": ("N", (2,), 8), "last": ("Y", (2,), 6)},
        (14, 6, 8),
    ),
    "statistics": (
        lambda keras: functional(keras, keras.layers.BatchNormalization(name="norm")),
        {"norm": ("Y", (3,), 12)},
        (12, 6, 6),
    ),
    **{
        f"{kind}{name}": (
            lambda keras, begun=begun, make=make: begun(keras, make),
            {"dense": ("Y", (2,), 8), "own": ("-", (2,) * number, 0)},
            (8, 8, 0),
        )
        for name, (make, number) in STRUCTURES.items()
        for kind, begun in (
            ("", lambda keras, make: functional(keras, dense(keras), returning(keras, "own", make))),
            ("of a user, ", lambda keras, make: of_a_user(keras, called=True, make=make)),
        )
    },
    "shared": (shared, {"dense": ("Y", (2,), 8), "sum": ("-", (2,), 0)}, (8, 8, 0)),
    "sequential": (
        lambda keras: keras.Sequential([keras.Input((3,)), dense(keras)]),
        {"dense": ("Y", (2,), 8)},
        (8, 8, 0),
    ),
    "sequential without weights": (
        lambda keras: keras.Sequential([dense(keras)]),
        {"dense": ("-", None, 0)},
        (0, 0, 0),
    ),
    "of a user": (lambda keras: of_a_user(keras, called=True), {"dense": ("Y", (2,), 8)}, (8, 8, 0)),
    "of a user without weights": (
        lambda keras: of_a_user(keras, called=False),
        {"dense": ("-", None, 0)},
        (0, 0, 0),
    ),
    "model in a model": (
        lambda keras: functional(keras, functional(keras, dense(keras), name="inner"), dense(keras, "last")),
        {"inner": ("Y", (2,), 8), "dense": ("Y", (2,), 8), "last": ("Y", (2,), 6)},
        (14, 14, 0),
    ),
    "with an optimizer": (trained, {"dense": ("Y", (2,), 8)}, (8 + 2 + 8, 8, 0)),
}
"""Name -> the model; for each of its layers whether it trains, the sizes of its outputs and its weights; all weights
with those of the optimizer, those that train, and those that do not."""


def text_of(model: Any, case: Arguments, columns: int) -> str:
    """Return the summary that the options ask for. It goes to the function that is given, or to the output."""
    got: list[str] = []
    options = {name: value for name, value in case.items() if value is not None}
    if "positions" in options:
        options["positions"] = [0.3, 0.6, 1.0] if columns == 3 else [0.3, 0.6, 0.8, 1.0]
    if "print_fn" in options:
        options["print_fn"] = lambda text, line_break=True: got.append(str(text))
    if "layer_range" in options:
        name = model.layers[-1].name
        options["layer_range"] = (name, name) if options["layer_range"] == "one" else (name[:2] + ".*", name[:2] + ".*")
    shown = io.StringIO()
    with contextlib.redirect_stdout(shown):
        model.summary(**options)
    assert bool(got) == ("print_fn" in options) == (not shown.getvalue())
    return "".join(got) + shown.getvalue()


def rows(text: str) -> dict[str, list[str]]:
    """Return the cells of each layer, by its name. A cell may have several lines, the first of which has the name."""
    found: dict[str, list[str]] = {}
    name = ""
    for line in text.splitlines():
        cells = [cell.strip() for cell in re.split("[│|]", line)[1:-1]]
        if not cells or "━" in line:
            continue
        begun = re.match(r"(?:└ )?(\w+) \(", cells[0])
        if begun:
            name = begun[1]
            found[name] = cells
        elif name:
            found[name] = [" ".join((one, more)).strip() for one, more in zip(found[name], cells, strict=True)]
    return found


def check(model: Any, case: Arguments, layers: Mapping[str, tuple[str, Shapes, int]], text: str) -> None:
    """Compare the rows of layers. Shorter lines cut names.

    :raises AssertionError: if a row is missing or wrong.
    """
    told = rows(text)
    names = [*model.layers] if not case["layer_range"] else model.layers[-1:]
    expected = {layer.name for layer in names}
    if case["expand_nested"] and "inner" in expected:
        expected |= {"dense"}
    assert expected <= {*told}, (expected, told)
    assert not case["layer_range"] or {*told} & {*layers} <= expected
    for name in expected & {*layers}:
        trains, sizes, weights = layers[name]
        cells = told[name]
        assert [int(size) for size in re.findall(r"\(None, (\d+)\)", cells[1])] == [*(sizes or ())], cells
        assert cells[2].replace(" (unbuilt)", "") == str(weights), cells
        assert not case["show_trainable"] or cells[-1] == trains, cells


@pytest.mark.ddl_item("fit.summary", shows="behavior")
@pytest.mark.parametrize("kind", MODELS)
def test_a_summary_tells_each_layer_and_all_weights(kind, ddl_strategy, monkeypatch):
    """Each layer has the shapes of its outputs, and the number of its weights. Each text goes where it should."""
    from suites.subject import keras

    monkeypatch.setenv("COLUMNS", str(WIDE + 40))
    wrong = Wrong()
    make, layers, (total, trainable, others) = MODELS[kind]
    with ddl_strategy.scope():
        model = make(keras)
    for case in SUMMARY.cases():
        with wrong.of(case):
            text = text_of(model, case, 4 if kind == "shared" else 3)
            for label, number in (("Total", total), ("Trainable", trainable), ("Non-trainable", others)):
                found = re.search(rf"\s{label} params: ([\d,]+)", text)
                assert found, text[-300:]
                assert int(found[1].replace(",", "")) == number, text[-300:]
            if case["line_length"] == WIDE:
                check(model, case, layers, text)
    wrong.check()
