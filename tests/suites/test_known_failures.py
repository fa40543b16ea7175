"""Test how the list of known failures is parsed and matched, and which errors an invalid entry gives."""

from __future__ import annotations

import pytest

from pytest_ddl.equivalence.known.catalogue import KNOWN
from suites.known_failures import REPROS, load
from suites.subject import KERAS

ENTRY = """
[[failure]]
test = 'test_training\\.py::test_fit\\[.*uneven'
strategies = ["mirrored"]
causes = ["reported-loss-wrong"]
keras = ">=3.15,<3.16"
reason = "why"
link = "https://example.org/1"
"""


@pytest.mark.parametrize(
    ("nodeid", "strategy", "expected"),
    [
        ("suites/test_training.py::test_fit[mirrored-mlp-uneven]", "mirrored", True),
        ("suites/test_training.py::test_fit[mirrored-mlp-even]", "mirrored", False),
        ("suites/test_training.py::test_fit[central_storage-mlp-uneven]", "central_storage", False),
    ],
)
def test_an_entry_is_about_a_test_under_a_strategy(nodeid, strategy, expected):
    (entry,) = load(ENTRY)
    assert entry.matches(nodeid, strategy) is expected


@pytest.mark.parametrize(("keras", "expected"), [("3.14.9", False), ("3.15.1", True), ("3.16", False)])
def test_an_entry_is_about_versions(keras, expected):
    (entry,) = load(ENTRY)
    assert entry.applies({"keras": keras, "tensorflow": "2.21.0"}) is expected


TENSORFLOW = 'tensorflow = ">=2.21,<2.22"'
RANGE = 'keras = ">=3.15,<3.16"'


@pytest.mark.parametrize(
    ("ranges", "subjects"),
    [
        (TENSORFLOW, {"keras", "tf_keras"}),
        (RANGE, {"keras"}),
        ('tf_keras = ">=2.21,<2.22"', {"tf_keras"}),
        ('tf_keras = "<2.20"', set()),
        (f'{RANGE}\ntf_keras = ">=2.21,<2.22"', {"keras", "tf_keras"}),
        (f'{TENSORFLOW}\nkeras = "<3.15"', set()),
    ],
)
def test_an_entry_is_about_the_packages_of_its_ranges(ranges, subjects):
    (entry,) = load(ENTRY.replace(RANGE, ranges))
    versions = {"keras": "3.15.1", "tensorflow": "2.21.0", "tf_keras": "2.21.0"}
    assert {subject for subject in KERAS if entry.applies(versions, subject)} == subjects


def test_an_entry_says_where_it_is_tracked_or_shown():
    (entry,) = load(ENTRY)
    assert entry.explanation == "why (https://example.org/1)"
    name = sorted(path.stem for path in REPROS.glob("*.py"))[0]
    (entry,) = load(ENTRY.replace("link = ", f"repro = '{name}' # "))
    assert entry.explanation == f"why (suites/repros/{name}.py)"


def test_an_entry_of_the_catalogue_has_its_causes_versions_and_link():
    (entry,) = load("[[failure]]\ntest = 'test_fit'\nknown = 'keras-fit-multi-worker'\n")
    behavior = KNOWN["keras-fit-multi-worker"]
    assert (entry.causes, entry.reason, entry.link) == (behavior.causes, behavior.title, behavior.link)
    assert entry.applies({"keras": "3.15.1", "tensorflow": "2.21.0"})
    assert not entry.applies({"keras": "3.17.0", "tensorflow": "2.21.0"})


def test_an_entry_of_the_catalogue_may_have_a_message():
    (entry,) = load("[[failure]]\ntest = 'x'\nknown = 'dtensor-tensor-lists'\nmessage = 'TensorList'\n")
    assert entry.message == "TensorList"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[[failure]]\ntest = 'x'\nknown = 'keras-fit'\n", "'keras-fit' is no known behavior; valid: keras-seed"),
        ("[[failure]]\ntest = 'x'\nknown = 'keras-fit-strings'\nlink = 'x'\n", r"unknown \['link'\]"),
        (ENTRY.replace("keras =", "kera ="), r"unknown \['kera'\]"),
        (ENTRY.replace("reason =", "repro ="), r"missing \['reason'\]"),
        (ENTRY.replace("link =", "repro ="), "needs a link, or the name of a program of repros/"),
        (ENTRY.replace("reported-loss-wrong", "reported-loss-bad"), "'reported-loss-bad' is no cause"),
        (f'{ENTRY}device = "gpus"', "device must be one of cpu, gpu"),
        (ENTRY.replace("reported-loss-wrong", "worker-raised"), "needs the message of the exception, as a pattern"),
    ],
)
def test_a_wrong_entry_is_shown(text, told):
    with pytest.raises(ValueError, match=told):
        load(text)


@pytest.mark.slow
@pytest.mark.parametrize(("device", "failed"), [("cpu", 0), ("gpu", 1)])
def test_an_entry_is_about_a_kind_of_device(device, failed, run_suite):
    """The replicas of this test run on CPUs."""
    body = "import pytest\n\n@pytest.mark.ddl_item('metric.Mean')\ndef test_it(ddl_strategy):\n    assert not 1\n"
    entry = ENTRY.replace(r"test_training\.py::test_fit\[.*uneven", "test_it").replace('keras = ">=3.15,<3.16"', "")
    result = run_suite(body, "--ddl-strategy=mirrored", failures=f'{entry}device = "{device}"\n')
    result.assert_outcomes(failed=failed, xfailed=1 - failed)


OUTCOMES = """
import numpy as np
import pytest

pytestmark = pytest.mark.ddl_item("metric.Mean")

def wrong_value():
    np.testing.assert_array_equal([1], [2])

def other_error():
    raise KeyError("unrelated")

def known_error():
    raise KeyError("merge_call")

def nothing():
    pass

@pytest.mark.ddl
@pytest.mark.parametrize("body", [wrong_value, other_error, nothing])
def test_value_on_ranks(ddl_strategy, body):
    body()

@pytest.mark.parametrize("body", [wrong_value, other_error, nothing])
def test_value_here(ddl_strategy, body):
    body()

@pytest.mark.ddl
@pytest.mark.parametrize("body", [known_error, other_error, wrong_value])
def test_error_on_ranks(ddl_strategy, body):
    body()
"""


@pytest.mark.slow
def test_a_known_failure_excuses_only_itself(run_suite):
    entry = ENTRY.replace(r"test_training\.py::test_fit\[.*uneven", "{test}").replace(
        'keras = ">=3.15,<3.16"', "{more}"
    )
    failures = entry.format(test="test_value_", more="") + entry.format(
        test="test_error_on_ranks", more='message = "merge_call"'
    )
    result = run_suite(OUTCOMES, "-rA", "--ddl-strategy=mirrored", failures=failures)
    lines = result.stdout.lines
    outcomes = {
        (line.split("::")[1].split("[")[0], name): line.split()[0]
        for line in lines
        for name in ("wrong_value", "other_error", "known_error", "nothing")
        if line.startswith(("XFAIL", "FAILED", "PASSED")) and name in line.partition(" - ")[0]
    }
    assert outcomes == {
        ("test_value_on_ranks", "wrong_value"): "XFAIL",
        ("test_value_on_ranks", "other_error"): "FAILED",
        ("test_value_on_ranks", "nothing"): "FAILED",
        ("test_value_here", "wrong_value"): "XFAIL",
        ("test_value_here", "other_error"): "FAILED",
        ("test_value_here", "nothing"): "FAILED",
        ("test_error_on_ranks", "known_error"): "XFAIL",
        ("test_error_on_ranks", "other_error"): "FAILED",
        ("test_error_on_ranks", "wrong_value"): "FAILED",
    }, result.stdout.str()
    result.stdout.fnmatch_lines(["*another way: expected a message with 'merge_call', got KeyError: 'unrelated'"])


DIVERGING = """
import pytest
import pytest_ddl

@pytest.mark.ddl_item("metric.Mean")
@pytest.mark.ddl
@pytest.mark.parametrize("right", [(), (0,), (0, 1)])
def test_it(ddl_strategy, right):
    assert pytest_ddl.current_rank().rank in right
"""


@pytest.mark.slow
@pytest.mark.parametrize(("cause", "failed"), [("workers-diverged", 1), ("reported-loss-wrong", 2)])
def test_only_workers_that_diverge_may_be_right_on_some_ranks(run_suite, cause, failed):
    entry = ENTRY.replace(r"test_training\.py::test_fit\[.*uneven", "test_it").replace('keras = ">=3.15,<3.16"', "")
    entry = entry.replace("reported-loss-wrong", cause).replace('"mirrored"', '"multi_worker_mirrored"')
    result = run_suite(DIVERGING, "--ddl-strategy=multi_worker_mirrored", failures=entry)
    result.assert_outcomes(failed=failed, xfailed=3 - failed)


DEATHS = """
import os
import signal

import pytest

@pytest.mark.ddl_item("metric.Mean")
@pytest.mark.ddl
@pytest.mark.parametrize("body", ["dies", "ends"])
def test_it(ddl_strategy, body):
    os.kill(os.getpid(), signal.SIGSEGV) if body == "dies" else os._exit(3)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("cause", "outcomes"), [("worker-died", ["XFAIL", "FAILED"]), ("worker-raised", ["FAILED"] * 2)]
)
def test_a_rank_may_be_known_to_die_in_one_way(run_suite, cause, outcomes):
    entry = ENTRY.replace(r"test_training\.py::test_fit\[.*uneven", "test_it").replace('keras = ">=3.15,<3.16"', "")
    entry = entry.replace("reported-loss-wrong", cause) + 'message = "SIGSEGV"\n'
    result = run_suite(DEATHS, "-rA", "--ddl-strategy=mirrored", failures=entry)
    found = [line.split()[0] for line in result.stdout.lines if line.startswith(("XFAIL", "FAILED")) and "::" in line]
    assert sorted(found, reverse=True) == outcomes, result.stdout.str()


ENDS = """
import os
import signal
from pathlib import Path

import pytest

pytestmark = [pytest.mark.ddl_item("metric.Mean"), pytest.mark.ddl]
first = Path({first!r})

def test_dies_once(ddl_strategy):
    if not first.exists():
        first.touch()
        os.kill(os.getpid(), signal.SIGSEGV)

def test_dies(ddl_strategy):
    os.kill(os.getpid(), signal.SIGSEGV)

def test_is_wrong(ddl_strategy):
    raise AssertionError("wrong")
"""


@pytest.mark.slow
@pytest.mark.parametrize(("strategy", "reruns"), [("one_device", {"dies_once": 1, "dies": 1}), ("mirrored", {})])
def test_a_process_that_a_dropped_iterator_may_have_ended_runs_once_more(run_suite, tmp_path, strategy, reruns):
    pytest.importorskip("pytest_rerunfailures", reason="pytest-rerunfailures is not installed")
    result = run_suite(ENDS.format(first=str(tmp_path / "first")), "-rAR", f"--ddl-strategy={strategy}", failures="")
    seen = [line.split()[:2] for line in result.stdout.lines if line.startswith(("PASSED", "FAILED", "RERUN"))]
    found = [(outcome, test.partition("::test_")[2].partition("[")[0]) for outcome, test in seen]
    assert {test: found.count(("RERUN", test)) for outcome, test in found if outcome == "RERUN"} == reruns
    assert (("PASSED", "dies_once") in found) == bool(reruns), result.stdout.str()
    assert {("FAILED", "dies"), ("FAILED", "is_wrong")} <= set(found), result.stdout.str()


ONE = """
import numpy as np
import pytest

pytestmark = pytest.mark.ddl_item("metric.Mean")

@pytest.mark.ddl
def test_raises(ddl_strategy):
    raise KeyError("no (such) thing")

def test_value(ddl_strategy):
    np.testing.assert_array_equal([1], [2])
"""


@pytest.mark.slow
def test_a_failure_shows_the_entry_that_makes_it_an_expected_one(run_suite, pytester):
    result = run_suite(ONE, "--ddl-strategy=mirrored", failures="")
    result.assert_outcomes(failed=2)
    shown = result.stdout.str().split("[[failure]]\n")[1:]
    entries = ["[[failure]]\n" + entry.partition('"?"  #')[0] + '"https://example.org/1"\n' for entry in shown]
    assert len(entries) == 2
    (pytester.path / "mine.toml").write_text(
        "\n".join(entries).replace('causes = ["?"]', 'causes = ["workers-diverged"]')
    )
    result = run_suite(ONE, "--ddl-strategy=mirrored", "--ddl-expected-failures=mine.toml", failures="")
    result.assert_outcomes(xfailed=2)


SUBJECTS = """
import numpy as np
import pytest

pytestmark = pytest.mark.ddl_item("metric.Mean")

@pytest.mark.parametrize("of", ["keras", "tf_keras"])
def test_value(ddl_strategy, of):
    np.testing.assert_array_equal([1], [2])

@pytest.mark.ddl(strategies=["mirrored"], keras="tf_keras")
@pytest.mark.parametrize("of", ["tf_keras"])
def test_marked(ddl_strategy, of):
    np.testing.assert_array_equal([1], [2])
"""


@pytest.mark.nightly(each_commit=("tf_keras",))
@pytest.mark.slow
@pytest.mark.parametrize(("package", "other"), [KERAS, KERAS[::-1]])
def test_an_entry_of_one_package_excuses_no_failure_of_the_other(run_suite, package, other):
    entries = [
        ENTRY.replace(r"test_training\.py::test_fit\[.*uneven", rf"-{name}\]").replace("keras =", f"{name} =")
        for name in KERAS
    ]
    failures = "\n".join(entries).replace(">=3.15,<3.16", ">0")
    result = run_suite(SUBJECTS, "-rA", "--ddl-strategy=mirrored", f"--ddl-keras={package}", failures=failures)
    outcomes = {
        line.split("::")[1].split(" ")[0]: line.split()[0]
        for line in result.stdout.lines
        if line.startswith(("XFAIL", "FAILED"))
    }
    assert outcomes == {
        f"test_value[mirrored-{package}]": "XFAIL",
        f"test_value[mirrored-{other}]": "FAILED",
        "test_marked[mirrored-tf_keras]": "XFAIL",
    }, result.stdout.str()
    assert not [line for line in result.stdout.lines if "matches no test" in line]
    (entry,) = (text.partition("reason")[0] for text in result.stdout.str().split("[[failure]]\n")[1:])
    assert f'\n{package} = "==' in entry
    assert f'\n{other} = "==' not in entry


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (None, "[Errno 2] No such file or directory:*"),
        ("[[failure]]\ntests = 'x'\n", "mine.toml: {'tests': 'x'}: unknown ['tests'], missing ['test', *"),
        ("[[", "Invalid*"),
    ],
)
def test_a_file_of_entries_that_cannot_be_read_is_an_error(run_suite, pytester, text, told):
    if text is not None:
        (pytester.path / "mine.toml").write_text(text)
    result = run_suite(ONE, "--collect-only", "--ddl-expected-failures=mine.toml")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"*--ddl-expected-failures=mine.toml: {told.replace('[', '[[]')}"])
