"""Write the index of the pages of a run: the failed comparisons as cards, and the others as a list."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from html import escape

from pytest_ddl.pages.facts import UNKNOWN, Facts
from pytest_ddl.pages.page import rules
from pytest_ddl.web.look import document

_WORDS = {"pass": "passed", "inconclusive": "inconclusive", "known": "known behavior", "fail": "failed"}


def render_index(failed: Sequence[Facts], others: Sequence[Facts]) -> str:
    """Return the index as HTML.

    :param failed: comparisons with a page.
    :param others: comparisons without one.
    """
    body = (
        f"<header><h1>Comparisons with one device <span>{escape(_tally(failed, others))}</span></h1></header><main>"
        f"{_cards(failed)}{_list(others)}</main><footer><p>Written by pytest-ddl.</p></footer>"
    )
    return document("Comparisons with one device", body, rules())


def _tally(failed: Sequence[Facts], others: Sequence[Facts]) -> str:
    counts = Counter(_WORDS.get(facts.verdict, facts.verdict) for facts in others)
    total = len(failed) + len(others)
    if not total:
        return "no test compared anything"
    if counts["passed"] == total:
        return f"all {total} passed" if total > 1 else "the only one passed"
    parts = [f"{len(failed)} failed"] if failed else []
    return ", ".join([*parts, *(f"{count} {word}" for word, count in sorted(counts.items(), reverse=True))])


def _cards(failed: Sequence[Facts]) -> str:
    ordered = sorted(
        failed, key=lambda facts: (facts.cause is None, facts.cause == UNKNOWN, facts.cause or "", facts.test)
    )
    cards = "".join(map(_card, ordered))
    return f'<ul class="changes">{cards}</ul>' if cards else ""


def _card(facts: Facts) -> str:
    cause = "inconclusive" if facts.cause is None else "cause not known" if facts.cause == UNKNOWN else facts.cause
    where = [
        f"step {facts.step}" if facts.step is not None else "",
        facts.variable or "",
        f"replica {facts.replica}" if facts.replica is not None else "",
        f"{facts.file}:{facts.line}" if facts.file else "",
    ]
    fix = f'<p class="why">{escape(facts.fix)}</p>' if facts.fix else ""
    kind = "candidate" if facts.cause is None else "confirmed"
    nth = f" (comparison {facts.number})" if facts.number > 1 else ""
    return (
        f'<li class="{kind}"><p><a href="{escape(facts.page, quote=True)}"><b>{escape(cause)}</b></a> '
        f"<small>{escape(facts.strategy)}</small></p>"
        f"<p><code>{escape(facts.test)}</code>{nth}</p>"
        f"<p>{escape(', '.join(filter(None, where)) or facts.headline)}</p>{fix}</li>"
    )


def _list(others: Sequence[Facts]) -> str:
    if not others:
        return ""
    rows = "".join(
        f'<tr><th scope="row"><code>{escape(facts.test)}</code></th><td>{escape(facts.strategy)}</td>'
        f"<td>{_WORDS.get(facts.verdict, escape(facts.verdict))}</td></tr>"
        for facts in others
    )
    return (
        '<section aria-labelledby="others-title"><h2 id="others-title">Without a page</h2>'
        f'<details class="table"><summary>{len(others)} comparison{"s" if len(others) > 1 else ""}</summary>'
        '<div class="scroll"><table class="checks"><thead><tr><th scope="col">test</th><th scope="col">strategy</th>'
        f'<th scope="col">verdict</th></tr></thead><tbody>{rows}</tbody></table></div></details></section>'
    )
