"""Ask Keras for what is impossible: ``python -m suites.properties.refusing`` writes the table of what it refuses.

It writes only the rows of the groups that are named, if any are.

A question replaces one argument of a call that works, or gives a layer an input that it cannot take. The table
``tables/refusals.json`` has those that Keras 3.15 refuses with a message about it.
"""

from __future__ import annotations

import inspect
import json
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from suites.parameters.classes import classes, needed, parameters
from suites.parameters.spaces import find
from suites.properties.operations import calls_of, mapped, operation, tensors
from suites.properties.test_refused_options import KINDS, SHAPES, cases, dimensions
from suites.properties.test_told_operations import EACH, WITH_NUMPY
from suites.tables.every_layer import LAYERS, Layer
from suites.tables.possible_calls import FUNCTIONS, OBJECTS, methods
from suites.tables.refused_operations import NOT_ASKED

FILE = Path(__file__).parents[1] / "tables" / "refusals.json"
VALUES: Mapping[str, Any] = {
    "0": 0,
    "-1": -1,
    "1.5": 1.5,
    "-0.5": -0.5,
    "two": (2, 1),
    "five": (1, 2, 3, 4, 5),
    "negatives": (-1, -2),
    "word": "no_such",
    "None": None,
}
"""Values that are impossible for many parameters, by the name that the table has for them."""
CONFIGURED = (
    *("layers", "losses", "metrics", "optimizers", "optimizers.schedules", "regularizers", "constraints"),
    *("initializers", "callbacks", "quantizers"),
)
"""Modules of whose classes each argument is asked for."""
SHARED = ("name", "dtype")
TOLD = re.compile(r"\b[Rr]eceived\b|Could not interpret|\b[Ii]nvalid\b|incompatible with the layer")

ROWS = 3

Question = tuple[str, str, str, Callable[[], Any]]
"""Name of a call, its parameter, what the table calls an impossible value, and what must refuse it."""


def refused(parameter: str, word: str, ask: Callable[[], Any]) -> str:
    """Return why a question is not refused with a message about its parameters; the text is empty if it is."""
    names = {name for name in (parameter.partition(" ")[0], *re.findall(r"(\w+)=", word)) if len(name) > 1}
    try:
        ask()
    except (ValueError, TypeError, NotImplementedError) as error:
        message = str(error).partition("Arguments received by")[0]
        about = names | {name.replace("_", " ") for name in names}
        told = TOLD.search(message) or any(re.search(rf"\b{name}\b", message) for name in about)
        return "" if told else f"{type(error).__name__}, not about it: {message[:80]}"
    except Exception as error:
        return f"{type(error).__name__}: {str(error)[:80]}"
    return "accepted"


def members(kind: str) -> list[tuple[str, Any]]:
    """Return the classes of a module, each once."""
    every = classes(kind).items() if kind != "callbacks" else vars(find(kind)).items()
    return [(name, one) for name, one in every if isinstance(one, type) and one.__name__ == name]


def _made(kind: str) -> Iterator[tuple[str, Any, dict[str, Any], list[str]]]:
    for name, one in members(kind):
        known = parameters(one)
        base = needed(one) | {key: make() for key, make in OBJECTS.items() if _wanted(known, key)}
        yield name, one, base, [*known]


def _wanted(known: Mapping[str, inspect.Parameter], name: str) -> bool:
    return name in known and known[name].default is inspect.Parameter.empty


def _calls(group: str) -> Iterator[tuple[str, Callable[..., Any], dict[str, Any], list[str]]]:
    """Yield calls that work: name, function, arguments, and the parameters that are asked for."""
    if group in CONFIGURED:
        yield from _made(group)
    elif group == "methods":
        yield from methods()
    else:
        for name, given in FUNCTIONS[group].items():
            function = find(f"{group}.{name}")
            yield name, function, given(), [*inspect.signature(function).parameters]


def _arguments(group: str) -> Iterator[Question]:
    for name, function, given, asked in _calls(group):
        for parameter in asked:
            if parameter not in SHARED:
                for word, value in VALUES.items():
                    arguments = {**given, parameter: value}
                    yield name, parameter, word, lambda ask=function, arguments=arguments: ask(**arguments)


def _of(way: str, shape: Any) -> Any:
    """Return an input, or a list of them, as a symbol or an array."""
    from suites.subject import keras

    if isinstance(shape, list):
        return [_of(way, one) for one in shape]
    return keras.KerasTensor(shape) if way == "symbol" else np.ones(shape, "float32")


def wrong_shapes(layer: Layer) -> Iterator[tuple[str, list[tuple[int, ...]]]]:
    """Yield inputs of another rank, of another size, and another number of them."""
    whole = (ROWS, *layer.shape)
    for rank in {1, len(whole) - 1, len(whole) + 1}:
        yield f"rank{rank}", [(*whole, 2)[:rank]] * layer.inputs
    for place in range(layer.inputs):
        for axis in (1, len(whole) - 1):
            longer = tuple(size + (number == axis) for number, size in enumerate(whole))
            yield f"input{place}longer{axis}", [longer if number == place else whole for number in range(layer.inputs)]
    if layer.together:
        yield from ((f"{number}inputs", [whole] * number) for number in (0, 1, layer.inputs + 1))


def _inputs() -> Iterator[Question]:
    """Give layers inputs that they cannot take, before they are built with others and after it."""
    from suites.subject import keras

    for layer in LAYERS:
        if layer.scale > 1:
            continue
        built = layer.make(keras, "float32")
        layer.call(built, _of("array", (ROWS, *layer.shape)))
        for word, shapes in wrong_shapes(layer):
            for way in ("symbol", "array"):

                def ask(layer: Layer = layer, made: Any = built, shapes: Any = shapes, way: str = way) -> None:
                    made = made or layer.make(keras, "float32")
                    made(_of(way, shapes)) if layer.together else made(*_of(way, shapes))

                yield str(layer), f"{way} after others", word, ask
                if way == "symbol":
                    yield str(layer), way, word, lambda ask=ask: ask(made=None)


def _together() -> Iterator[Question]:
    """Give layers pairs of options that may not go together."""
    for kind in KINDS:
        shape = (ROWS, *([3] if "LSTM" in kind else []), *SHAPES[dimensions(kind)])
        for case in cases(kind):
            word = ",".join(f"{name}={value}" for name, value in case.items()).replace(" ", "")
            for way in ("symbol", "array"):

                def ask(kind: str = kind, case: Any = case, x: Any = shape, way: str = way) -> Any:
                    given = {"training": True} if "rate" in case else {}
                    return find(f"layers.{kind}")(**case)(_of(way, x), **given)

                yield kind, way, word, ask


def _operations() -> Iterator[Question]:
    """Give operations impossible options, for symbols and for arrays."""
    from suites.subject import keras

    for name, one in EACH.items():
        asked: set[str] = set()
        first = 1 if name in WITH_NUMPY else None
        function = operation(one)
        for given, options in calls_of(one, all_of=True):
            several = len(given) if first is None else first
            symbols = mapped(lambda array: keras.KerasTensor(array.shape, dtype=array.dtype.name), given[:several])
            for option in {*options} - asked - {option for known, option in NOT_ASKED if known == name}:
                asked.add(option)
                for word, value in VALUES.items():
                    for way, inputs in (("symbol", (*symbols, *given[several:])), ("array", tensors(given))):
                        arguments = {**options, option: value}

                        def ask(function: Any = function, inputs: Any = inputs, options: Any = arguments) -> Any:
                            return function(*inputs, **tensors(options))

                        yield name, f"{option} of {way}", word, ask


def _changed(array: Any) -> Iterator[tuple[str, Any]]:
    yield "higher", array[None]
    if array.ndim and array.shape[0]:
        yield "lower", array[0]
        yield "longer", np.concatenate([array, array[..., :1]], axis=-1)


def _shapes() -> Iterator[Question]:
    """Give operations, losses and metrics an argument of another shape than its call needs."""
    from suites.subject import keras

    calls: list[tuple[str, Any, Any, Any]] = [
        (name, operation(one), *next(iter(calls_of(one, all_of=True)), ((), {}))) for name, one in EACH.items()
    ]
    pair = np.eye(4, 3, dtype="float32"), np.full((4, 3), 0.25, "float32")
    for kind in ("losses", "metrics"):
        for name, one, given, _ in _made(kind):
            if kind == "losses":
                calls.append((f"{kind}.{name}", one(**given) if name != "Loss" else None, pair, {}))
            elif name not in ("Metric", "Mean", "Sum", "MeanMetricWrapper"):
                calls.append((f"{kind}.{name}", one(**given).update_state, pair, {}))
    for name, function, given, options in calls:
        for place, argument in enumerate(given):
            if not isinstance(argument, np.ndarray) or function is None:
                continue
            for word, other in _changed(argument):
                inputs = (*given[:place], other, *given[place + 1 :])
                yield name, f"argument{place} array", word, lambda f=function, x=inputs, o=options: f(*tensors(x), **o)
                if "." in name or (place and name in WITH_NUMPY):
                    continue
                several = 1 if name in WITH_NUMPY else len(inputs)
                symbols = mapped(lambda one: keras.KerasTensor(one.shape, dtype=one.dtype.name), inputs[:several])
                whole = (*symbols, *inputs[several:])
                yield name, f"argument{place} symbol", word, lambda f=function, x=whole, o=options: f(*x, **tensors(o))


def questions(group: str) -> Iterator[Question]:
    """Yield each question of a group."""
    special = {"inputs": _inputs, "together": _together, "operations": _operations, "shapes": _shapes}
    yield from special[group]() if group in special else _arguments(group)


GROUPS = (*CONFIGURED, "methods", *FUNCTIONS, "inputs", "together", "operations", "shapes")


def load() -> Mapping[str, Mapping[str, Mapping[str, str]]]:
    """Return group -> name of a call -> parameter -> names of the values that are refused."""
    found: Mapping[str, Mapping[str, Mapping[str, str]]] = json.loads(FILE.read_text(encoding="utf-8"))
    return found


def fewer(words: list[str]) -> str:
    """Leave out values of a type that are all refused, except the first of them."""
    for alike in (("0", "-1", "1.5", "-0.5"), ("two", "five", "negatives")):
        if {*alike} <= {*words}:
            words = [word for word in words if word not in alike[1:]]
    return " ".join(words)


def record(groups: Sequence[str]) -> None:
    """Write the table of what the installed Keras refuses, or the rows of some groups."""
    found = {**(load() if FILE.is_file() else {})}
    for group in groups:
        told: dict[str, dict[str, list[str]]] = {}
        for name, parameter, word, ask in questions(group):
            its = told.setdefault(name, {})
            if not refused(parameter, word, ask):
                its.setdefault(parameter, []).append(word)
        found[group] = {name: {key: fewer(words) for key, words in its.items()} for name, its in told.items()}
    lines = (
        f' "{group}": {{\n'
        + ",\n".join(f"  {json.dumps(name)}: {json.dumps(its)}" for name, its in told.items())
        + "\n }"
        for group, told in found.items()
    )
    FILE.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


if __name__ == "__main__":
    record(sys.argv[1:] or GROUPS)
    sys.exit(0)
