"""Decision about a script from the report of its comparison."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_ddl.equivalence.findings import Doubt, Finding
from pytest_ddl.equivalence.verdict.report import DivergenceError
from pytest_ddl.records import ErrorRecord, VariableKind
from pytest_ddl.run_facts import ScriptRecord
from pytest_ddl.terminal import NOT_COMPARED
from pytest_ddl.trying import plugin
from pytest_ddl.trying.program import TriedScript
from pytest_ddl.trying.source import Script
from pytest_ddl.trying.verdict import UndecidedError, compare_script

RUN = SimpleNamespace(ranks=(), errors=(), refused=None, num_steps=4)
"""A run in which nothing of the script was found."""


def report_with(*doubts: Doubt) -> Any:
    """A report of a comparison without findings."""
    reasons = tuple(map(str, doubts))
    return SimpleNamespace(
        verdict="inconclusive" if doubts else "pass", findings=[], doubts=doubts, inconclusive=reasons,
        reference=RUN, distributed=RUN,
    )  # fmt: skip


def decide(report: Any, folder: Path) -> Any:
    (folder / "script.py").touch()
    return compare_script(lambda _train, **_given: report, TriedScript(Script.read(folder / "script.py")), {})


@pytest.mark.parametrize("told", [(), ("script.py:3", "script.py:9")], ids=["true number", "number of the strategy"])
def test_the_lines_that_share_the_number_of_replicas_are_listed(told: tuple[str, ...], tmp_path: Path) -> None:
    # A learning rate that grows with this number passes: both runs have the same one.
    (tmp_path / "script.py").touch()
    script = TriedScript(Script.read(tmp_path / "script.py"))
    report, texts = report_with(), list[str]()
    for side, found in (("reference", ScriptRecord(told=told)), ("distributed", ScriptRecord(counts_replicas=True))):
        rank = SimpleNamespace(facts={"script": found})
        setattr(report, side, SimpleNamespace(ranks=[rank], num_steps=4, errors=()))
    compare_script(lambda _train, **_given: report, script, {}, texts.append)
    lines = texts[-1].splitlines()
    assert lines[-1] == "compared:     4 step(s)"
    listed = [line for line in lines if line.startswith("replicas: ")]
    assert len(listed) == bool(told)
    assert all("(script.py:3, script.py:9)" in line for line in listed)


def test_metrics_alone_may_stay_open(tmp_path: Path) -> None:
    report = report_with(Doubt("METRIC-EQ", "not compared: fn"))
    assert decide(report, tmp_path) is report


@pytest.mark.parametrize("check", ["STEP-EQ", "DATA-COVER"])
def test_anything_else_that_stays_open_leaves_a_script_undecided(check: str, tmp_path: Path) -> None:
    report = report_with(Doubt("METRIC-EQ", "not compared: fn"), Doubt(check, "the bound is too wide"))
    with pytest.raises(UndecidedError, match="the bound is too wide"):
        decide(report, tmp_path)


def test_what_stays_open_names_the_loop_in_which_it_was_seen(tmp_path: Path) -> None:
    report = report_with(Doubt("DATA-COVER", "all examples are equal"))
    facts = {"script": ScriptRecord({"loops": ("fit at script.py:12",)})}
    report.reference = SimpleNamespace(ranks=[SimpleNamespace(facts=facts)], errors=(), refused=None, num_steps=4)
    with pytest.raises(UndecidedError, match=r"^fit at script\.py:12: DATA-COVER: all examples are equal"):
        decide(report, tmp_path)


def test_training_of_a_model_that_was_made_outside_of_the_scope_is_named_with_its_line(tmp_path: Path) -> None:
    # Keras makes a model anew when it loads one.
    call = "fit at script.py:9: its model was created outside strategy.scope()"
    facts = {"script": ScriptRecord({"not compared": (call,)}), "unwatched": ["dense/kernel"]}
    report = report_with(Doubt("STEP-EQ", "1 variable(s) are trained but not watched"))
    report.reference = SimpleNamespace(ranks=[SimpleNamespace(facts=facts)], errors=(), refused=None, num_steps=4)
    with pytest.raises(UndecidedError) as undecided:
        decide(report, tmp_path)
    assert str(undecided.value) == f"{call}. To compare it, make or load the model inside strategy.scope()"


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_single_rank_that_misses_its_deadline_decides_nothing(ranks: int, tmp_path: Path) -> None:
    (tmp_path / "script.py").touch()
    report = report_with()
    report.findings = [Finding("RUN", "did not finish in time", cause="deadline-exceeded")]
    rank = SimpleNamespace(facts={})
    late = ErrorRecord("deadline", "deadline exceeded", "", 0, file="/here/script.py", line=7)
    report.reference = SimpleNamespace(ranks=[rank], num_steps=4, errors=(), refused=None)
    report.distributed = SimpleNamespace(ranks=[rank] * ranks, num_steps=0, errors=((rank, late),))

    def compare(_train: Any, **_given: Any) -> Any:
        raise DivergenceError(report)

    with pytest.raises(UndecidedError if ranks == 1 else DivergenceError, match="in time") as caught:
        compare_script(compare, TriedScript(Script.read(tmp_path / "script.py"), failing=()), {})
    assert str(caught.value).startswith("script.py:7: the script did not end in time under the strategy") == (
        ranks == 1
    )


def test_a_script_that_is_too_slow_is_told_of_steps_that_no_option_cuts(tmp_path: Path) -> None:
    """--steps does not cut a dataset that repeats for ever: the script's own loop says how many steps it makes."""
    (tmp_path / "script.py").touch()
    report = report_with()
    rank = SimpleNamespace(facts={})
    late = ErrorRecord("deadline", "deadline exceeded", "", 0, file="/here/script.py", line=7)
    report.reference = SimpleNamespace(ranks=[rank], num_steps=0, errors=((rank, late),), refused=None)
    report.distributed = SimpleNamespace(ranks=[rank], num_steps=0, errors=())

    def compare(_train: Any, **_given: Any) -> Any:
        raise DivergenceError(report)

    with pytest.raises(UndecidedError, match=r"^script\.py:7: .*on one device.*range\(STEPS\)"):
        compare_script(compare, TriedScript(Script.read(tmp_path / "script.py"), failing=()), {})


@pytest.mark.parametrize(("code", "advised"), [("import keras\n", False), ("from tensorflow import keras\n", True)])
def test_tf_keras_is_advised_only_where_it_replaces_keras(code: str, advised: bool, tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(code)
    report = report_with()
    report.findings = [Finding("RUN", "Keras 3 makes state", cause="unsupported-by-framework")]

    def compare(_train: Any, **_given: Any) -> Any:
        raise DivergenceError(report)

    with pytest.raises(UndecidedError) as caught:
        compare_script(compare, TriedScript(Script.read(tmp_path / "script.py"), failing=()), {})
    assert ("--keras=tf_keras" in str(caught.value)) == advised


def test_a_limit_of_the_framework_names_the_line_and_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text("import keras\n")
    trace = 'File "/site-packages/keras/src/trainers/trainer.py", line 3, in fit\n'
    message = "`merge_call` called while defining a new graph or a tf.function."
    error = ErrorRecord("RuntimeError", message, trace, 0, file="folder/script.py", line=11)
    report = report_with()
    report.findings = [Finding("RUN", "cannot join the replicas there", cause="unsupported-by-framework")]
    rank = SimpleNamespace(facts={}, optimizers=())
    report.distributed = SimpleNamespace(ranks=[rank], num_steps=0, errors=((rank, error),))

    def compare(_train: Any, **_given: Any) -> Any:
        raise DivergenceError(report)

    with pytest.raises(UndecidedError) as caught:
        compare_script(compare, TriedScript(Script.read(tmp_path / "script.py"), failing=()), {})
    text = str(caught.value)
    assert text.startswith("script.py:11: cannot join the replicas there. Call strategy.run inside the condition")
    assert not text.endswith(".")


RATES = "n = strategy.num_replicas_in_sync\nrate = 0.1 * n\n"


def one_device(verdict: str, examples: int, rate: float) -> Any:
    """A report with what one device consumed in its first step."""
    step = SimpleNamespace(batches=[SimpleNamespace(size=examples)], snapshot={7: (rate,)})
    variables = [SimpleNamespace(index=7, kind=VariableKind.LEARNING_RATE)]
    facts = {"script": ScriptRecord(told=("script.py:1",))}
    rank = SimpleNamespace(facts=facts, steps=[step], variables=variables)
    report = report_with()
    report.verdict, report.reference = verdict, SimpleNamespace(ranks=[rank], num_steps=1, errors=(), refused=None)
    return report


def decided(folder: Path, code: str, **reports: Any) -> str:
    """Return the last text about a script, of which each meaning of the number of replicas has its report."""
    (folder / "script.py").write_text(code)
    texts = list[str]()
    script = TriedScript(Script.read(folder / "script.py"), failing=())
    compare_script(lambda train, **_given: reports[train.meaning.name], script, {}, texts.append)
    return texts[-1]


def test_a_learning_rate_that_grows_with_the_batch_is_named(tmp_path: Path) -> None:
    joined = one_device("fail", 8, 0.1)
    text = decided(tmp_path, RATES, BATCHES=one_device("pass", 8, 0.2), OWN=one_device("fail", 4, 0.1), NOTHING=joined)
    assert "the learning rate follows the number of replicas (script.py:2): 0.2 in both runs, 0.1 on" in text


@pytest.mark.parametrize("verdict", ["pass", "known"])
def test_a_number_that_changes_nothing_is_not_named(verdict: str, tmp_path: Path) -> None:
    reports = {"BATCHES": one_device("pass", 8, 0.1), "OWN": one_device(verdict, 8, 0.1)}
    assert "left open" not in decided(tmp_path, RATES, **reports)
    reports |= {"OWN": one_device("fail", 4, 0.1), "NOTHING": one_device(verdict, 8, 0.1)}
    assert "left open" not in decided(tmp_path, RATES, **reports)


def test_another_product_beside_a_batch_is_named(tmp_path: Path) -> None:
    reports = {"OWN": one_device("fail", 4, 0.2), "NOTHING": one_device("fail", 8, 0.2)}
    text = decided(tmp_path, RATES, BATCHES=one_device("pass", 8, 0.2), **reports)
    assert "left open:    what script.py:2 computes from the number of replicas is equal in both runs" in text


@pytest.mark.parametrize(
    ("code", "examples", "says"),
    [(RATES, 8, "no batch grows with it"), (RATES.replace("*", "/"), 4, "computes something else")],
    ids=["fixed batch", "quotient"],
)
def test_another_number_in_the_arithmetic_is_undecided(code: str, examples: int, says: str, tmp_path: Path) -> None:
    reports = {"OWN": one_device("fail", examples, 0.1), "NOTHING": one_device("fail", 8, 0.1)}
    with pytest.raises(UndecidedError, match=rf"script\.py:2: .*{says}"):
        decided(tmp_path, code, BATCHES=one_device("pass", 8, 0.2), **reports)


def test_a_number_that_chooses_a_part_of_the_examples_is_a_failure(tmp_path: Path) -> None:
    own = one_device("fail", 8, 0.1)
    own.findings = [Finding("DATA-COVER", "the program distributes only shard 0 of 2", cause="examples-dropped")]
    with pytest.raises(DivergenceError):
        decided(tmp_path, RATES, BATCHES=one_device("pass", 8, 0.1), OWN=own)


def own_number(folder: Path, own: Any, *, under: tuple[Any, ...] = ()) -> Any:
    """Decide about a script that one device can only run with its own number of replicas.

    :param own: report of the comparison with this number.
    :param under: errors under the strategy.
    """
    (folder / "script.py").touch()
    failed = one_device("fail", 8, 0.1)
    failed.reference.errors = [
        (0, ErrorRecord("builtins.ValueError", "(8, 4) is no (16, 4)", "", 0, file="a/b.py", line=7))
    ]
    failed.distributed = SimpleNamespace(ranks=failed.reference.ranks, num_steps=1, errors=under)
    reports = {"BATCHES": failed, "OWN": own}

    def compare(train: Any, **_given: Any) -> Any:
        report = reports[train.meaning.name]
        if report.verdict == "fail":
            raise DivergenceError(report)
        return report

    return compare_script(compare, TriedScript(Script.read(folder / "script.py"), failing=()), {})


def test_one_device_that_only_runs_with_its_own_number_is_compared_with_it(tmp_path: Path) -> None:
    own = one_device("pass", 16, 0.1)
    assert own_number(tmp_path, own) is own


def test_one_device_that_trains_in_another_way_with_its_own_number_decides_nothing(tmp_path: Path) -> None:
    with pytest.raises(
        UndecidedError, match=r"^b\.py:7: one device cannot run this with .*\(8, 4\) is no .*tf\.shape\("
    ):
        own_number(tmp_path, one_device("fail", 8, 0.1))


def test_a_difference_at_the_same_batch_and_rate_is_one_of_the_script(tmp_path: Path) -> None:
    own, other = one_device("fail", 16, 0.1), one_device("pass", 16, 0.1)
    own.distributed = other.reference
    with pytest.raises(DivergenceError):
        own_number(tmp_path, own)


def test_a_script_that_fails_everywhere_is_not_run_again(tmp_path: Path) -> None:
    same = (0, ErrorRecord("builtins.ValueError", "(8, 4) is no (16, 4)", "", 0))
    with pytest.raises(UndecidedError, match=r"^b\.py:7: the script fails on one device, too: "):
        own_number(tmp_path, None, under=(same,))


COMPARED, ENDED = [SimpleNamespace(user_properties=pairs) for pairs in ([], [(NOT_COMPARED, "keras-fit-multi-worker")])]


@pytest.mark.parametrize(
    ("stats", "status"),
    [
        ({"passed": [COMPARED], "undecided": [COMPARED]}, 0),
        ({"undecided": [COMPARED]}, 1),
        ({"xfailed": [ENDED]}, 0),
        ({"xfailed": [ENDED], "undecided": [COMPARED]}, 1),
        # Dropout under MirroredStrategy: everything was compared, and a known behavior explains all that differs.
        ({"xfailed": [COMPARED, ENDED], "undecided": [COMPARED]}, 0),
    ],
)
def test_a_known_behavior_that_ended_no_run_is_an_answer(stats: dict[str, list[object]], status: int) -> None:
    manager = SimpleNamespace(get_plugin=lambda _name: SimpleNamespace(stats=stats))
    session: Any = SimpleNamespace(config=SimpleNamespace(pluginmanager=manager), exitstatus=0)
    plugin.pytest_sessionfinish(session, 0)
    assert session.exitstatus == status


def test_a_reason_that_both_packages_of_keras_have_is_given_once() -> None:
    assert str(plugin.with_other_keras("no module", UndecidedError("no module"))) == "no module (with tf_keras, too)"
    assert str(plugin.with_other_keras("no module", "it differs")) == "no module. With tf_keras: it differs"
