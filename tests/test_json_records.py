"""Records through JSON: each type comes back as it was, and data that does not fit is refused with its place."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any, ClassVar

import pytest

from pytest_ddl.json_records import JsonRecord, RecordError, to_plain


class Color(str, Enum):
    RED = "red"


@dataclass(frozen=True)
class Inner:
    name: str
    sizes: tuple[int, ...] = ()


@dataclass(frozen=True)
class Outer(JsonRecord):
    DERIVED: ClassVar = ("double",)

    count: int
    share: float
    inner: Inner | None = None
    many: tuple[Inner, ...] = ()
    pair: tuple[int, float] = (0, 0.0)
    steps: Mapping[int, tuple[float | None, ...]] = field(default_factory=dict)
    names: list[str] = field(default_factory=list)
    color: Color = Color.RED
    is_new: bool = False
    free: Any = None

    @property
    def double(self) -> int:
        return 2 * self.count


FULL = Outer(
    1,
    0.5,
    Inner("a", (1, 2)),
    (Inner("b"),),
    (3, 0.25),
    {7: (1.5, None)},
    ["x"],
    Color.RED,
    is_new=True,
    free={"k": [1, "two"]},
)


def through_json(one: Outer) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(json.dumps(one.as_json(), allow_nan=False))
    return found


def test_a_record_comes_back_as_it_was() -> None:
    again = Outer.from_json(through_json(FULL))
    assert again == FULL
    assert again.inner is not None
    assert isinstance(again.inner.sizes, tuple)
    assert isinstance(again.color, Color)


def test_derived_values_are_written_and_not_read() -> None:
    assert through_json(FULL)["double"] == 2


def test_fields_with_a_default_may_be_missing() -> None:
    assert Outer.from_json({"count": 1, "share": 2}) == Outer(1, 2)


def test_a_number_that_json_does_not_have_is_nan_again_only_where_a_number_must_stand() -> None:
    again = Outer.from_json(through_json(replace(FULL, share=math.inf, steps={1: (math.nan,)})))
    assert math.isnan(again.share)
    assert again.steps == {1: (None,)}


def test_records_inside_other_data_are_written_too() -> None:
    assert to_plain({"one": [Inner("a")]}) == {"one": [{"name": "a", "sizes": []}]}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"more": 1}, "Outer has the unknown field 'more'"),
        ({"inner": {}}, "Outer.inner lacks the field 'name'"),
        ({"inner": {"name": "a", "more": 1}}, "Outer.inner has the unknown field 'more'"),
        ({"many": [{"name": "a"}, 7]}, "Outer.many[1] is int 7, and must be an object"),
        ({"count": "1"}, "Outer.count is str '1', and must be int"),
        ({"count": True}, "Outer.count is bool True, and must be int"),
        ({"count": None}, "Outer.count is NoneType None, and must be int"),
        ({"share": "1"}, "Outer.share is str '1', and must be float"),
        ({"pair": [1]}, "Outer.pair is a list of 1, and must be tuple[int, float]"),
        ({"pair": "ab"}, "Outer.pair is str 'ab', and must be tuple[int, float]"),
        ({"steps": {"x": []}}, "Outer.steps has the name 'x', and must have names of the type int"),
        ({"steps": []}, "Outer.steps is a list of 0, and must be "),
        ({"names": {}}, "Outer.names is dict {}, and must be list[str]"),
        ({"color": "blue"}, "Outer.color is str 'blue', and must be Color"),
        ({"is_new": 1}, "Outer.is_new is int 1, and must be bool"),
    ],
)
def test_data_that_does_not_fit_is_refused_with_its_place(change: dict[str, Any], message: str) -> None:
    with pytest.raises(RecordError) as refused:
        Outer.from_json({**through_json(FULL), **change})
    assert str(refused.value).startswith(message)


def test_what_is_no_object_and_what_lacks_a_field_is_refused() -> None:
    with pytest.raises(RecordError, match="Outer is list"):
        Outer.from_json([])
    with pytest.raises(RecordError, match="Outer lacks the field 'share'"):
        Outer.from_json({"count": 1})


def test_fields_of_another_version_are_left_out_on_request() -> None:
    data = {**through_json(FULL), "later": 1, "inner": {"name": "a", "sizes": [1, 2], "later": 1}}
    assert Outer.from_json(data, other_version=True) == FULL
