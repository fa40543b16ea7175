"""Features of pytest that tests on ranks can use: one project, one run, one behavior to a test."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.plugin.conftest import PATIENT

pytestmark = pytest.mark.slow

PROJECT = {
    "conftest.py": """
        import pytest, pytest_ddl

        @pytest.fixture(scope="session")
        def whole_session(ddl_strategy):
            # Not a global: what a test leaves in one does not reach the next test.
            log = ["session up"]
            yield log
            log.append("session down")

        @pytest.fixture(scope="module")
        def whole_module(whole_session):
            whole_session.append("module up")
            yield whole_session
            whole_session.append("module down")

        @pytest.fixture
        def one_test(whole_module):
            whole_module.append("test up")
            yield whole_module
            whole_module.append("test down")
    """,
    "sub/conftest.py": """
        import pytest

        @pytest.fixture
        def ddl_strategy(ddl_strategy):
            # A user's override that builds on the original.
            return ("overridden", ddl_strategy)
    """,
    "sub/test_same_name.py": """
        import pytest

        @pytest.mark.ddl(strategies="mirrored")
        def test_override(ddl_strategy):
            word, strategy = ddl_strategy
            assert word == "overridden" and strategy.num_replicas_in_sync == 2
    """,
    "test_same_name.py": """
        import pytest

        @pytest.mark.ddl(strategies="mirrored")
        def test_original(ddl_strategy):
            assert ddl_strategy.num_replicas_in_sync == 2
    """,
    "test_features.py": """
        import logging
        import pytest, pytest_ddl
        from pytest_ddl import current_rank

        pytestmark = pytest.mark.ddl(strategies="multi_worker_mirrored")

        @pytest.mark.parametrize("number", [1, 2])
        def test_parameters(ddl_strategy, number):
            assert number in (1, 2)

        def test_scopes_up(one_test):
            assert one_test == ["session up", "module up", "test up"]

        def test_scopes_again(one_test):
            assert one_test == ["session up", "module up", "test up", "test down", "test up"]

        class TestMethods:
            value = 3

            def test_method(self, ddl_strategy):
                assert self.value == 3

        @pytest.mark.parametrize("ddl_strategy", ["mirrored[replicas=3]", "one_device"], indirect=True)
        def test_indirect(ddl_strategy):
            assert ddl_strategy.num_replicas_in_sync in (1, 3)

        def test_own_fixture_of_a_strategy(mirrored_strategy):
            assert current_rank().num_replicas == 2

        def test_capsys(ddl_strategy, capsys):
            print("spoken")
            assert capsys.readouterr().out == "spoken\\n"

        def test_caplog(ddl_strategy, caplog):
            with caplog.at_level(logging.INFO):
                logging.getLogger("mine").info("logged on %d", current_rank().rank)
            assert caplog.messages == [f"logged on {current_rank().rank}"]

        def test_prints(ddl_strategy):
            print(f"printed on {current_rank().rank}")
            logging.getLogger("mine").warning("logged on rank %d", current_rank().rank)
            assert False

        def test_prints_much(ddl_strategy):
            print("begin", "much " * 1_000_000, "end", sep="\\n")
            assert False

        def test_tmp_path(ddl_strategy, tmp_path, tmp_path_factory):
            assert f"rank{current_rank().rank}" in str(tmp_path)
            assert "multi_worker_mirrored" in str(tmp_path_factory.getbasetemp())
            (tmp_path / "file").write_text("kept")

        def test_rewritten_assertion(ddl_strategy):
            assert [1, 2] == [1, 3]

        @pytest.mark.xfail(reason="known")
        def test_xfail(ddl_strategy):
            raise ValueError

        @pytest.mark.xfail(reason="known on rank 1", raises=ValueError)
        def test_xfail_on_one_rank(ddl_strategy):
            if current_rank().rank == 1:
                raise ValueError

        @pytest.mark.xfail(reason="known death")
        def test_xfail_by_death(ddl_strategy):
            import os
            os._exit(3)

        @pytest.mark.xfail(raises=KeyError)
        def test_xfail_for_another_reason(ddl_strategy):
            raise ValueError("not a key")

        @pytest.mark.xfail(strict=True)
        def test_xpass_strict(ddl_strategy):
            pass

        @pytest.mark.xfail(strict=True, reason="known")
        def test_xfail_strict(ddl_strategy):
            raise ValueError(current_rank().rank)

        @pytest.mark.xfail(strict=True, reason="known")
        def test_xfail_strict_on_one_rank(ddl_strategy):
            if current_rank().rank == 1:
                raise ValueError("alone")

        @pytest.mark.xfail(strict=True, reason="known")
        def test_xfail_strict_by_death_of_one(ddl_strategy):
            if current_rank().rank == 1:
                import os
                os._exit(3)

        @pytest.mark.xfail
        def test_xpass(ddl_strategy):
            pass

        @pytest.mark.skipif("True", reason="by condition")
        def test_skipif(ddl_strategy):
            raise AssertionError

        @pytest.mark.skip("by marker")
        def test_skip(ddl_strategy):
            raise AssertionError

        def test_importorskip(ddl_strategy):
            pytest.importorskip("no_such_module_anywhere")

        def test_skip_on_all(ddl_strategy):
            pytest.skip("on all")

        @pytest.mark.gpu(min=64)
        def test_gpu(ddl_strategy):
            raise AssertionError

        def test_warns(ddl_strategy):
            import warnings
            with pytest.warns(UserWarning):
                warnings.warn("expected")

        def test_warning_is_summarized(ddl_strategy):
            import warnings
            warnings.warn("seen on all ranks, told once")

        @pytest.mark.ddl(strategies="multi_worker_mirrored", isolation="fresh")
        def test_fresh(one_test):
            assert one_test == ["session up", "module up", "test up"]

        @pytest.mark.ddl(strategies="mirrored", replicas=3)
        def test_shape(ddl_strategy):
            assert ddl_strategy.num_replicas_in_sync == 3

        def test_plain():
            assert current_rank() is None
    """,
    "test_subtests.py": """
        import pytest
        from pytest_ddl import current_rank

        pytestmark = pytest.mark.ddl(strategies="multi_worker_mirrored")

        def test_subtests_pass(ddl_strategy, subtests):
            for i in range(3):
                with subtests.test(i=i):
                    assert i >= 0

        def test_subtests_fail(ddl_strategy, subtests):
            for i in range(3):
                with subtests.test("step"):
                    assert i != 1, f"wrong at {i}"

        def test_subtest_fails_on_one_rank(ddl_strategy, subtests):
            with subtests.test("only there"):
                assert current_rank().rank == 0

        def test_subtest_missing_on_one_rank(ddl_strategy, subtests):
            if current_rank().rank == 0:
                with subtests.test("lonely"):
                    pass
    """,
}
LABEL = "multi_worker_mirrored"


@pytest.fixture(scope="module")
def run(new_project: Callable[..., Any]) -> Any:
    return new_project(PROJECT | PATIENT).pytest("-p", "patient", "--import-mode=importlib", "-ra")


def test_the_run_leaves_nothing(run: Any) -> None:
    assert (run.processes, run.files) == ([], [])


@pytest.mark.parametrize(
    "name",
    [
        f"test_parameters[{LABEL}-1]",
        f"test_parameters[{LABEL}-2]",
        f"test_scopes_up[{LABEL}]",
        f"test_scopes_again[{LABEL}]",
        f"test_method[{LABEL}]",
        "test_indirect[mirrored[replicas=3]]",
        "test_indirect[one_device]",
        "test_own_fixture_of_a_strategy[mirrored]",
        f"test_capsys[{LABEL}]",
        f"test_caplog[{LABEL}]",
        f"test_tmp_path[{LABEL}]",
        f"test_warns[{LABEL}]",
        f"test_warning_is_summarized[{LABEL}]",
        f"test_fresh[{LABEL}]",
        "test_shape[mirrored[replicas=3]]",
        "test_plain",
        "test_override[mirrored]",
        "test_original[mirrored]",
        f"test_subtests_pass[{LABEL}]",
        f"test_xpass[{LABEL}]",
    ],
)
def test_passes(run: Any, name: str) -> None:
    assert run[name].outcome == "passed", run[name].text


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("test_skipif", "by condition"),
        ("test_skip", "by marker"),
        ("test_importorskip", "could not import 'no_such_module_anywhere'"),
        ("test_skip_on_all", "on all"),
        ("test_gpu", "needs 64 GPUs"),
    ],
)
def test_skips_with_the_reason(run: Any, name: str, reason: str) -> None:
    case = run[f"{name}[{LABEL}]"]
    assert (case.outcome, reason in case.text) == ("skipped", True), case.text


@pytest.mark.parametrize("name", ["test_xfail", "test_xfail_on_one_rank", "test_xfail_by_death", "test_xfail_strict"])
def test_expected_failures(run: Any, name: str) -> None:
    assert run[f"{name}[{LABEL}]"].outcome == "xfailed", run[f"{name}[{LABEL}]"].text


def test_an_expected_failure_of_one_rank_says_so(run: Any) -> None:
    text = run[f"test_xfail_on_one_rank[{LABEL}]"].text
    assert "known on rank 1 [rank 0 of 2 xpassed; rank 1 of 2 xfailed (ValueError)]" in text


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("test_xfail_for_another_reason", "ValueError: not a key"),
        ("test_xpass_strict", "XPASS(strict)"),
        ("test_xfail_strict_on_one_rank", "rank 0 of 2 xpassed; rank 1 of 2 xfailed (ValueError: alone)"),
        ("test_xfail_strict_by_death_of_one", "the ranks disagree: rank 0 of 2 xpassed"),
    ],
)
def test_expectations_that_are_not_met(run: Any, name: str, text: str) -> None:
    case = run[f"{name}[{LABEL}]"]
    assert (case.outcome, text in case.text) == ("failed", True), case.text


def test_assertions_of_a_rank_are_explained(run: Any) -> None:
    case = run[f"test_rewritten_assertion[{LABEL}]"]
    assert case.outcome == "failed"
    assert "At index 1 diff: 2 != 3" in case.text


def test_equal_failures_are_reported_once(run: Any) -> None:
    text = run.stdout.split("test_rewritten_assertion[multi_worker_mirrored] ___")[1].split("\n____")[0]
    assert text.count("At index 1 diff: 2 != 3") == 1
    assert "this happened on all 2 ranks" in text


def test_output_is_labelled_by_rank(run: Any) -> None:
    assert re.search(r"Captured stdout call \[rank 1\] -+\nprinted on 1\n", run.stdout), run.stdout
    assert "printed on 0" in run[f"test_prints[{LABEL}]"].text, "JUnit reports have the output of all ranks"


def test_log_records_are_labelled_by_rank(run: Any) -> None:
    text = run[f"test_caplog[{LABEL}]"].text
    assert "logged on 0" in text
    assert "logged on 1" in text


def test_log_records_of_a_failure_are_those_of_all_ranks(run: Any) -> None:
    failure = run.stdout.split(f"test_prints[{LABEL}] ___")[1].split("\n____")[0]
    for rank in (0, 1):
        assert re.search(
            rf"Captured log call \[rank {rank}\] -+\nWARNING +mine:\S+ logged on rank {rank}\n", failure
        ), failure


def test_long_output_is_cut_and_is_in_a_file(run: Any) -> None:
    failure = run.stdout.split(f"test_prints_much[{LABEL}] ___")[1].split("\n____")[0]
    assert len(failure) < 60_000
    for rank in (0, 1):
        shown = failure.split(f"Captured stdout call [rank {rank}] ---")[1]
        path = re.search(r"All 5,000,011 are in (\S+) …", shown)
        assert path is not None, shown
        text = Path(path[1]).read_text()
        assert (text.startswith("begin\nmuch "), text.endswith(" \nend\n"), len(text)) == (True, True, 5_000_011)
        assert "much \nend" in shown


def test_failing_subtests_fail_the_test(run: Any) -> None:
    assert f"SUBFAILED[step] test_subtests.py::test_subtests_fail[{LABEL}]" in run.stdout
    assert "wrong at 1" in run.stdout
    assert "contains 1 failed subtest" in run.stdout
    assert "failed" in run[f"test_subtests_fail[{LABEL}]"].outcome


def test_a_subtest_that_fails_on_one_rank_fails(run: Any) -> None:
    assert f"SUBFAILED[only there] test_subtests.py::test_subtest_fails_on_one_rank[{LABEL}]" in run.stdout


def test_a_subtest_that_a_rank_lacks_fails(run: Any) -> None:
    assert "did not run on rank 1 of 2" in run.stdout


def test_warnings_of_ranks_are_in_the_summary_once(run: Any) -> None:
    assert run.stdout.count("UserWarning: seen on all ranks, told once") == 1
