"""Check which changes in place are found, and that nothing else counts as one."""

from __future__ import annotations

import argparse
import copy
import dataclasses
import datetime
import functools
import itertools
import random
from collections import UserDict, deque
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pytest_ddl.cluster import parameters
from pytest_ddl.cluster.state import remembered
from pytest_ddl.cluster.state.remembered import _TRACED_ITEMS, Remembered


class Options:
    def __init__(self) -> None:
        self.rate = 1
        self.inner = {"a": [1]}


class Slotted:
    __slots__ = ("rate",)

    def __init__(self) -> None:
        self.rate = 1


class Private:
    __slots__ = ("__rate",)

    def __init__(self) -> None:
        self.__rate = 1

    def change(self) -> None:
        self.__rate += 1


def counting(calls: list[int] = []) -> None:  # noqa: B006
    calls.append(1)


def _large() -> dict[int, int]:
    return {number: number for number in range(1000)}


@pytest.mark.parametrize(
    ("make", "change"),
    [
        (lambda: {"a": 1}, lambda value: value.update(a=2)),
        (lambda: {"a": {"b": [1]}}, lambda value: value["a"]["b"].append(2)),
        (lambda: [1, 2], lambda value: value.reverse()),
        (lambda: {1, 2}, lambda value: value.discard(1)),
        (lambda: deque([1]), lambda value: value.append(2)),
        (_large, lambda value: value.update({5: 6})),
        (Options, lambda value: setattr(value, "rate", 2)),
        (Options, lambda value: value.inner["a"].append(2)),
        (Slotted, lambda value: setattr(value, "rate", 2)),
        (lambda: np.zeros(5), lambda value: value.fill(1)),
        (lambda: np.zeros((3, 3)), lambda value: value.__setitem__((2, 2), 1)),
        (lambda: {"rng": np.random.default_rng(1)}, lambda value: value["rng"].normal()),
        (lambda: [random.Random(1)], lambda value: value[0].random()),
        (itertools.count, next),
        (lambda: counting, lambda value: value()),
        (lambda: lambda: None, lambda value: setattr(value, "calls", 1)),
        (lambda: argparse.Namespace(rate=1), lambda value: setattr(value, "rate", 2)),
        (lambda: UserDict(rate=1), lambda value: value.update(rate=2)),
        (lambda: functools.partial(lambda calls=[]: calls.append(1)), lambda value: value()),
        (Private, lambda value: value.change()),
        (lambda: [np.random.RandomState(1)], lambda value: value[0].normal()),
        (lambda: ([1], 2), lambda value: value[0].append(2)),
        (lambda: [1, 2.0], lambda value: value.__setitem__(0, True)),
        (lambda: {"a": 1, "b": 2}, lambda value: value.update(a=value.pop("a"))),
        (lambda: np.array([[1], None], object), lambda value: value[0].append(2)),
        (lambda: bytearray(b"a"), lambda value: value.append(1)),
        (lambda: list(range(_TRACED_ITEMS + 1)), lambda value: value.__setitem__(7, 8)),
        (lambda: [Options] * _TRACED_ITEMS + [Options()], lambda value: value[-1].inner["a"].append(2)),
    ],
)
def test_a_change_in_place_is_seen(make: Callable[[], Any], change: Callable[[Any], object]) -> None:
    value = make()
    known = Remembered.of(value)
    assert known.holds(value)
    change(value)
    assert not known.holds(value)


@pytest.mark.parametrize("value", [float("nan"), object(), print, {1: {2: [object()]}}, Options(), np.arange(3), int])
def test_what_is_only_looked_at_is_unchanged(value: Any) -> None:
    known = Remembered.of(value)
    repr(value)
    assert known.holds(value)


@pytest.mark.parametrize(
    "value",
    [{"a": [1, {2}, (3, [4])]}, Options(), Slotted(), counting, np.zeros(3), random.Random(1), functools.partial(int)],
)
def test_what_is_unchanged_is_not_described_again(value: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    found = Remembered.of([value])
    monkeypatch.setattr(remembered._Walk, "whole", lambda *_: pytest.fail("described again"))
    assert found.holds(found.value)


def test_a_value_that_contains_itself_has_an_end() -> None:
    value: list[Any] = []
    value.append(value)
    known = Remembered.of(value)
    assert known.holds(value)
    value.append(1)
    assert not known.holds(value)


class Node:
    def __init__(self, *below: Any, into: Callable[[Any], Any] = list) -> None:
        self.rate = 1
        self.below = into(below)


@pytest.mark.parametrize("into", [list, tuple, set, lambda below: dict(enumerate(below))])
def test_what_many_paths_reach_is_described_once(into: Callable[[Any], Any]) -> None:
    """Two nodes in each of 40 rows refer to both nodes of the next row: 2**40 paths lead to the lowest one."""
    lowest = Node()
    row = [lowest, Node()]
    for _ in range(40):
        row = [Node(*row, into=into) for _ in row]
    known = Remembered.of(row)
    assert known.holds(row)
    lowest.rate = 2
    assert not known.holds(row)


def test_the_same_object_twice_is_not_an_equal_one() -> None:
    shared, alone = [Options()], [Options()]
    value = [shared, shared]
    known = Remembered.of(value)
    value[1] = alone
    assert not known.holds(value)
    value[1] = shared
    assert known.holds(value)


def test_a_long_linked_list_has_an_end() -> None:
    value = Node()
    for _ in range(5000):
        value = Node(value)
    known = Remembered.of(value)
    assert known.holds(value)
    value.below[0].rate = 2
    assert not known.holds(value)


def test_an_object_is_described_however_long_the_first_path_to_it_is() -> None:
    nodes = [Node()]
    for _ in range(300):
        nodes.append(Node(nodes[-1]))
    value = nodes[::-1]
    known = Remembered.of(value)
    nodes[0].rate = 2
    assert not known.holds(value)


def test_deep_containers_are_described_too() -> None:
    lowest: list[Any] = [1]
    value = lowest
    for _ in range(3000):
        value = [value]
    known = Remembered.of(value)
    assert known.holds(value)
    lowest[0] = 2
    assert not known.holds(value)


@pytest.mark.parametrize(
    "item", [Decimal("0.1"), np.float32(0.1), Path("a"), Fraction(1, 3), datetime.date(2020, 1, 1)]
)
def test_values_are_compared_by_value(item: Any) -> None:
    value = {"rate": item}
    known = Remembered.of(value)
    value["rate"] = copy.deepcopy(item)
    assert known.holds(value)
    value["rate"] = type(item)("2") if not isinstance(item, datetime.date) else datetime.date(2021, 1, 1)
    assert not known.holds(value)


def test_equal_copies_of_containers_are_equal() -> None:
    one = Node()
    row = [one, [one]]
    value = [row, row, {(1, one), (2, one)}]
    known = Remembered.of(value)
    assert known.holds([[one, [one]], [one, [one]], {(2, one), (1, one)}])
    assert not known.holds([[one, [one]], [one, [Node()]], {(2, one), (1, one)}])


def test_order_in_a_set_is_no_content() -> None:
    items = [Node(), Node(), (1, Node()), "text", 5]
    value = set(items)
    known = Remembered.of([value, items[0]])
    others = [Node() for _ in range(100)]
    value.update(others)
    value.difference_update(others)
    assert known.holds([value, items[0]])


@dataclasses.dataclass
class Point:
    x: float
    cache: float = dataclasses.field(default=0.0, compare=False)


def _words(value: Any) -> str:
    item = type("Item", (), {"callspec": type("Spec", (), {"params": {"x": value}})})
    return parameters.in_words(item)["x"]


@pytest.mark.parametrize(
    ("one", "other"),
    [(0.1, 0.2), ([1, {"a": 1}], [1, {"a": 2}]), (Point(1.0), Point(2.0)), (np.zeros(3), np.ones(3)), (1, True)],
)
def test_other_parameters_are_told_apart(one: Any, other: Any) -> None:
    text = parameters.difference({"x": _words(one)}, [(0, {"x": _words(one)}), (1, {"x": _words(other)})])
    assert text is not None
    assert text.startswith("the parameter x is ")
    assert "on rank 1" in text
    assert "in the pytest process" in text
    assert "fixed seed" in text


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (float("nan"), float("nan")),
        (Options(), Options()),
        ([object()], [object()]),
        (Point(1.0, 2.0), Point(1.0, 3.0)),
        ({"b", "a"}, {"a", "b"}),
        (lambda: 1, lambda: 2),
    ],
)
def test_equal_parameters_and_those_that_cannot_be_compared_are_none(one: Any, other: Any) -> None:
    assert parameters.difference({"x": _words(one)}, [(0, {"x": _words(other)})]) is None
