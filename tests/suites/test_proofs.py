"""Proofs that tests of the suite can fail: planted defects, and the record of what they make fail."""

from __future__ import annotations

import pytest

from suites.defects import DEFECTS
from suites.proofs import failed_tests, load, main, merged, run

REPORT = """<testsuites><testsuite>
<testcase classname="s.test_one" name="test_value[mirrored-eager]"><failure message="wrong">E</failure></testcase>
<testcase classname="s.test_one" name="test_value[central_storage]"/>
<testcase classname="s.test_one" name="test_passes"/>
<testcase classname="s.test_one" name="test_slow"><failure message="deadline exceeded: rank 0"/></testcase>
<testcase classname="s.test_one" name="test_known"><failure message="[XPASS(strict)] why"/></testcase>
<testcase classname="s.test_one" name="test_setup"><error message="wrong"/></testcase>
</testsuite></testsuites>"""


def test_only_a_failure_of_its_own_proves_a_test():
    assert failed_tests(REPORT) == {"test_one.py::test_value"}


def test_a_new_run_of_a_defect_replaces_its_older_one():
    before = {"a": ["one", "two"], "b": ["one"]}
    assert merged(before, "one", ["c", "a"]) == {"a": ["one", "two"], "c": ["one"]}


def test_each_defect_says_what_it_is_and_which_tests_may_see_it():
    assert all(defect.what.endswith(".") and defect.tests for defect in DEFECTS.values())
    recorded = {name for names in load().values() for name in names}
    assert recorded <= set(DEFECTS)


def test_an_unknown_defect_is_refused(capsys):
    with pytest.raises(SystemExit):
        main(["no_such_defect"])
    assert "no defect no_such_defect; valid: all_reduce_of_own_value" in capsys.readouterr().err


@pytest.mark.slow
def test_a_planted_defect_makes_tests_fail():
    found = run(DEFECTS["all_reduce_of_own_value"], ["--ddl-strategy=mirrored"])
    assert "test_collectives.py::test_all_reduce_sum_equals_numpy" in found
    assert "test_contexts.py::test_truth_table_of_contexts" not in found
