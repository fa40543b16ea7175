"""Generate the tables of the documentation from the registries: ``python -m docs.tables [--check] [FOLDER]``.

The text of a page between ``<!-- table: NAME -->`` and ``<!-- end -->`` is replaced by the table NAME.
"""

from __future__ import annotations

import argparse
import ast
import html
import inspect
import json
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from types import ModuleType

import pytest_ddl
from asv_bench.studies.registry import STUDIES
from pytest_ddl.bench.advice.rules import RULES
from pytest_ddl.bench.forecasting.refusals import REFUSALS
from pytest_ddl.bench.metrics.registry import METRICS
from pytest_ddl.cli import COMMANDS
from pytest_ddl.config import MARKERS, OPTIONS
from pytest_ddl.conformance.checks import CONFORMANCE_CHECKS
from pytest_ddl.doctor.registry import PROBES
from pytest_ddl.equivalence.causes import CAUSES
from pytest_ddl.equivalence.checks.registry import CHECKS
from pytest_ddl.equivalence.diagnosis.limitations import LIMITATIONS
from pytest_ddl.equivalence.known.catalogue import KNOWN
from pytest_ddl.equivalence.roles import Role
from pytest_ddl.faults.rank.fault import KINDS
from pytest_ddl.faults.verdict import MEANINGS
from pytest_ddl.hints import FrontEnd
from pytest_ddl.hosts.transports.registry import BUILT_IN as TRANSPORTS
from pytest_ddl.strategies.registry import StrategyRegistry
from suites.live_defects import live

_BLOCK = re.compile(r"(<!-- table: (?P<name>[\w-]+) -->\n)(?P<table>.*?)(<!-- end -->)", re.DOTALL)


def _table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "".join(f"| {' | '.join(_cell(cell) for cell in line)} |\n" for line in lines)


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def _code(text: str) -> str:
    return f"`{text}`" if text else ""


def _lines(code: str) -> str:
    """Return lines of code for a cell. Code in backticks loses its indentation there."""
    lines = code.splitlines()
    if not any(line.startswith(" ") for line in lines):
        return "".join(f"<br>{_code(line)}" for line in lines)
    text = "<br>".join(html.escape(line, quote=False) for line in lines)
    return f"<pre>{re.sub(r' {2,}', lambda found: '&#32;' * len(found[0]), text)}</pre>"


def options_table() -> str:
    """Return the table of options, each with its default. Variable and ini value follow from the name of an option."""
    rows = []
    for option in OPTIONS:
        name = option.flag.removeprefix("--").replace("-", "_")
        assert (option.env, option.ini) == (f"PYTEST_{name.upper()}", name), f"the page does not say this for {name}"
        value = "|".join(option.choices) or option.metavar
        flag = option.flag if option.is_flag else f"{option.flag}={value}"
        default = "off" if option.is_flag else _code(str(option.default))
        rows.append((_code(flag), default, option.help))
    return _table(("option", "default", "what it does"), rows)


def markers_table() -> str:
    """Return the table of markers, each with its signature."""
    rows = []
    for marker in MARKERS:
        signature, _, meaning = marker.partition(": ")
        rows.append((_code(f"@pytest.mark.{signature}"), meaning))
    return _table(("marker", "what it says"), rows)


def strategies_table() -> str:
    """Return the table of strategies, each with its aliases, its default shape and its number of processes."""
    registry = StrategyRegistry()
    rows = []
    for definition in registry:
        spec = registry.default(definition.name)
        topology = definition.topology(spec)
        names = ", ".join(_code(name) for name in (definition.name, *definition.aliases))
        processes = str(len(topology.ranks) + len(topology.servers))
        rows.append((names, _code(str(spec)), processes, definition.summary))
    return _table(("name", "default shape", "processes", "what it is"), rows)


def checks_table() -> str:
    """Return the table of checks, each with what it asserts and what it needs."""
    rows = ((_code(check.name), check.title, FrontEnd.TEST.render(check.needs)) for check in CHECKS)
    return _table(("check", "what holds if it passes", "needs"), rows)


def conformance_table() -> str:
    """Return the table of checks of objects, each with the tags that decide whether it applies."""
    rows = []
    for check in CONFORMANCE_CHECKS.values():
        conditions = [*map(_code, check.needs), *(f"not {_code(tag)}" for tag in check.unless)]
        rows.append((check.kind, _code(check.name), check.title, ", ".join(conditions)))
    return _table(("kind", "check", "what holds if it passes", "tags"), rows)


def roles_table() -> str:
    """Return the table of the roles that a check can declare."""
    meanings = _attribute_docstrings(inspect.getsource(Role))
    single = [role for role in Role.__members__.values() if role.value.bit_count() == 1]
    return _table(("role", "what the check judges"), ((_code(str(role)), meanings[str(role.name)]) for role in single))


def causes_table() -> str:
    """Return the table of causes, each with what happened and what to do."""
    rows = []
    for cause in CAUSES.values():
        legitimate = " Can be legitimate: declare it with `expect=`." if cause.legitimate else ""
        rows.append((_code(cause.id), cause.title, cause.fix.text + legitimate + _lines(cause.fix.code)))
    return _table(("cause", "what happened", "what to do"), rows)


def limitations_table() -> str:
    """Return the table of known limitations of TensorFlow and Keras, in the words of the reports."""
    rows = (
        (
            FrontEnd.TEST.render(f"{limit.reason}. {limit.advice}" if limit.advice else limit.reason),
            _code(limit.cause),
            f"<{limit.link}>" if limit.link else "",
        )
        for limit in LIMITATIONS
    )
    return _table(("what the framework cannot do", "cause", "more"), rows)


def known_table() -> str:
    """Return the table of known behaviors of TensorFlow and Keras, each with its causes, versions and workaround."""
    rows = []
    for entry in KNOWN.values():
        versions = ", ".join(f"{name} {wanted}" for name, wanted in entry.versions.items())
        where = ", ".join(_code(name) for name in entry.strategies) or "all"
        link = f" <{entry.link}>" if entry.link else ""
        causes = ", ".join(map(_code, entry.causes))
        workaround = FrontEnd.TEST.render(entry.workaround)
        rows.append((_code(entry.id), entry.title + "." + link, causes, where, versions, workaround))
    return _table(("id", "what the framework does", "found as", "strategies", "versions", "what you can do"), rows)


def defects_table() -> str:
    """Return the table of live defects of TensorFlow and Keras, the most harmful first."""
    rows = []
    for defect in live():
        program = defect.program
        shown = (
            f"[{program.path.name}](../suites/repros/{program.path.name})"
            if program is not None
            else _code(defect.entries[0].known)
        )
        links = ", ".join(f"<{link}>" for link in defect.links)
        text = program.path.with_suffix(".md") if program is not None else None
        report = f"[to report](../suites/repros/{text.name})" if text is not None and text.is_file() else ""
        strategies = ", ".join(map(_code, defect.strategies)) or "all"
        rows.append((defect.harm.value, defect.title, ", ".join(defect.versions), strategies, shown, links or report))
    return _table(("harm", "defect", "versions", "strategies", "program", "report"), rows)


def metrics_table() -> str:
    """Return the table of metrics, each with its unit, its better direction, the dual to gate on and its source."""
    rows = []
    for metric in METRICS.values():
        better = "higher" if metric.higher_is_better else "lower"
        gate = _code(metric.dual or "") or ("itself" if metric.gated else "no")
        rows.append((_code(metric.name), metric.unit, better, gate, metric.summary, metric.formula, metric.source))
    return _table(("metric", "unit", "better", "gate on", "what it is", "formula", "source"), rows)


def advice_table() -> str:
    """Return the table of the rules of ``pytest-ddl advise``, by what limits a step."""
    rows = []
    for one in RULES.values():
        knob = _code(one.knob) if one.knob else ""
        rows.append(
            (one.limit, _code(one.id), one.looks_at, one.applies_if, one.expected, one.change, knob, one.source)
        )
    header = ("limit", "rule", "looks at", "applies if", "expected gain", "what to change", "knob", "source")
    return _table(header, rows)


def studies_table() -> str:
    """Return the table of the studies in ``asv_bench/studies``."""
    rows = ((_code(one.name), one.summary, one.data, one.published) for one in STUDIES)
    return _table(("study", "what it does", "data", "beside"), rows)


def command_help(name: str) -> str:
    """Return the arguments of a subcommand of ``pytest-ddl``, as its ``--help`` shows them."""
    return _help(next(command.module for command in COMMANDS if command.name == name))


def studies_help() -> str:
    """Return the options of each study, as its ``--help`` shows them."""
    texts = (f"`python -m asv_bench.studies {study.name}`:\n\n{_help(study.module)}" for study in STUDIES)
    return "\n".join(texts)


def _help(name: str) -> str:
    module = import_module(name)
    parser = argparse.ArgumentParser(usage=argparse.SUPPRESS, add_help=False)
    module.add_arguments(parser)
    # The page itself explains what the epilog says.
    parser.epilog = None
    parser.formatter_class = partial(argparse.HelpFormatter, width=120)
    return f"```text\n{parser.format_help().strip()}\n```\n"


def api_table(package: str) -> str:
    """Return the table of the public names of a package, each with the first line of its documentation."""
    module = import_module(package)
    rows = ((_code(f"{package}.{name}"), _first_line(module, name)) for name in module.__all__)
    return _table(("name", "what it is"), rows)


def hooks_table() -> str:
    """Return the table of hooks, each with the first line of its documentation."""
    source = (Path(pytest_ddl.__file__).with_name("hookspecs.py")).read_text(encoding="utf-8")
    functions = [node for node in ast.parse(source).body if isinstance(node, ast.FunctionDef)]
    rows = ((_code(f"pytest_ddl.hookspecs.{node.name}"), _summary(ast.get_docstring(node) or "")) for node in functions)
    return _table(("hook", "what it does"), rows)


def faults_table() -> str:
    """Return the table of kinds of faults."""
    rows = []
    for kind in KINDS.values():
        seconds = "" if kind.seconds is None else f"{kind.seconds:g} s"
        where = f"at a {kind.only_in}" if kind.only_in else "at any point"
        rows.append((_code(kind.name), f"{kind.summary}.", kind.effect.value, where, seconds))
    return _table(("kind", "what happens", "effect", "where", "default duration or grace"), rows)


def verdicts_table() -> str:
    """Return the table of the verdicts of a fault, the best first."""
    return _table(("verdict", "meaning"), [(_code(verdict.value), text) for verdict, text in MEANINGS.items()])


def probes_table() -> str:
    """Return the table of the probes of ``pytest-ddl doctor``, in the order of its report."""
    return _table(("group", "probe", "what it asserts"), ((one.group, _code(one.name), one.title) for one in PROBES))


def transports_table() -> str:
    """Return the table of the transports, in the order of their registry."""
    rows = []
    for transport in TRANSPORTS:
        settings = ", ".join(_code(f"{key}={value}") for key, value in transport.defaults.items())
        rows.append((_code(transport.name), transport.summary, settings))
    return _table(("`--ddl-launcher`", "hosts", "settings with their defaults"), rows)


def refusals_table() -> str:
    """Return the table of what a forecast refuses, in the order in which it looks."""
    rows = ((_code(check.__name__.replace("_", " ")), _summary(check.__doc__ or "")) for check in REFUSALS)
    return _table(("reason", "what is refused"), rows)


OWN_MEMORY = {
    f"{kind}, {strategy}": (f"Rank.track_{kind}_memory({strategy})", "MB")
    for kind in ("private", "proportional")
    for strategy in ("mirrored", "multi_worker_mirrored")
}
"""Columns of the memory of a rank -> the series in ``own-history.json``, and its unit."""
OWN_TIMES = {
    "fresh cluster of 2": ("FreshCluster.track_median(2)", "s"),
    "one more test, mirrored": ("NextTest.track_median(mirrored)", "ms"),
    "one more test, multi_worker_mirrored": ("NextTest.track_median(multi_worker_mirrored)", "ms"),
    "in pytest alone": ("NextTest.track_median(plain)", "ms"),
}
"""Columns of the times of the harness."""


def own_history_table(columns: Mapping[str, tuple[str, str]]) -> str:
    """Return the table of the commits of this repository at which some series was measured, the newest first."""
    rows = []
    for row in reversed(json.loads(Path(__file__).with_name("own-history.json").read_text("utf-8"))["commits"]):
        values = [(row["values"].get(name), unit) for name, unit in columns.values()]
        cells = ["" if value is None else f"{value:.3g} {unit}" for value, unit in values]
        if any(cells):
            rows.append((row["date"], _code(row["commit"]), *cells))
    return _table(("day", "commit", *columns), rows)


def _summary(docstring: str) -> str:
    """Return the first line of a docstring in Markdown. Docstrings mark up names for Sphinx."""
    return re.sub(r":\w+:(?=`)|`(?=`)", "", docstring.partition("\n")[0])


def _first_line(module: ModuleType, name: str) -> str:
    """Return the first line of the documentation of a public name, which a submodule may define.

    :raises ValueError: if the name has no documentation.
    """
    value = getattr(module, name)
    document = inspect.getdoc(value) if callable(value) else _attribute_docstring(module, name)
    if not document:
        raise ValueError(f"{module.__name__}.{name} is public and has no docstring: write one where it is defined")
    return _summary(document)


def _attribute_docstring(module: ModuleType, name: str) -> str:
    """Return the string below the assignment of a constant in the files of a package."""
    for path in sorted(Path(str(module.__file__)).parent.rglob("*.py")):
        found = _attribute_docstrings(path.read_text(encoding="utf-8"))
        if name in found:
            return found[name]
    return ""


def _attribute_docstrings(source: str) -> dict[str, str]:
    """Return the strings below assignments in the source of a module or of one class, by assigned name."""
    body = ast.parse(source).body
    if len(body) == 1 and isinstance(body[0], ast.ClassDef):
        body = body[0].body
    found: dict[str, str] = {}
    for statement, following in pairwise(body):
        targets = statement.targets if isinstance(statement, ast.Assign) else [getattr(statement, "target", None)]
        if isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant):
            text = inspect.cleandoc(str(following.value.value))
            found |= {target.id: text for target in targets if isinstance(target, ast.Name)}
    return found


TABLES: Mapping[str, Callable[[], str]] = {
    "options": options_table,
    "markers": markers_table,
    "strategies": strategies_table,
    "checks": checks_table,
    "conformance": conformance_table,
    "roles": roles_table,
    "causes": causes_table,
    "limitations": limitations_table,
    "known": known_table,
    "defects": defects_table,
    "faults": faults_table,
    "verdicts": verdicts_table,
    "faults-options": partial(command_help, "faults"),
    "probes": probes_table,
    "transports": transports_table,
    "metrics": metrics_table,
    "advice": advice_table,
    "advise-options": partial(command_help, "advise"),
    "studies": studies_table,
    "studies-options": studies_help,
    "gate-options": partial(command_help, "gate"),
    "forecast-options": partial(command_help, "forecast"),
    "refusals": refusals_table,
    "own-memory": partial(own_history_table, OWN_MEMORY),
    "own-times": partial(own_history_table, OWN_TIMES),
    "api-tests": partial(api_table, "pytest_ddl"),
    "api-bench": partial(api_table, "pytest_ddl.bench"),
    "api-conformance": partial(api_table, "pytest_ddl.conformance"),
    "api-generators": partial(api_table, "pytest_ddl.generators"),
    "api-hooks": hooks_table,
}
"""Functions that make the tables, by the names that pages use."""


def with_tables(page: str) -> str:
    """Return the text of a page with all its tables generated again.

    :raises KeyError: if the page names a table that does not exist.
    """
    return _BLOCK.sub(lambda match: match[1] + TABLES[match["name"]]() + match[4], page)


def main(arguments: Sequence[str] | None = None) -> int:
    """Rewrite the pages of a folder. With ``--check``, print the names of pages that are out of date instead."""
    parser = argparse.ArgumentParser(prog="python -m docs.tables", description=__doc__)
    parser.add_argument("--check", action="store_true", help="change nothing; fail if a table is out of date")
    parser.add_argument("folder", nargs="?", type=Path, default=Path("docs"))
    options = parser.parse_args(arguments)
    status = 0
    for path in sorted(options.folder.glob("*.md")):
        page = path.read_text(encoding="utf-8")
        generated = with_tables(page)
        if generated != page and options.check:
            sys.stdout.write(f"{path}: a table is out of date; run python -m docs.tables\n")
            status = 1
        elif generated != page:
            path.write_text(generated, encoding="utf-8")
    return status


if __name__ == "__main__":
    sys.exit(main())
