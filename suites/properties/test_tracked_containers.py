"""Change lists, dictionaries and sets of a layer in each way of Python, and compare what the layer has tracked."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from itertools import product
from typing import Any

import pytest

from suites.parameters.spaces import Wrong

pytestmark = [
    pytest.mark.ddl(strategies=["one_device"], keras="keras"),
    pytest.mark.ddl_item("fit.subclass", shows="values", keras=">=3.15"),
]

Change = Callable[[Any, Any], Any]
"""Change of a container, which gets it and new variables."""
LIST: Mapping[str, Change] = {
    "append": lambda c, new: c.append(new[0]),
    "insert first": lambda c, new: c.insert(0, new[0]),
    "insert before the last": lambda c, new: c.insert(-1, new[0]),
    "extend": lambda c, new: c.extend(new),
    "remove the second": lambda c, new: c.remove(c[1]),
    "pop": lambda c, new: c.pop(),
    "pop the first": lambda c, new: c.pop(0),
    "pop from the end": lambda c, new: c.pop(-2),
    "delete": lambda c, new: c.__delitem__(1),
    "delete the last": lambda c, new: c.__delitem__(-1),
    "clear": lambda c, new: c.clear(),
    "reverse": lambda c, new: c.reverse(),
}
DICT: Mapping[str, Change] = {
    "set": lambda c, new: c.__setitem__("new", new[0]),
    "update": lambda c, new: c.update({"new": new[0], "other": new[1]}),
    "pop": lambda c, new: c.pop("b"),
    "pop with a default": lambda c, new: c.pop("b", None),
    "pop what is missing": lambda c, new: c.pop("none", 7),
    "popitem": lambda c, new: c.popitem(),
    "clear": lambda c, new: c.clear(),
}
SET: Mapping[str, Change] = {
    "add": lambda c, new: c.add(new[0]),
    "update": lambda c, new: c.update(new),
    "remove": lambda c, new: c.remove(next(iter(c))),
    "pop": lambda c, new: c.pop(),
    "clear": lambda c, new: c.clear(),
}
CHANGES = {"list": LIST, "dict": DICT, "ordered": DICT, "set": SET}
UNTRACKED: Mapping[str, tuple[str, Change]] = {
    "a list, an item": ("list", lambda c, new: c.__setitem__(0, new[0])),
    "a list, a slice": ("list", lambda c, new: c.__setitem__(slice(0, 1), new)),
    "a list, a deleted slice": ("list", lambda c, new: c.__delitem__(slice(0, 2))),
    "a dictionary, setdefault": ("dict", lambda c, new: c.setdefault("new", new[0])),
    "a dictionary, a deleted item": ("dict", lambda c, new: c.__delitem__("a")),
    "a set, discard": ("set", lambda c, new: c.discard(next(iter(c)))),
}
"""Ways that Keras 3.15 does not follow."""


def made(kind: str, parts: Any) -> Any:
    if kind in ("list", "set"):
        return [*parts] if kind == "list" else {*parts}
    named = zip("abc", parts, strict=True)
    return dict(named) if kind == "dict" else OrderedDict(named)


class Part:
    """Part of Python's own container, in the place of a variable or layer."""

    def __init__(self, number: int) -> None:
        self.number = number


def compare(kind: str, change: Change, item: str) -> None:
    """Change a container of a layer, and the same one of Python."""
    from suites.subject import keras

    variables = [keras.Variable([float(number)] * 2) for number in range(6)]
    values: list[Any] = variables
    if item == "layers":
        values = [keras.layers.Layer() for _ in variables]
        for one, variable in zip(values, variables, strict=True):
            one.weight = variable
    numbers = {id(one): number for number, one in enumerate(values)}
    parts = [Part(number) for number in range(6)]
    layer, own = keras.layers.Layer(), made(kind, parts[:3])
    layer.before, layer.held = values[5], made(kind, values[:3])
    wanted, found = change(own, parts[3:5]), change(layer.held, values[3:5])

    def shown(tree: Any) -> Any:
        if isinstance(tree, Mapping):
            return [(key, shown(one)) for key, one in tree.items()]
        if isinstance(tree, (list, tuple)):
            return [shown(one) for one in tree]
        return tree.number if isinstance(tree, Part) else numbers.get(id(tree), tree)

    if kind == "set":
        assert len(layer.held) == len(own), f"{len(layer.held)} parts instead of {len(own)}"
    else:
        assert shown(layer.held) == shown(own), f"{shown(layer.held)} instead of {shown(own)}"
        assert shown(found) == shown(wanted), f"returned {shown(found)} instead of {shown(wanted)}"
    held = layer.held.values() if isinstance(own, Mapping) else layer.held
    due = sorted([*(numbers[id(one)] for one in held), 5])
    places = {id(one): number for number, one in enumerate(variables)}
    tracked = sorted(places[id(one)] for one in layer.variables)
    assert tracked == due, f"variables {tracked} are tracked instead of {due}"


@pytest.mark.parametrize(
    ("kind", "item"),
    # A set takes no variables: they have no hash.
    [pair for pair in product(CHANGES, ("variables", "layers")) if pair != ("set", "variables")],
)
def test_a_container_tracks_what_it_has(kind, item, ddl_strategy):
    wrong = Wrong()
    for name, change in CHANGES[kind].items():
        with wrong.of(name):
            compare(kind, change, item)
    wrong.check()


@pytest.mark.parametrize("name", UNTRACKED)
def test_a_container_tracks_each_change(name, ddl_strategy):
    compare(*UNTRACKED[name], "layers")
