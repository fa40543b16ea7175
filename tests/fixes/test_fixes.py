"""Every fix that a report prints can be applied to a program with the mistake, which passes then."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from pytest_ddl import check_training
from pytest_ddl.equivalence.causes.cause import Form
from tests.fixes.case import Case, every_fix
from tests.fixes.cases import ADVICE, CASES
from tests.fixes.modules import module_of
from tests.fixes.templates import LOOP


def test_every_fix_has_code_that_a_case_applies_or_is_advice() -> None:
    applied = {(case.fix, case.form) for case in CASES}
    with_code = {(name, form) for name, form, fix in every_fix() if fix.code}
    assert with_code == applied
    assert {name for name, _form, fix in every_fix() if not fix.code} == set(ADVICE)


def test_code_fits_into_a_line_of_a_report() -> None:
    assert [line for _name, _form, fix in every_fix() for line in fix.code.splitlines() if len(line) > 94] == []


@pytest.mark.nightly(
    each_commit=(
        "gradient-scaled-by-replica-count-module",
        "masked-loss-normalised-per-replica-loop",
        "global-batch-wrong-loop",
        "eager",
        "neither-layer",
        "initial",
    )
)
@pytest.mark.slow
@pytest.mark.parametrize("case", sorted(CASES, key=lambda case: case.strategy), ids=lambda case: case.id)
def test_a_program_with_the_mistake_passes_after_its_fix(
    case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    given = {"global_batch_size": case.batch, "steps": case.steps, "timeout": 100, "strict": case.strict}
    report = check_training(module_of(tmp_path, "wrong", case.wrong()).train, case.strategy, **given)
    assert report.verdict == case.verdict, str(report)
    if case.verdict == "fail":
        finding = report.findings[0]
        assert (finding.cause or "-") == (case.cause or case.fix), str(report)
    else:
        assert case.shown.text in " ".join(str(report).split())
    if case.verdict == "fail" and case.cause != "-":
        assert finding.fix is not None
        # A fix for an exception is preceded by the line of the program.
        assert case.shown.text in finding.fix, str(report)
        assert finding.fix.endswith(textwrap.indent(case.shown.code, "    ")), str(report)
        assert finding.step is not None
    declared = dict.fromkeys(case.expect, "the corrected program is meant to")
    mended = check_training(module_of(tmp_path, "mended", case.right()).train, case.strategy, **given, expect=declared)
    assert mended.verdict == "pass", f"{case.right()}\n{mended}"


@pytest.mark.slow
def test_a_loss_of_fit_that_a_wrong_term_explains_has_no_fix_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    case = next(case for case in CASES if case.fix == "divided-term" and case.form is Form.FIT)
    report = check_training(
        module_of(tmp_path, "term", case.wrong()).train, "mirrored", global_batch_size=8, steps=3, timeout=100
    )
    assert [finding.check for finding in report.findings] == ["STEP-EQ"], str(report)


@pytest.mark.slow
def test_two_mistakes_at_once_are_both_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    both = LOOP.filled(
        {
            "loss": "loss = tf.reduce_mean(per_example_loss)",
            "scope": "state = tf.Variable(0.0, trainable=False, name='state')",
            "watched": "run.watch(variables=[state])",
            "after": "state.assign(tf.reduce_max(x))",
        }
    )
    report = check_training(
        module_of(tmp_path, "both", both).train, "mirrored", global_batch_size=8, steps=3, timeout=100
    )
    named = [(finding.cause, finding.variable) for finding in report.findings]
    assert named[0][0] == "gradient-scaled-by-replica-count", str(report)
    assert ("state-not-aggregated", "state") in named, str(report)
    assert report.findings[0].ratio == pytest.approx(2.0)
