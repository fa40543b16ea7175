"""The workflows, this project's and those for users, can be parsed, are careful, and use options that exist."""

from __future__ import annotations

import argparse
import os
import re
import shlex
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from pytest_ddl.cli import COMMANDS

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

yaml = pytest.importorskip("yaml")

ROOT = Path(__file__).parents[2]
WORKFLOWS = [*sorted((ROOT / ".github/workflows").glob("*.yml")), *sorted((ROOT / "docs/workflows").glob("*.yml"))]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
_COMMAND = re.compile(r"(?:^|[\s'\"`(])(?:pytest-ddl|-m pytest_ddl\.cli) ((?:gate|history|asv)\b[^`\n]*)")
_PINNED = re.compile(r"^[\w./-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+$")
"""A commit, which cannot be moved like a tag, and its version for readers and for Dependabot."""


def load(path: Path) -> dict[Any, Any]:
    found: dict[Any, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
    return found


def parser_of(name: str) -> argparse.ArgumentParser:
    (module,) = (command.module for command in COMMANDS if command.name == name)
    parser = argparse.ArgumentParser()
    import_module(module).add_arguments(parser)
    return parser


def options_of(parser: argparse.ArgumentParser) -> set[str]:
    """Return the options of a command and its subcommands."""
    found: set[str] = set()
    for action in parser._actions:
        found |= set(action.option_strings)
        if isinstance(action, argparse._SubParsersAction):
            for sub in action.choices.values():
                found |= options_of(sub)
    return found


def commands_in(text: str) -> list[list[str]]:
    """The words of each call of ``pytest-ddl``, with lines that go on put together."""
    return [match.split() for match in _COMMAND.findall(re.sub(r"\\\n\s*", "", text))]


def unknown_options(words: list[str]) -> list[str]:
    known = options_of(parser_of(words[0]))
    given = [word.strip("'\".,;:()").partition("=")[0] for word in words[1:]]
    return [word for word in given if word.startswith("-") and word not in known]


@pytest.mark.parametrize("path", [*WORKFLOWS, *PAGES], ids=lambda path: str(path.relative_to(ROOT)))
def test_every_option_of_every_command_exists(path: Path) -> None:
    found = commands_in(path.read_text(encoding="utf-8"))
    assert [(words, unknown) for words in found if (unknown := unknown_options(words))] == []


def test_an_option_that_there_is_not_is_seen() -> None:
    (words,) = commands_in('run: |\n  pytest-ddl gate "$BASE" "$HEAD" --counters \\\n    --json gate.json\n')
    assert unknown_options(words) == ["--counters"]


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: str(path.relative_to(ROOT)))
def test_commands_can_be_parsed(path: Path) -> None:
    """Each command has every option that it requires; a missing one would stop the job."""
    for job in load(path)["jobs"].values():
        for step in job["steps"]:
            for line in re.sub(r"\\\n\s*", "", step.get("run", "")).splitlines():
                words = shlex.split(line)
                places = [index for index, word in enumerate(words) if word in ("pytest-ddl", "pytest_ddl.cli")]
                for place in places:
                    parser_of(words[place + 1]).parse_args(words[place + 2 :])


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_shell_can_read_each_script(path: Path) -> None:
    """For example, an apostrophe in the message of a missing variable begins a quotation."""
    runs = [step["run"] for job in load(path)["jobs"].values() for step in job["steps"] if "run" in step]
    read = [subprocess.run(["bash", "-n", "-c", run], capture_output=True, text=True, timeout=60) for run in runs]
    assert [done.stderr for done in read if done.returncode] == []


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: str(path.relative_to(ROOT)))
def test_workflows_are_pinned_limited_and_careful(path: Path) -> None:
    workflow = load(path)
    assert workflow["permissions"] == {"contents": "read"}
    assert "group" in workflow["concurrency"]
    # YAML reads the key "on" as true.
    assert "pull_request_target" not in (workflow[True] or {})
    for job in workflow["jobs"].values():
        assert job["timeout-minutes"] > 0
        for step in job["steps"]:
            # What somebody else wrote, such as the name of a branch, reaches a shell through the environment only.
            assert "${{" not in step.get("run", "")
            if "actions/checkout@" in step.get("uses", ""):
                assert step["with"]["persist-credentials"] is False
        if "self-hosted" in job["runs-on"] and "pull_request" in workflow[True]:
            assert "head.repo.full_name == github.repository" in job["if"]


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: str(path.relative_to(ROOT)))
def test_actions_are_pinned_by_commit(path: Path) -> None:
    used = re.findall(r"uses: (.*)", path.read_text(encoding="utf-8"))
    assert used
    assert [line for line in used if not _PINNED.match(line)] == []


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: str(path.relative_to(ROOT)))
def test_code_of_a_checkout_never_meets_a_token_that_writes(path: Path) -> None:
    """A runner of one's own has a token that reads, and a job with a token that writes runs no Python."""
    for job in load(path)["jobs"].values():
        writes = "write" in job.get("permissions", {}).values()
        runs_python = any("python" in step.get("run", "").lower() for step in job["steps"])
        assert not (writes and ("self-hosted" in job["runs-on"] or runs_python))


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: str(path.relative_to(ROOT)))
def test_modules_of_the_checkout_do_not_shadow_those_of_the_runner(path: Path) -> None:
    """``python -m`` puts the working folder first in ``sys.path``; ``-P`` leaves it out."""
    runs = [step.get("run", "") for job in load(path)["jobs"].values() for step in job["steps"]]
    started = [line for run in runs for line in run.splitlines() if " -m pytest_ddl" in line]
    assert [line for line in started if " -P -m pytest_ddl" not in line] == []


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_gate_that_wrote_nothing_fails(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    written = re.findall(r"--json (\S+)", text)
    uploads = [
        step["with"]
        for job in load(path)["jobs"].values()
        for step in job["steps"]
        if "upload-artifact" in step.get("uses", "")
    ]
    assert sorted(written) == sorted(upload["path"] for upload in uploads if upload["path"].endswith(".json"))
    assert all(upload["if-no-files-found"] == "error" for upload in uploads)


GPU_GATES = [path for path in WORKFLOWS if path.name == "gpu-gate.yml"]


def verdict_of(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = load(path)["jobs"]["gpu-gate-verdict"]
    return found


@pytest.mark.parametrize("path", GPU_GATES, ids=lambda path: str(path.relative_to(ROOT)))
@pytest.mark.parametrize(
    ("result", "exempt", "passes"),
    [
        ("success", "false", True),
        ("skipped", "false", False),  # no label, or a fork
        ("cancelled", "false", False),
        ("failure", "false", False),
        ("", "", False),
        ("skipped", "true", True),
        ("failure", "true", True),
    ],
)
def test_what_was_not_measured_is_no_pass(path: Path, result: str, exempt: str, passes: bool) -> None:
    (step,) = verdict_of(path)["steps"]
    environ = {"PATH": os.environ["PATH"], "RESULT": result, "EXEMPT": exempt}
    # As GitHub runs it on Linux.
    ran = subprocess.run(["bash", "-e", "-c", step["run"]], env=environ, capture_output=True, text=True, timeout=60)
    assert (ran.returncode == 0) is passes
    assert ("::warning::" in ran.stdout) is (passes and result != "success")
    assert ("::error::" in ran.stdout) is not passes


@pytest.mark.parametrize("path", GPU_GATES, ids=lambda path: str(path.relative_to(ROOT)))
def test_the_verdict_is_given_for_every_pull_request(path: Path) -> None:
    job, workflow = verdict_of(path), load(path)
    assert job["needs"] == "gate"
    assert job["if"] == "${{ always() }}"
    assert job["runs-on"] == "ubuntu-latest"
    (step,) = job["steps"]
    assert set(step["env"]) == {"RESULT", "EXEMPT"}
    assert step["env"]["RESULT"] == "${{ needs.gate.result }}"
    assert "'gpu-gate-exempt'" in step["env"]["EXEMPT"]
    # Its label is set and taken away, and its code changes, after it was opened.
    given = workflow[True]["pull_request"]
    assert set(given["types"]) == {"opened", "reopened", "synchronize", "labeled", "unlabeled"}
    assert not {"paths", "paths-ignore", "branches", "branches-ignore"} & set(given)
    # One measurement at a time, and only measurements wait for each other.
    assert workflow["jobs"]["gate"]["concurrency"] == {"group": "gpu-runner", "cancel-in-progress": False}
    assert "github.ref" in workflow["concurrency"]["group"]


def test_the_required_check_has_a_name_of_its_own() -> None:
    """GitHub identifies required checks by the names of jobs, over all workflows."""
    for folder in (".github/workflows", "docs/workflows"):
        names = [name for path in (ROOT / folder).glob("*.yml") for name in load(path)["jobs"]]
        assert names.count("gpu-gate-verdict") == 1
    text = (ROOT / "docs/ci.md").read_text(encoding="utf-8")
    assert "`gpu-gate-verdict`" in text
    assert "`gpu-gate-exempt`" in text


def test_users_have_the_workflows_of_this_project() -> None:
    def shape(path: Path) -> list[str]:
        """Return the lines except those that differ: the place of the configuration, and the trained target."""
        lines = path.read_text(encoding="utf-8").splitlines()
        return [
            re.sub(r"asv_bench/", "", line)
            for line in lines
            if not re.search(r"--target|pip install|pytest-ddl check ", line)
        ]

    for copy in (ROOT / "docs/workflows").glob("*.yml"):
        assert shape(copy) == shape(ROOT / ".github/workflows" / copy.name), copy.name


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: str(path.relative_to(ROOT)))
def test_targets_of_this_project_exist(path: Path) -> None:
    for file, function in re.findall(r"(asv_bench/\S+\.py):(\w+)", path.read_text(encoding="utf-8")):
        assert f"def {function}(run" in (ROOT / file).read_text(encoding="utf-8")


NIGHTLY = load(ROOT / ".github/workflows/nightly.yml")["jobs"]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def environments() -> set[str]:
    """Names of the environments in tox.ini that ``tox`` runs by default."""
    shown = subprocess.run(
        [sys.executable, "-m", "tox", "list", "--no-desc", "-q", "-d", "-c", str(ROOT / "tox.ini")],
        capture_output=True,
        text=True,
        timeout=60,
    )
    return set(shown.stdout.split())


def test_each_environment_runs_every_night_or_for_each_commit() -> None:
    pytest.importorskip("tox")
    in_ci = {"lint": "ruff check", "types": "mypy", "docs": "mkdocs build"}
    ci = (ROOT / ".ci/run").read_text(encoding="utf-8")
    assert [name for name, command in in_ci.items() if command not in ci] == []
    assert set(NIGHTLY["versions"]["strategy"]["matrix"]["environment"]) == environments() - set(in_ci)


def test_each_version_that_the_package_promises_runs() -> None:
    run = set(NIGHTLY["versions"]["strategy"]["matrix"]["environment"])
    promised = {
        number.replace(".", "")
        for line in PROJECT["classifiers"]
        for number in re.findall(r"^Programming Language :: Python :: (3\.\d+)$", line)
    }
    assert promised == {found for name in run for found in re.findall(r"^py(\d+)-tfnewest-keras$", name)}
    tox = (ROOT / "tox.ini").read_text(encoding="utf-8")
    (oldest,) = re.findall(r"tensorflow-cpu>=([\d.]+)", *PROJECT["optional-dependencies"]["cpu"])
    assert f"tfoldest: tensorflow=={oldest}.*" in tox
    (oldest,) = re.findall(r"pytest>=(\d+)", " ".join(PROJECT["dependencies"]))
    assert f"pytestoldest: pytest=={oldest}.0.*" in tox


def test_each_engine_runs_with_what_it_needs() -> None:
    (packages,) = re.findall(r"^packages=\((.*)\)$", (ROOT / ".ci/run").read_text(encoding="utf-8"), re.MULTILINE)
    runs = [step.get("run", "") for step in NIGHTLY["engines"]["steps"]]
    assert any(run.endswith(f" install {packages}") for run in runs)
    assert any("'.[dev,ray]'" in run for run in runs)
    (step,) = (step for step in NIGHTLY["engines"]["steps"] if "pytest tests/hosts" in step.get("run", ""))
    assert step["env"] == {"CI_ENGINES": "required"}
    assert "--nightly" in step["run"]


HISTORIES = [path for path in WORKFLOWS if path.name == "history.yml"]


@pytest.mark.parametrize("path", HISTORIES, ids=lambda path: str(path.relative_to(ROOT)))
def test_results_of_each_night_are_added_to_their_branch(path: Path, tmp_path: Path) -> None:
    (step,) = (step for step in load(path)["jobs"]["keep"]["steps"] if "run" in step)
    origin, machine = tmp_path / "origin.git", {"MACHINE": "gpu", "TOKEN": "none", "GITHUB_SERVER_URL": "https://host"}
    identity = {f"GIT_{who}_{what}": "a@b" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    environ = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), **identity, **machine}

    def git(*words: str, cwd: Path = tmp_path) -> str:
        ran = subprocess.run(["git", *words], cwd=cwd, env=environ, capture_output=True, text=True, timeout=60)
        assert ran.returncode == 0, ran.stderr
        return ran.stdout

    git("init", "--bare", "--initial-branch=main", str(origin))
    for number in (1, 2):
        clone = tmp_path / f"clone{number}"
        git("clone", str(origin), str(clone))
        if number == 1:
            (clone / "train.py").touch()
            git("add", "--all", cwd=clone)
            git("commit", "--message=Start", cwd=clone)
            git("push", "origin", "HEAD:main", cwd=clone)
        (clone / "new-results").mkdir()
        (clone / "new-results" / f"{number}.json").touch()
        ran = subprocess.run(
            ["bash", "-e", "-c", step["run"]],
            cwd=clone,
            env={**environ, "COMMIT": f"c{number}"},
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert ran.returncode == 0, ran.stderr
    assert git("ls-tree", "--name-only", "benchmark-results", cwd=origin).split() == ["1.json", "2.json"]
    subjects = git("log", "--format=%s", "benchmark-results", cwd=origin).splitlines()
    assert subjects == ["Results of c2 on gpu", "Results of c1 on gpu"]


GPU_CHECKS = [path for path in WORKFLOWS if path.name == "gpu-check.yml"]
_PROGRAM = """
import pytest

@pytest.mark.ddl(strategies=["mirrored", "multi_worker_mirrored"])
def test_both_replicas_are_there(ddl_strategy):
    assert ddl_strategy.num_replicas_in_sync == 2
"""


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.parametrize("path", GPU_CHECKS[:1], ids=lambda path: str(path.relative_to(ROOT)))
@pytest.mark.parametrize(("python", "passes"), [('"${@/--ddl-device=gpu/--ddl-device=cpu}"', True), ('"$@"', False)])
def test_the_commands_of_the_check_on_gpus(path: Path, python: str, passes: bool, tmp_path: Path) -> None:
    """All lines run with CPUs in place of GPUs. Without that, a runner that has lost its GPU fails."""
    (tmp_path / "test_mine.py").write_text(_PROGRAM, encoding="utf-8")
    (tmp_path / "pytest.ini").write_text("[pytest]\n", encoding="utf-8")
    interpreter = tmp_path / "python"
    interpreter.write_text(f"#!/usr/bin/env bash\nexec {shlex.quote(sys.executable)} {python}\n", encoding="utf-8")
    interpreter.chmod(0o755)
    given = {"BENCH_PYTHON": str(interpreter), "GPU_TESTS": "test_mine.py", "CUDA_VISIBLE_DEVICES": ""}
    doctor, check = (step for step in load(path)["jobs"]["gpu-check"]["steps"] if "run" in step)

    def run(step: dict[str, Any], left_out: str = "") -> subprocess.CompletedProcess[str]:
        wanted = {name: given[name] for name in step["env"] if name != left_out}
        environ = {**os.environ, **wanted, "CUDA_VISIBLE_DEVICES": ""}
        words = ["bash", "-e", "-o", "pipefail", "-c", step["run"]]
        return subprocess.run(words, cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=300)

    assert run(doctor).returncode == 0
    for step, name in ((doctor, "BENCH_PYTHON"), (check, "GPU_TESTS")):
        stopped = run(step, left_out=name)
        assert stopped.returncode != 0
        assert f"set the repository variable {name}" in stopped.stderr
    ran = run(check)
    assert (ran.returncode == 0) is passes, ran.stdout + ran.stderr
    assert ("2 passed" in ran.stdout) is passes
    assert passes or "mirrored" in ran.stdout + ran.stderr
    assert (tmp_path / "gpu-check.xml").exists() or not passes
