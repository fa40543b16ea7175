"""Write the page of one comparison: one file with style and pictures inside, which needs neither server nor script."""

from __future__ import annotations

from html import escape
from importlib.resources import files

import numpy as np

from pytest_ddl.equivalence.findings import CheckResult, Outcome
from pytest_ddl.equivalence.verdict.report import Report
from pytest_ddl.pages.collectives import CAUSES, collectives
from pytest_ddl.pages.differences import differences
from pytest_ddl.pages.distances import measured
from pytest_ddl.pages.examples import examples
from pytest_ddl.pages.head import head, others, title
from pytest_ddl.pages.heat_map import heat_map
from pytest_ddl.pages.losses import losses
from pytest_ddl.pages.picture import Picture
from pytest_ddl.web.look import document
from pytest_ddl.web.units import DASH

_OUTCOMES = {
    Outcome.PASS: "✓ pass",
    Outcome.FAIL: "✗ FAIL",
    Outcome.INCONCLUSIVE: "? inconclusive",
    Outcome.NOT_APPLICABLE: f"{DASH} not applicable",
}


def rules() -> str:
    """Return the rules that pages of comparisons share beside the look of all pages."""
    return files("pytest_ddl.pages").joinpath("page.css").read_text(encoding="utf-8")


# Records may hold infinite values. NumPy's warnings about them would be errors under pytest -W error.
@np.errstate(over="ignore", invalid="ignore", divide="ignore")
def render(report: Report, test: str, *, index: str = "") -> str:
    """Return the page as HTML.

    :param test: name of the test, for example its node id.
    :param index: address of the index; empty if there is none.
    """
    found = measured(report)
    pictures = [differences(found), heat_map(report, found), collectives(report), examples(report), losses(report)]
    pictures.sort(key=lambda picture: picture.id != _most_telling(report))
    back = f'<p class="back"><a href="{escape(index, quote=True)}">All comparisons</a></p>' if index else ""
    body = (
        f"<header>{back}<h1>{escape(title(report))} <span>{escape(report.strategy)}</span></h1>"
        f'<p class="test"><code>{escape(test)}</code></p></header>'
        f"<main>{head(report)}{others(report)}{_pictures(pictures)}{_checks(report)}{_text(report)}</main>"
        f"<footer>{_footer(report)}</footer>"
    )
    return document(f"{title(report)}: {test}", body, rules())


def _most_telling(report: Report) -> str:
    """Return the id of the picture that shows the worst finding; empty if none shows it better than the others."""
    worst = report.findings[0] if report.findings else None
    if worst is None:
        return ""
    if worst.cause in CAUSES:
        return "collectives"
    return "examples" if worst.check == "DATA-COVER" else "loss" if worst.variable == "loss" else ""


def _pictures(pictures: list[Picture]) -> str:
    """Return the pictures, and after them the sentences that explain why others are absent."""
    drawn = "".join(str(picture) for picture in pictures if not picture.absent)
    absent = "".join(str(picture) for picture in pictures if picture.absent)
    if absent:
        absent = (
            '<section class="absent" aria-labelledby="absent-title"><h2 id="absent-title">Not shown</h2>'
            f"<ul>{absent}</ul></section>"
        )
    return f'<div class="pictures">{drawn}</div>{absent}'


def _checks(report: Report) -> str:
    """Return the outcome of every check, with its reason."""
    rows = "".join(map(_check, sorted(report.results, key=lambda result: result.outcome is Outcome.NOT_APPLICABLE)))
    return (
        '<section aria-labelledby="checks-title"><h2 id="checks-title">Checks</h2><details class="table"><summary>'
        f'{_count(report)}</summary><div class="scroll"><table class="checks"><thead><tr><th scope="col">check</th>'
        '<th scope="col">outcome</th><th scope="col">what was compared, or why not</th></tr></thead>'
        f"<tbody>{rows}</tbody></table></div></details></section>"
    )


def _check(result: CheckResult) -> str:
    kind = " class=beyond" if result.outcome is Outcome.FAIL else ""
    return (
        f'<tr{kind}><th scope="row"><code>{escape(result.check)}</code></th><td>{_OUTCOMES[result.outcome]}</td>'
        f"<td>{escape(result.reason)}</td></tr>"
    )


def _count(report: Report) -> str:
    counts = [(outcome, sum(result.outcome is outcome for result in report.results)) for outcome in Outcome]
    return ", ".join(f"{count} {outcome.value}" for outcome, count in counts if count)


def _text(report: Report) -> str:
    return (
        '<section aria-labelledby="text-title"><h2 id="text-title">Report</h2><details><summary>The report as text'
        f"</summary><pre>{escape(str(report))}</pre></details></section>"
    )


def _footer(report: Report) -> str:
    facts = []
    record = report.distributed
    if record is not None:
        facts.append(f"{record.num_replicas} replicas, {len(record.ranks)} process(es), precision {record.precision}")
        facts.append(f"global batch size {record.global_batch_size}" if record.global_batch_size else "")
        versions = record.ranks[0].versions if record.ranks else {}
        facts.append(", ".join(f"{name} {version}" for name, version in versions.items()))
    return f"<p>{escape('; '.join(filter(None, facts)))}</p>"
