"""Messages of a command name only what the user of that command has."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from simulated_training import Program, pair

import pytest_ddl
from pytest_ddl.equivalence.causes import CAUSES
from pytest_ddl.equivalence.findings import RECOMPUTING, CheckResult, Doubt, Finding, Grounds, Outcome
from pytest_ddl.equivalence.verdict.judge import judge
from pytest_ddl.words import CHECK, FIXTURE, TRY, Words

PACKAGE = Path(pytest_ddl.__file__).parent
OF_TESTS = r"--ddl-(?!network|warm|report|list)|(?<!-)\b(?:expect|checks|timeout)=|strict=True|report\.results"
OF_RUN = rf"{OF_TESTS}|(?<!strategy\.)\brun\.(?:watch|seed|global_batch_size|rank_path|strategy|layout_map|steps)\b"
NEVER_IN_TRY = ("parameter_server.py", "judge.py", "expectations.py", "registry.py", "resume.py")
"""Messages about arguments that ``try`` does not take, and about loops and restarts that it does not follow."""


def texts(part: str) -> Iterator[tuple[Path, str]]:
    """String constants of a part of the package that are no docstrings."""
    for path in sorted((PACKAGE / part).rglob("*.py")):
        tree = ast.parse(path.read_text())
        documents = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in documents:
                yield path, node.value


@pytest.mark.parametrize(("words", "foreign"), [(CHECK, OF_TESTS), (TRY, OF_RUN)], ids=["check", "try"])
def test_no_message_of_a_comparison_names_what_the_user_does_not_have(words: Words, foreign: str) -> None:
    found = [
        (path.name, text)
        for path, text in texts("equivalence")
        if " " in text and re.search(foreign, words.of(text)) and not (words is TRY and path.name in NEVER_IN_TRY)
    ]
    assert found == []


def test_the_author_of_a_test_reads_messages_as_they_are_written() -> None:
    assert all(FIXTURE.of(cause.fix) == cause.fix for cause in CAUSES.values())


@pytest.mark.parametrize("words", [CHECK, TRY], ids=["check", "try"])
def test_words_do_not_change_again_what_they_have_changed(words: Words) -> None:
    for _path, text in texts("equivalence"):
        assert words.of(words.of(text)) == words.of(text)


def test_a_script_is_told_of_its_own_batch_size() -> None:
    text = " ".join(str(judge(*pair(Program(replicas=2), scale=2.0)).worded(TRY)).split())
    assert "global_batch_size=global_batch_size)" in text
    assert "run.global_batch_size" not in text
    assert "report.results" not in text
    assert "not applicable: " in text
    assert "checks=" not in text
    assert "run.restart" not in text


def test_only_messages_are_worded() -> None:
    finding = Finding("RUN", "Raise timeout=.", cause="worker-raised", details="run(timeout=)", lines=("timeout=",))
    result = CheckResult("RUN", Outcome.FAIL, "set a longer timeout=", (finding,))
    report = replace(judge(*pair(Program(replicas=2))), results=(result,), doubts=(Doubt("RUN", "timeout="),))
    worded = report.worded(CHECK)
    assert worded.results[0].reason == "set a longer --timeout"
    found = worded.results[0].findings[0]
    assert (found.message, found.details, found.lines) == ("Raise --timeout.", "run(timeout=)", ("timeout=",))
    assert worded.doubts == (Doubt("RUN", "--timeout"),)


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (FIXTURE, '  to accept:   expect={"mirrored": {"batch-coupled-loss": "the reason"}}'),
        (CHECK, "  to accept:   --expect='mirrored:batch-coupled-loss=the reason'"),
        (TRY, None),
    ],
    ids=["fixture", "check", "try"],
)
def test_a_cause_is_declared_in_the_way_of_the_caller(words: Words, line: str | None) -> None:
    report = judge(*pair(Program(replicas=2), scale=2.0))
    finding = replace(report.findings[0], cause="batch-coupled-loss", fix=CAUSES["batch-coupled-loss"].fix)
    lines = str(replace(report, findings=[finding]).worded(words)).splitlines()
    assert [one for one in lines if "to accept:" in one] == ([line] if line else [])


@pytest.mark.parametrize(("grounds", "lines"), [(Grounds.RECOMPUTED, 1), (Grounds.PATTERN, 0), (Grounds.EXCLUSION, 0)])
def test_only_a_cause_that_was_recomputed_is_offered_to_be_declared(grounds: Grounds, lines: int) -> None:
    report = judge(*pair(Program(replicas=2), scale=2.0))
    finding = replace(report.findings[0], cause="batch-coupled-loss", grounds=grounds, exact=grounds in RECOMPUTING)
    assert str(replace(report, findings=[finding])).count("to accept:") == lines


def test_wrong_arguments_are_named_as_the_options_of_check() -> None:
    assert CHECK.of("checks= names an unknown check 'X'") == "--checks names an unknown check 'X'"
    assert CHECK.of('checks=["UNEVEN-EQ"]') == "--checks=UNEVEN-EQ"
    assert CHECK.of("expect={'one': {'metric-wrong': 'why'}}: 'one' is") == "--expect=one:...: 'one' is"
    assert CHECK.of("expect= names an unknown cause 'x'") == "--expect names an unknown cause 'x'"
    assert CHECK.of("--ddl-strategy='no' (from command line): 'no' is").startswith("--strategy='no' (from")
