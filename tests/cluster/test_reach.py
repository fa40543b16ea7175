"""Check which names and modules the code of a call can reach."""

from __future__ import annotations

import json
from typing import Any

from pytest_ddl.cluster.state.reach import Reach


class Link:
    def __init__(self, following: Any) -> None:
        self.following = following


def test_a_long_linked_list_is_followed_to_its_end() -> None:
    def last() -> object:
        return json.dumps

    chain = Link(last)
    for _ in range(5000):
        chain = Link(chain)
    reach = Reach(lambda: chain)
    assert "json" in reach.modules
    assert "dumps" in reach.names


def test_each_function_s_names_of_a_module_are_followed() -> None:
    def first() -> object:
        return json.decoder

    def second() -> object:
        return json.encoder

    assert {"json.decoder", "json.encoder"} <= Reach([first, second]).modules
