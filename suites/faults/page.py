"""Write ``docs/recovery.md`` from the catalogue of recipes and the recorded verdicts."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Sequence
from pathlib import Path

from suites.faults import verdicts
from suites.faults.catalogue import EXACT, RECIPES, Recipe
from suites.known_failures import FILE, KnownFailure, load

PAGE = Path(__file__).parents[2] / "docs" / "recovery.md"
_INTRODUCTION = """\
# Recovery

The documentation of TensorFlow and Keras describes ways to save a training and to restore it after a failure. Each of
them is a test of the [conformance suite](suite.md). The training is [interrupted](faults.md) at some points, and
started again:

```sh
pytest suites/faults --ddl-strategy=all
pytest suites/faults --ddl-strategy=all --ddl-tier=full
```

The full tier interrupts every task at every point. The table has the verdicts at the points of the default tier, at
which the chief is interrupted. [Faults](faults.md#verdicts) says what a verdict means. A training has 6 steps. It ran
with {versions}. The time is that of all faults, on a busy machine with two cores.

`python -m suites.faults record` runs the recipes, writes their verdicts to `suites/faults/verdicts.json`, and generates
this page. `python -m suites.faults record NAME` runs one of them.
"""
_DEFECTS = """\
## Defects

A verdict that the documentation does not allow has an entry in `suites/expected_failures.toml`. The programs show the
defects without pytest-ddl.
"""
_SENTENCES = """\
## What the documentation says

Every recipe must end with the bits of the uninterrupted training (`exact`), unless the documentation says that
something is lost.
"""


def page() -> str:
    """Return the whole page as Markdown."""
    recorded = verdicts.load()
    # Those of all versions, because the page must not depend on what is installed.
    known = load(FILE.read_text(encoding="utf-8"))
    versions = ", ".join(f"{name} {number}" for name, number in recorded.get("versions", {}).items())
    rows, defects = [], {}
    for name, recipe in RECIPES.items():
        for strategy, found in recorded["recipes"].get(name, {}).items():
            entries = [verdicts.entry_of(trial, recipe, strategy, known) for trial in found["trials"]]
            shown = {entry.repro or entry.link: entry for entry in entries if entry is not None}
            defects |= shown
            wrong = ", ".join([*map(_defect, shown), *_others(recipe, found["trials"], entries)])
            counts = ", ".join(verdicts.summary(found["trials"]))
            rows.append((f"`{name}`", f"`{strategy}`", counts, wrong, f"{found['seconds']} s"))
    sentences = ((f"`{name}`", _first_line(one), _quoted(one)) for name, one in RECIPES.items())
    parts = (
        _INTRODUCTION.format(versions=versions),
        _table(("recipe", "strategy", "verdicts", "defect, or what is lost", "time"), rows),
        _DEFECTS,
        _table(("program", "what is wrong"), ((_defect(key), f"{one.reason}") for key, one in defects.items())),
        _SENTENCES,
        _table(("recipe", "what the program does", "sentence"), sentences),
    )
    return "\n".join(parts)


def _first_line(recipe: Recipe) -> str:
    return (inspect.getdoc(recipe.program) or "").partition("\n")[0].replace("``", "`")


def _quoted(recipe: Recipe) -> str:
    return f"“{recipe.sentence}” [{recipe.link.rstrip('/').rpartition('/')[2]}]({recipe.link})"


def _defect(name: str) -> str:
    if name.startswith("http"):
        return f"<{name}>"
    return f"`suites/repros/{name}.py`"


def _others(
    recipe: Recipe, trials: Sequence[verdicts.Verdicts], entries: Sequence[KnownFailure | None]
) -> Iterable[str]:
    """Yield what is said about verdicts that no entry explains."""
    unexplained = [
        trial for trial, entry in zip(trials, entries, strict=True) if entry is None and trial["verdict"] != EXACT
    ]
    if any(recipe.allows(trial["verdict"], trial["cause"]) for trial in unexplained):
        yield "the position in the data, as the documentation says"
    if not all(recipe.allows(trial["verdict"], trial["cause"]) for trial in unexplained):
        yield "**not known yet**"


def _table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |\n" for line in lines)
