"""Hints have words for each front end, and no message names what its reader does not have."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from simulated_training import Program, pair

import pytest_ddl
from pytest_ddl.equivalence.causes import CAUSES
from pytest_ddl.equivalence.checks.registry import select
from pytest_ddl.equivalence.expectations import expectations_for
from pytest_ddl.equivalence.findings import RECOMPUTING, Grounds
from pytest_ddl.equivalence.known.catalogue import KNOWN
from pytest_ddl.equivalence.verdict.judge import judge
from pytest_ddl.hints import FrontEnd, Hint, HintedError
from pytest_ddl.strategies.registry import StrategyRegistry
from tests.lab import golden

PACKAGE = Path(pytest_ddl.__file__).parent
ARGUMENTS = (
    r"(?<![\w-])(expect|checks|steps|timeout|seed|precision|max_lost_steps|detected_within)=(?!\.\.\.)|"
    r"\b(strict|exact|always_loadable)=True|report\.results|the equivalence test|--ddl-(strategy|device|keras|strict)\b"
)
"""Arguments and options that only the author of a test gives."""
OPTIONS = r"(?<!\w)--(expect|checks|precision|global-batch-size|exact|always-loadable|max-lost-steps|detected-within)\b"
"""Options of ``pytest-ddl check`` and ``faults`` that ``pytest-ddl try`` does not have."""
RUN = r"(?<![\w.])run\.(?!py\b)\w+"
"""Attributes of the object that only a function ``train(run)`` gets."""
FOREIGN = {
    FrontEnd.TEST: r"(?<!\w)--(?!ddl-)\w+",
    FrontEnd.CHECK: ARGUMENTS,
    FrontEnd.TRY: f"{ARGUMENTS}|{OPTIONS}|{RUN}",
}
ROOMS = ("equivalence", "faults", "training")
"""Parts of the package whose messages all front ends show."""
OF_RUN = {
    "training/run.py": "errors of the methods of run, for their caller",
    "training/recorder.py": "errors of run.value, for its caller",
    "training/coordinator.py": "errors of run.steps, for its caller",
    "training/fitting.py": "an error of measure, whose program has a run",
    "faults/rank/fault.py": "a kind of fault, and try injects none",
    "faults/sweep.py": "an error of faults=, and try injects none",
    "notes.py": "kinds of notes, which no message shows",
}
"""Modules that may name attributes of ``run``, each with the reason why ``try`` does not show it."""
OF_OTHER_THINGS = {
    "shuffle(n, seed=...)": "an argument of tf.data",
    "pass steps= here": "an argument of run.steps",
}


def words(hint: Hint, front_end: FrontEnd) -> str:
    return front_end.words(hint, "first", "second", "third")


@pytest.mark.parametrize("front_end", FrontEnd, ids=lambda front_end: front_end.value)
@pytest.mark.parametrize("hint", list(Hint.__members__.values()), ids=list(Hint.__members__))
def test_each_hint_has_words_that_the_reader_can_use(hint: Hint, front_end: FrontEnd) -> None:
    assert not re.search(FOREIGN[front_end], words(hint, front_end))
    assert front_end.render(f"a {hint('first', 'second', 'third')}!") == f"a {words(hint, front_end)}!"


@pytest.mark.parametrize("hint", list(Hint.__members__.values()), ids=list(Hint.__members__))
def test_no_two_hints_are_one(hint: Hint) -> None:
    assert sum(hint is other for other in Hint.__members__.values()) == 1


def literals(path: Path) -> Iterator[str]:
    """Yield the sentences of a module that are no docstrings."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    documents = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        text = node.value if isinstance(node, ast.Constant) and id(node) not in documents else None
        if isinstance(text, str) and (" " in text or text.endswith("=")):
            yield text


@pytest.mark.parametrize("room", ROOMS)
def test_a_message_names_by_a_hint_what_not_every_reader_has(room: str) -> None:
    found = []
    for path in sorted((PACKAGE / room).rglob("*.py")):
        name = path.relative_to(PACKAGE).as_posix()
        pattern = ARGUMENTS if name in OF_RUN else f"{ARGUMENTS}|{RUN}"
        found += [(name, text) for text in literals(path) if re.search(pattern, text)]
    assert [(name, text) for name, text in found if not any(one in text for one in OF_OTHER_THINGS)] == []


def texts(value: Any) -> Iterator[str]:
    """Yield all texts of findings, results, doubts and notes."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list | tuple):
        for one in value:
            yield from texts(one)
    elif is_dataclass(value):
        for one in fields(value):
            yield from texts(getattr(value, one.name))


@pytest.mark.parametrize(
    "path", list(golden.paths(golden.RECORDS)), ids=lambda path: path.name.removesuffix(golden.SUFFIX)
)
def test_a_report_shows_words_and_no_marks(path: Path) -> None:
    report = golden.load(path).judged()
    for front_end in FrontEnd:
        shown = report.rendered(front_end)
        parts = (shown.results, shown.findings, shown.expected, shown.approximations, shown.known, shown.doubts)
        for text in (*texts([*parts, shown.notes]), str(shown), repr(shown), *shown.inconclusive):
            assert not re.search("[\ue000-\ue002]", text)


def test_fixes_and_workarounds_have_words_for_each_front_end() -> None:
    for text in (*(cause.fix for cause in CAUSES.values()), *(entry.workaround for entry in KNOWN.values())):
        for front_end in FrontEnd:
            foreign = FOREIGN[front_end].replace("(?!\\.\\.\\.)", "(?![.\\w])")
            assert not re.search(foreign, front_end.render(text).replace("shuffle(n, seed=...)", ""))


def test_a_script_is_told_of_its_own_batch_size() -> None:
    text = " ".join(str(judge(*pair(Program(replicas=2), scale=2.0)).rendered(FrontEnd.TRY)).split())
    assert "global_batch_size=global_batch_size)" in text
    assert "not applicable: " in text
    assert not re.search(FOREIGN[FrontEnd.TRY], text)


@pytest.mark.parametrize(
    ("front_end", "line"),
    [
        (FrontEnd.TEST, '  to accept:   expect={"mirrored": {"batch-coupled-loss": "the reason"}}'),
        (FrontEnd.CHECK, "  to accept:   --expect='mirrored:batch-coupled-loss=the reason'"),
        (FrontEnd.TRY, None),
    ],
    ids=["test", "check", "try"],
)
def test_a_cause_is_declared_in_the_way_of_the_caller(front_end: FrontEnd, line: str | None) -> None:
    report = judge(*pair(Program(replicas=2), scale=2.0))
    finding = replace(report.findings[0], cause="batch-coupled-loss", fix=CAUSES["batch-coupled-loss"].fix)
    lines = str(replace(report, findings=[finding]).rendered(front_end)).splitlines()
    assert [one for one in lines if "to accept:" in one] == ([line] if line else [])


@pytest.mark.parametrize(("grounds", "lines"), [(Grounds.RECOMPUTED, 1), (Grounds.PATTERN, 0), (Grounds.EXCLUSION, 0)])
def test_only_a_cause_that_was_recomputed_is_offered_to_be_declared(grounds: Grounds, lines: int) -> None:
    report = judge(*pair(Program(replicas=2), scale=2.0))
    finding = replace(report.findings[0], cause="batch-coupled-loss", grounds=grounds, exact=grounds in RECOMPUTING)
    assert str(replace(report, findings=[finding])).count("to accept:") == lines


@pytest.mark.parametrize(
    ("wrong", "test", "check"),
    [
        (lambda: select(["X"]), "checks= names an unknown check 'X'", "--checks names an unknown check 'X'"),
        (lambda: declared({"x": "why"}), "expect= names an unknown cause 'x'", "--expect names an unknown cause 'x'"),
        (lambda: declared({"one": {"metric-wrong": "why"}}), "expect={'one': {'metric", "--expect=one:...: "),
    ],
)
def test_wrong_arguments_are_named_as_the_caller_gives_them(wrong: Any, test: str, check: str) -> None:
    with pytest.raises(HintedError) as raised:
        wrong()
    assert str(raised.value).startswith(test)
    assert raised.value.rendered(FrontEnd.CHECK).startswith(check)


def declared(expect: Any) -> Any:
    registry = StrategyRegistry()
    return expectations_for(registry.default("mirrored"), expect, registry)


def test_an_option_is_named_as_the_caller_gives_it() -> None:
    assert [one.option("strategy") for one in FrontEnd] == ["--ddl-strategy", "--strategy", "--strategy"]
    assert [one.option("keras") for one in FrontEnd] == ["--ddl-keras", "--ddl-keras", "--keras"]


def test_the_fix_of_a_metric_says_what_a_mean_of_divided_losses_needs() -> None:
    """A loss is divided by the global batch, and the mean over the replicas divides it once more."""
    assert "num_replicas_in_sync" in str(CAUSES["metric-wrong"].fix)
