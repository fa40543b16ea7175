"""Write a view of the page: one workload on one machine, its newest numbers and its charts, metric by metric."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from pytest_ddl.bench.history.charts import Curve, band, chart, is_share, scaling_chart
from pytest_ddl.bench.history.detect import relative_noise
from pytest_ddl.bench.history.meaning import (
    FAMILIES,
    Family,
    Variant,
    family,
    higher_is_better,
    is_exact,
    leaf,
    variant,
)
from pytest_ddl.bench.history.model import Commit, History, Series, short_id
from pytest_ddl.bench.history.report import HistoryReport
from pytest_ddl.web.units import DASH, number, scale

ORDER = ("throughput", "efficiency", "step", "overhead", "communication", "first_step", "memory", "energy", "counters")
"""Order of the metrics in a view. The others follow."""
HUES = {"one_device": "ink", "mirrored": "blue", "multi_worker_mirrored": "green", "parameter_server": "purple"}


@dataclass(frozen=True)
class View:
    """Series that are shown together."""

    machine: str
    environment: str
    workload: str
    series: tuple[Series, ...]

    @property
    def id(self) -> str:
        return short_id("v", self.machine, self.environment, self.workload)

    @property
    def title(self) -> str:
        return f"{self.workload} on {self.machine}, {self.environment}"

    @property
    def commits(self) -> list[Commit]:
        return sorted({point.commit for one in self.series for point in (*one.points, *one.dropped)})


def hue(series: Series) -> str:
    """Return the class of a strategy's color."""
    measured = variant(series)
    if measured is None:
        return "ink"
    return HUES.get(measured.strategy.partition("[")[0], "orange")


def series_title(series: Series) -> str:
    measured = variant(series)
    return str(measured) if measured else (", ".join(value for _, value in series.parameters) or leaf(series.benchmark))


def view_section(view: View, report: HistoryReport) -> str:
    machine = report.history.machines[view.machine]
    by_family: dict[Family, list[Series]] = defaultdict(list)
    for one in view.series:
        by_family[family(one.benchmark)].append(one)
    head = (
        f'<section class="view" id="{view.id}" aria-labelledby="{view.id}-title">'
        f'<h2 id="{view.id}-title">{escape(view.workload)}</h2>'
        f'<p class="where">Measured on <b>{escape(view.machine)}</b> ({escape(machine.summary)}), '
        f"environment <code>{escape(view.environment)}</code></p>"
    )
    parts = [head, _scaling([one for one in view.series if family(one.benchmark).name == "throughput"])]
    names = [*ORDER, *(one.name for one in FAMILIES if one.name not in ORDER)]
    names += sorted(one.name for one in by_family if one.name not in names)
    for kind in sorted(by_family, key=lambda one: names.index(one.name)):
        if kind.name == "counters":
            parts.append(_counters(kind, by_family[kind], report))
        else:
            parts.append(_metric(kind, by_family[kind], view, report))
    return "".join(parts) + "</section>"


def series_order(series: Series) -> tuple[str, tuple[int, Variant], str]:
    measured = variant(series)
    first = 0 if measured and measured.strategy.startswith("one_device") else 1
    return (series.benchmark.name, (first, measured or Variant("", 0)), series.label)


def _scaling(series: Sequence[Series]) -> str:
    """Draw real and ideal throughput at the newest commit, if more than one number of replicas was measured."""
    values: dict[str, dict[int, Series]] = defaultdict(dict)
    for one in series:
        found = variant(one)
        if found and found.replicas and one.points:
            values[found.strategy.partition("[")[0]][found.replicas] = one
    last = max((one.points[-1].commit for several in values.values() for one in several.values()), default=None)
    base = next((values[name][1] for name in ("one_device", *values) if 1 in values.get(name, {})), None)
    sizes = {size for several in values.values() for size in several}
    if base is None or last is None or len(sizes) < 2:
        return ""
    curves = [
        Curve(
            name,
            HUES.get(name, "orange"),
            tuple(
                (size, one.points[-1].value, band(one.points[-1], one, relative_noise(one)))
                for size, one in sorted(several.items())
                if one.points[-1].commit == last
            ),
        )
        for name, several in values.items()
        if name != "one_device"
    ]
    curves = [curve for curve in curves if curve.points]
    if not curves:
        return ""
    unit = base.benchmark.unit or "examples/s"
    single = base.points[-1].value
    return (
        f'<div class="metric"><h3>Scaling at {escape(last.short)}</h3>'
        f'<p class="about">{escape(unit)} by replicas. Dashed: ideal scaling, {number(single)} for each replica. '
        "The end of each line shows the reached share of ideal scaling.</p>"
        f"{scaling_chart(curves, single, unit)}</div>"
    )


def _direction(series: Sequence[Series]) -> str:
    directions = {higher_is_better(one.benchmark) for one in series}
    if directions == {True}:
        return "Higher is better."
    return "Lower is better." if directions == {False} else ""


def _trivial(series: Series) -> bool:
    """Return whether a series compares one device with itself."""
    found = variant(series)
    same = found is not None and found.strategy.startswith("one_device")
    return same and family(series.benchmark).derived and len({point.value for point in series.points}) == 1


def _metric(kind: Family, series: Sequence[Series], view: View, report: HistoryReport) -> str:
    names = list(dict.fromkeys(one.benchmark.name for one in sorted(series, key=series_order)))
    about = f'{escape(kind.explanation)} <span class="direction">{_direction(series)}</span>'
    parts = [f'<div class="metric"><h3>{escape(kind.title)}</h3><p class="about">{about}</p>']
    for name in names:
        shown = sorted((one for one in series if one.benchmark.name == name and not _trivial(one)), key=series_order)
        if not shown:
            continue
        if len(names) > 1:
            parts.append(f"<h4>{escape(leaf(shown[0].benchmark).replace('_', ' '))}</h4>")
        charts = "".join(
            chart(
                one,
                view.commits,
                [change for change in report.changes if change.series.key == one.key],
                series_title(one),
                hue(one),
                report.accepted,
            )
            for one in shown
        )
        parts.append(f'<div class="charts">{charts}</div>{_table(shown, view, report.history)}')
    return "".join(parts) + "</div>"


def commit_link(commit: Commit, history: History) -> str:
    """Return the short hash, with a link if the URL is known."""
    name = f"<code>{escape(commit.short)}</code>"
    title = f' title="{escape(commit.subject, quote=True)}"' if commit.subject else ""
    if not history.commit_url.startswith(("https://", "http://")):
        return f"<span{title}>{name}</span>" if title else name
    return f'<a href="{escape(history.commit_url + commit.hash, quote=True)}"{title}>{name}</a>'


def scrollable(label: str, table: str) -> str:
    """Wrap the content of a table so that it scrolls on narrow screens, also with the keyboard."""
    label = escape(label, quote=True)
    return f'<div class="scroll" tabindex="0" role="region" aria-label="{label}">{table}</div>'


def _table(series: Sequence[Series], view: View, history: History) -> str:
    """Return the same numbers as a table, newest first, for screen readers, copying, and use without scripts."""
    largest = max((point.value for one in series for point in one.points), default=0.0)
    by, unit = scale(series[0].benchmark.unit, largest, share=is_share(series[0]))
    values = [{point.commit.hash: point.value for point in one.points} for one in series]
    head = "".join(f'<th scope="col">{escape(series_title(one))}</th>' for one in series)
    rows = "".join(
        f'<tr><th scope="row">{commit_link(commit, history)}</th><td>{commit.day}</td>'
        + "".join(f"<td>{number(of[commit.hash] / by, 4) if commit.hash in of else DASH}</td>" for of in values)
        + "</tr>"
        for commit in reversed(view.commits)
    )
    caption = f"{series[0].benchmark.name}{f' in {unit}' if unit else ''} on {view.machine}, newest first"
    table = (
        f'<table><caption>{escape(caption)}</caption><thead><tr><th scope="col">Commit</th><th scope="col">Date</th>'
        f"{head}</tr></thead><tbody>{rows}</tbody></table>"
    )
    return f'<details class="table"><summary>Table</summary>{scrollable(caption, table)}</details>'


def _counters(kind: Family, series: Sequence[Series], report: HistoryReport) -> str:
    """Return counters as a table, because they have no noise and only their changes matter."""
    names = list(dict.fromkeys(one.benchmark.name for one in sorted(series, key=series_order)))
    columns = [next(one for one in series if one.benchmark.name == name).benchmark for name in names]
    rows: dict[str, dict[str, Series]] = defaultdict(dict)
    for one in sorted(series, key=lambda one: series_order(one)[1:]):
        rows[series_title(one)][one.benchmark.name] = one
    head = "".join(
        f'<th scope="col">{escape(leaf(one).replace("_", " "))} <small>{escape(one.unit)}</small></th>'
        for one in columns
    )
    body = "".join(
        f'<tr><th scope="row">{escape(title)}</th>'
        + "".join(_counter(of[name], report) if name in of else f"<td>{DASH}</td>" for name in names)
        + "</tr>"
        for title, of in rows.items()
    )
    table = (
        f'<table class="counters"><thead><tr><th scope="col">Variant</th>{head}</tr></thead>'
        f"<tbody>{body}</tbody></table>"
    )
    return (
        f'<div class="metric"><h3>{escape(kind.title)}</h3><p class="about">{escape(kind.explanation)} '
        f"Below each value: its last change.</p>{scrollable('Counters', table)}</div>"
    )


def _counter(series: Series, report: HistoryReport) -> str:
    if not series.points:
        return f"<td>{DASH}</td>"
    value = number(series.points[-1].value, 6)
    changed = [one for one in report.changes if one.series.key == series.key]
    if not is_exact(series.benchmark) or (not changed and len(series.points) < 2):
        return f"<td>{value}</td>"
    if not changed:
        return f"<td>{value}<small>unchanged, {len(series.points)} commits</small></td>"
    last = changed[-1]
    state = "accepted" if last.id in report.accepted else ("confirmed" if last.alerts else "calm")
    sign = "▲ " if state == "confirmed" else ""
    since = f"{sign}was {number(last.old, 6)} until {commit_link(last.before, report.history)}"
    return f'<td class="{state}">{value}<small>{since}</small></td>'
