"""The picture of the layers has the parts of the table below it, in the opposite order."""

from __future__ import annotations

import re
from pathlib import Path

TEXT = (Path(__file__).parents[2] / "docs/how-it-works.md").read_text(encoding="utf-8")


def rows_of_picture() -> list[set[str]]:
    picture = TEXT.partition("<!-- picture: layers -->\n```text\n")[2].partition("```")[0]
    return [set(re.findall(r"\w+", row)) for row in re.findall(r"^│[^│]*│([^│]*)│$", picture, re.MULTILINE)]


def parts_of_table() -> list[str]:
    cells = re.findall(r"^\| ((?:`[\w.]+`(?:, )?)+) \|[^|]*\|[^|]*\|$", TEXT, re.MULTILINE)
    return [part for cell in cells for part in re.findall(r"`([\w.]+)`", cell)]


def test_the_picture_has_all_parts() -> None:
    shown = set().union(*rows_of_picture())
    parts = {part.partition(".")[0] for part in parts_of_table()}
    assert parts
    assert parts - shown == set()


def test_the_picture_and_the_table_have_the_same_order() -> None:
    order = [part for part in parts_of_table() if "." not in part]
    rows = [next(index for index, row in enumerate(rows_of_picture()) if part in row) for part in order]
    assert rows == sorted(rows, reverse=True)
