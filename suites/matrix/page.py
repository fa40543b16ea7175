"""Write ``docs/matrix.md`` from the numbers in ``docs/matrix.json``."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

from packaging.version import Version

from suites.coverage import LETTERS
from suites.items import Item, items
from suites.matrix import nightly
from suites.matrix.cells import SUBJECTS
from suites.matrix.environments import ROOT
from suites.matrix.numbers import CODES, NOT_RUN, Numbers, codes_of
from suites.matrix.subjects import differences, pairs

PAGE = ROOT / "docs" / "matrix.md"
_COUNTS = {"pass": "pass", "xfail": "known failures", "fail": "fail", "skip": "skipped", "not run": "not run"}
"""Outcome of a test -> its name on the page."""
_PASS, _KNOWN, _FAIL, _SKIP = (CODES[name] for name in ("pass", "xfail", "fail", "skip"))

INTRODUCTION = """
The [conformance suite](suite.md) over versions of TensorFlow and Keras. `python -m suites.matrix page` generates this
page from [matrix.json](matrix.json), and `python -m suites.matrix run` runs the cells. A run that dies, takes too long
or runs nothing is an error, never a pass.
"""
ABOUT_FAILURES = """
*Known* failures have an entry in `suites/expected_failures.toml`; the others have none yet. The versions are the first
and the last ones with the failure, among the cells that ran.
"""
ABOUT_NIGHTLY = """
What the newest builds of the development versions change. *New*: passes with the newest release, or has no entry.
*Fixed*: a known failure of the newest release that does not happen here.
"""
ABOUT_SUBJECTS = """
Items that fail with one package, under the strategies of these letters, and pass with the other one. Compared:
{compared}.
"""
ABOUT_ITEMS = """
A column is a cell that ran tests of the area: TensorFlow above, Keras below. `✓` all tests of the item pass, `x` known
failure, `F` failure, `s` every test was skipped, `·` no test ran. Letters after `x` and `F` are the strategies that
fail; without letters, all that are tested. The column *under* has all strategies that are tested: {key}.
"""


def page(numbers: Numbers) -> str:
    """Return the whole page as Markdown."""
    cells: Sequence[Numbers] = numbers["cells"]
    names = {cell["id"]: cell["name"] for cell in cells}
    ran = [cell for cell in cells if cell.get("ran")]
    key = ", ".join(f"{letter} {name}" for name, letter in LETTERS.items())
    parts = [
        "# Version matrix",
        f"**{badge(numbers)}**",
        INTRODUCTION,
        *_nightly(numbers, names),
        "## Cells",
        _table(
            ("cell", "tier", "result", "tests", "time"),
            map(_cell_row, (cell for cell in cells if cell["outcome"] not in ("not run", "struck"))),
        ),
        _list("They ran with:", _with(cells)),
        _list("Struck, because the packages forbid the pair:", _struck(cells)),
        _list("Not run:", _not_run(cells)),
        "## Failing tests",
        ABOUT_FAILURES,
        _table(
            ("test", "under", "versions", "why"),
            (_failure_row(row, cells) for row in sorted(numbers["failures"], key=lambda row: row["kind"])),
        ),
        "## Keras 3 and tf_keras",
        _subjects(numbers, ran),
        "## Changed",
        _changed(numbers, names),
        "## Items",
        ABOUT_ITEMS.format(key=f"{key}, - no strategy"),
        *_areas(numbers["items"], ran),
    ]
    return "\n\n".join(part.strip("\n") for part in parts if part) + "\n"


def _nightly(numbers: Numbers, names: dict[str, str]) -> Iterable[str]:
    """Yield the part about nightly builds, which maintainers look at first."""
    if not numbers["nightly"]:
        return
    yield "## Nightly builds"
    yield ABOUT_NIGHTLY
    cells = {cell["id"]: cell for cell in numbers["cells"]}
    for one in numbers["nightly"]:
        cell = cells[one["cell"]]
        beside = f", compared with {one['release']}" if one["release"] else ""
        kinds = Counter(defect["kind"] for defect in one["defects"])
        told = ", ".join(f"{kinds[kind]} {kind}" for kind in nightly.KINDS)
        yield f"### {names[one['cell']]}"
        yield f"{cell['tier']} tier{beside}: {_counted(cell)}. Defects: **{told}**."
        rows = (
            (
                defect["kind"] if defect["known"] else f"**{defect['kind']}**",
                f"`{defect['test'].removeprefix('suites/')}`",
                defect["strategies"],
                defect["number"],
                _with_place(defect["what"] if defect["known"] else _literal(defect["what"]), defect["place"]),
            )
            for defect in one["defects"]
            if defect["kind"] != nightly.STILL
        )
        yield _table(("defect", "test", "under", "tests", "what"), rows)


def _counted(cell: Numbers) -> str:
    return ", ".join(f"{cell['counts'][key]} {name}" for key, name in _COUNTS.items() if cell["counts"][key])


def badge(numbers: Numbers) -> str:
    """Return one line about the newest cell that ran."""
    ran = [cell for cell in numbers["cells"] if cell.get("ran")]
    special = ("nightly", "oldest", "device")
    plain = [cell for cell in ran if cell["subject"] == SUBJECTS[0] and not any(cell.get(name) for name in special)]
    if not plain:
        return "no cell was run"
    newest = max(plain, key=lambda cell: (Version(cell["tensorflow"]), Version(cell["keras"])))
    position = ran.index(newest)
    worst = [_worst(codes_of(text), position) for text in numbers["items"].values()]
    failing = worst.count(_FAIL)
    told = [
        f"{worst.count(_PASS)} of {len(items())} items pass",
        f"{worst.count(_KNOWN)} expected failures",
        *([f"{failing} fail"] if failing else []),
    ]
    state = "" if newest["outcome"] != "error" else f"; the run is an error: {newest['reason']}"
    return f"{newest['name']}: {', '.join(told)} ({newest['tier']} tier{state})"


def _worst(codes: dict[str, str], position: int) -> str:
    here = {text[position] for text in codes.values()}
    return next((code for code in (_FAIL, _KNOWN, _PASS, _SKIP) if code in here), NOT_RUN)


def _cell_row(cell: Numbers) -> Sequence[Any]:
    result = cell["outcome"] if cell["outcome"] == "pass" else f"**{cell['outcome']}**"
    told = f"{result}: {cell['reason']}" if cell["reason"] else result
    spent = f"{cell['seconds']['run']:.0f}\u00a0s" if "run" in cell["seconds"] else ""
    return cell["name"], cell["tier"], told, _counted(cell), spent


def _with(cells: Sequence[Numbers]) -> list[str]:
    """Return a line for the versions of the other packages, with the cells that had them."""
    found = defaultdict(list)
    for cell in cells:
        if cell.get("versions"):
            shown = ", ".join(f"{name} {version}" for name, version in cell["versions"].items())
            oldest = ", oldest dependencies" if cell["id"].endswith("-oldest") else ""
            found[shown].append(f"TF {cell['tensorflow']}{oldest}")
    return [f"{', '.join(dict.fromkeys(names))}: {shown}" for shown, names in found.items()]


def _struck(cells: Sequence[Numbers]) -> list[str]:
    reasons = defaultdict(list)
    for cell in cells:
        if cell["outcome"] == "struck":
            reasons[cell["reason"]].append(cell["name"])
    return [f"{', '.join(names)}: {reason}" for reason, names in reasons.items()]


def _not_run(cells: Sequence[Numbers]) -> list[str]:
    """Return a line for each TensorFlow, with what was not run with it."""
    found = defaultdict(list)
    for cell in cells:
        if cell["outcome"] == "not run":
            tensorflow, _plus, rest = cell["name"].partition(" + ")
            found[tensorflow].append(rest)
    return [f"{tensorflow} with {'; '.join(rest)}" for tensorflow, rest in found.items()]


def _failure_row(row: Numbers, cells: Sequence[Numbers]) -> Sequence[Any]:
    bad = [cell for cell in cells if cell["id"] in row["bad"]]
    tensorflow = _span([cell["tensorflow"] for cell in bad])
    ran = len([cell for cell in cells if cell.get("ran")])
    name = f"`{row['test'].removeprefix('suites/')}`"
    known = row["kind"] == "xfail"
    kind, reason = ("known", row["reason"]) if known else ("**unknown**", _literal(row["reason"]))
    versions = f"{kind}: TF {tensorflow}, {_packages(bad)}; {len(bad)} of {ran} cells, passes in {len(row['good'])}"
    return name, row["strategies"], versions, _with_place(reason, row["place"])


def _with_place(reason: str, place: str) -> str:
    """Return a reason with a link to the issue that tracks it, or to the program that shows it."""
    if not place:
        return reason
    return (
        f"{reason} (<{place}>)" if place.startswith("http") else f"{reason} ([{place.rpartition('/')[2]}](../{place}))"
    )


def _literal(text: str) -> str:
    """Return the text of an exception so that Markdown shows it as it is, with brackets that are no links."""
    if not text.strip():
        return ""
    fence = "`" * (1 + max(map(len, re.findall("`+", text)), default=0))
    space = " " if "`" in text else ""
    return f"{fence}{space}{text}{space}{fence}"


def _span(versions: Iterable[str]) -> str:
    """Return the first and the last of some versions."""
    found = sorted(set(versions), key=Version)
    return found[0] if len(found) == 1 else f"{found[0]} to {found[-1]}"


def _subjects(numbers: Numbers, ran: Sequence[Numbers]) -> str:
    compared = [" and ".join(ran[position]["name"] for position in pair) for pair in pairs(ran)]
    if not compared:
        return "No cell of tf_keras ran beside one of Keras 3 with the same TensorFlow."
    introduction = ABOUT_SUBJECTS.format(compared="; ".join(compared)).strip()
    rows = [(f"`{one.item}`", *one.texts) for one in differences(numbers)]
    header = ("item", "fails with Keras 3 only", "fails with tf_keras only")
    return f"{introduction}\n\n{_table(header, rows)}" if rows else f"{introduction} No item differs."


def _packages(cells: Sequence[Numbers]) -> str:
    """Return the first and the last Keras 3 of some cells, and tf_keras if it is tested in one of them."""
    keras = [cell["keras"] for cell in cells if cell["subject"] == SUBJECTS[0]]
    others = sorted({cell["subject"] for cell in cells} - {SUBJECTS[0]})
    return ", ".join([*([f"Keras {_span(keras)}"] if keras else []), *others])


def _changed(numbers: Numbers, names: dict[str, str]) -> str:
    if not numbers["compared"]:
        return "There are no older results."
    compared = f"Compared with older results: {', '.join(names[cell] for cell in numbers['compared'])}."
    if not numbers["changes"]:
        return f"{compared} Nothing changed."
    shown = ("strategies", "number", "before", "after")
    rows = [
        (names[row["cell"]], f"`{row['test'].removeprefix('suites/')}`", *(row[name] for name in shown))
        for row in numbers["changes"]
    ]
    return f"{compared}\n\n{_table(('cell', 'test', 'under', 'tests', 'before', 'now'), rows)}"


def _areas(codes: dict[str, str], ran: Sequence[Numbers]) -> Iterable[str]:
    areas: dict[str, list[Item]] = defaultdict(list)
    for item in items().values():
        areas[item.area].append(item)
    for area, found in areas.items():
        yield f"### {area}"
        shown = {item.id: codes_of(codes[item.id]) for item in found if item.id in codes}
        texts = [text for of_item in shown.values() for text in of_item.values()]
        chosen = [number for number in range(len(ran)) if any(text[number] != NOT_RUN for text in texts)]
        if shown:
            rows = (_item_row(name, of_item, chosen) for name, of_item in shown.items())
            yield _table(("item", "under", *(_heading(ran[number]) for number in chosen)), rows)
        missing = [f"`{item.id}`" for item in found if item.id not in shown and not item.struck]
        yield f"Not run: {', '.join(missing)}." if missing else ""
        yield _list("", [f"`{item.id}` is struck: {item.struck}" for item in found if item.struck]).lstrip()


def _heading(cell: Numbers) -> str:
    rest = cell["name"].partition(" + ")[2].removeprefix("Keras ")
    rest = rest.replace(", oldest dependencies", "<br>oldest").replace(", one GPU", "<br>GPU")
    return f"{cell['tensorflow']}<br>{rest}"


def _item_row(name: str, codes: dict[str, str], positions: Sequence[int]) -> Sequence[str]:
    tested = "".join(letter for letter, text in codes.items() if set(text) - {NOT_RUN, _SKIP})
    shown = (_shown({letter: text[position] for letter, text in codes.items()}) for position in positions)
    return f"`{name}`", tested, *shown


def _shown(here: dict[str, str]) -> str:
    """Return what a cell of an item shows: one sign, or failures with the letters of their strategies."""
    tested = {letter: code for letter, code in here.items() if code not in (NOT_RUN, _SKIP)}
    if not tested:
        return "s" if _SKIP in here.values() else "·"
    wrong = []
    for code, sign in ((_FAIL, "**F**"), (_KNOWN, "x")):
        letters = "".join(letter for letter, one in tested.items() if one == code)
        if letters:
            wrong.append(sign if len(letters) == len(tested) else f"{sign}\u00a0{letters}")
    return " ".join(wrong) or "✓"


def _list(title: str, lines: Sequence[str]) -> str:
    return "\n".join([title, "", *(f"* {line}" for line in lines)]) if lines else ""


def _table(header: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(_cell(cell) for cell in line)} |" for line in lines)


def _cell(value: Any) -> str:
    return " ".join(str(value).replace("\u00a0", "&nbsp;").split()).replace("|", "\\|")
