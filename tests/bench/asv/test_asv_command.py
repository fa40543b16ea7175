"""``pytest-ddl asv``: what it writes, what it has asv do, and that a result that was not kept is an error."""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from pytest_ddl.bench.asv import running as asv_command
from pytest_ddl.bench.asv.running import AsvError, command, describe_machine, init
from pytest_ddl.bench.launching import machine
from pytest_ddl.cli import main
from pytest_ddl.commands import asv


def git(folder: Path, *words: str) -> str:
    identity = ["-c", "user.name=u", "-c", "user.email=u@example.org", "-c", "commit.gpgsign=false"]
    done = subprocess.run(["git", "-C", str(folder), *identity, *words], capture_output=True, text=True, check=True)
    return done.stdout.strip()


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with one commit, which is the working folder; the home folder is an empty one."""
    folder, home = tmp_path / "project", tmp_path / "home"
    folder.mkdir()
    home.mkdir()
    git(folder, "init", "-q", "-b", "main")
    (folder / "train.py").write_text("def train(run): ...\n")
    git(folder, "add", "--all")
    git(folder, "commit", "-qm", "Train")
    monkeypatch.chdir(folder)
    monkeypatch.setenv("HOME", str(home))
    return folder


def options(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    asv.add_arguments(parser)
    return parser.parse_args(words)


def test_init_writes_what_asv_can_load(repository: Path) -> None:
    from asv.config import Config

    assert main(["asv", "init", "train:train"]) == 0
    configuration = Config.load("asv.conf.json")
    assert configuration.branches == ["main"]
    assert configuration.launch_method == "spawn"
    assert configuration.regressions_first_commits == {".*\\.Dash.*": None}
    assert "--no-deps" in configuration.build_command[0]
    suite = (repository / "benchmarks" / "training.py").read_text()
    compile(suite, "training.py", "exec")
    assert 'training_suite("train:train"' in suite


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (None, ".asv/\n"),
        ("*.pyc", "*.pyc\n.asv/\n"),
        ("/.asv\n", "/.asv\n"),
        (".*\n", ".*\n"),
    ],
)
def test_init_lets_git_ignore_what_asv_writes(repository: Path, before: str | None, after: str) -> None:
    if before is not None:
        (repository / ".gitignore").write_text(before)
    written = init("train:train", Path())
    assert (Path(".gitignore") in written) == (before != after)
    assert (repository / ".gitignore").read_text() == after
    results = repository / ".asv" / "results"
    results.mkdir(parents=True)
    (results / "benchmarks.json").write_text("{}")
    assert ".asv" not in git(repository, "status", "--porcelain", "--untracked-files=all")


def test_init_leaves_files_that_exist(repository: Path) -> None:
    (repository / "asv.conf.json").write_text("{}")
    with pytest.raises(AsvError, match=r"a file already exists: asv.conf.json"):
        init("train:train", Path())
    assert (repository / "asv.conf.json").read_text() == "{}"


def test_init_says_what_cannot_be_written(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (repository / "benchmarks").write_text("no folder")
    assert main(["asv", "init", "train:train"]) == 1
    assert capsys.readouterr().err == "pytest-ddl asv: benchmarks cannot be written: File exists\n"
    assert not (repository / "asv.conf.json").exists()


@pytest.mark.parametrize("train", ["train.py", "train.py:train", "train:", ":train"])
def test_init_needs_a_module_and_a_function(repository: Path, capsys: pytest.CaptureFixture[str], train: str) -> None:
    assert main(["asv", "init", train]) == 2
    assert f"{train!r} must be of the form module:function" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("train", "words"),
    [
        ("train:trian", "train.py has no 'trian' (did you mean 'train'?); its functions: train"),
        ("trian:train", "there is no module trian here, in src, or installed; is train:train meant?"),
        ("nowhere.at_all:train", "there is no module nowhere.at_all here, in src, or installed\n"),
        ("broken:train", "broken.py cannot be imported: expected ':' (broken.py, line 1)"),
    ],
)
def test_init_needs_a_function_that_is_there(
    repository: Path, capsys: pytest.CaptureFixture[str], train: str, words: str
) -> None:
    (repository / "broken.py").write_text("def train(run) pass")
    assert main(["asv", "init", train]) == 2
    assert words in capsys.readouterr().err
    assert not (repository / "asv.conf.json").exists()


@pytest.mark.parametrize(
    "text",
    ["from helpers import train\n", "train = print\n", "from helpers import *\n", "globals()['train'] = print\n"],
)
def test_init_takes_a_function_however_the_module_has_it(repository: Path, text: str) -> None:
    (repository / "src").mkdir()
    (repository / "src" / "made.py").write_text(text)
    assert main(["asv", "init", "made:train"]) == 0


@pytest.mark.parametrize("train", [".models:train", "train:train.__call__"])
def test_init_takes_a_function_of_the_benchmarks_and_one_of_an_object(repository: Path, train: str) -> None:
    assert main(["asv", "init", train]) == 0


def test_the_machine_has_its_gpus_and_what_was_written_stays(
    repository: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    facts = {"gpu": "NVIDIA H100, NVIDIA H100", "cpu": "of /proc"}
    monkeypatch.setattr(asv_command, "machine_facts", lambda: facts)
    monkeypatch.setattr(asv_command, "_driver", lambda: "550.1")
    found = describe_machine("runner")
    assert (found["gpu"], found["driver"], found["machine"]) == ("NVIDIA H100, NVIDIA H100", "550.1", "runner")
    facts["gpu"] = "another"
    assert describe_machine("runner")["gpu"] == "NVIDIA H100, NVIDIA H100"
    written = json.loads((tmp_path / "home" / ".asv-machine.json").read_text())
    assert set(written) == {"runner", "version"}


def test_the_driver_is_the_line_of_it(tmp_path: Path) -> None:
    version = tmp_path / "version"
    version.write_text("NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54  Thu\nGCC version:  gcc 12\n")
    assert asv_command._driver(version) == "NVIDIA UNIX x86_64 Kernel Module  550.54  Thu"
    assert asv_command._driver(tmp_path / "missing") == ""


def test_the_command_says_the_commit_so_that_results_are_saved() -> None:
    words = command(Path("asv.conf.json"), "a" * 40, options("run", "--machine", "m", "-b", "Gate", "-b", "Dash"))
    assert words[words.index("--set-commit-hash") + 1] == "a" * 40
    assert words[words.index("-E") + 1] == "existing:same"
    assert [words[index + 1] for index, word in enumerate(words) if word == "--bench"] == ["Gate", "Dash"]
    assert words[words.index("--launch-method") + 1] == "spawn"
    assert "--quick" not in words


def test_a_quick_run_keeps_nothing() -> None:
    assert command(Path("c"), "a" * 40, options("run", "--quick"))[-2:] == ["--quick", "--dry-run"]


def test_every_option_that_is_used_is_one_of_asv() -> None:
    used = {word for word in command(Path("c"), "a" * 40, options("run", "--quick", "-b", "x")) if word.startswith("-")}
    known = subprocess.run([sys.executable, "-m", "asv", "run", "--help"], capture_output=True, text=True, check=True)
    assert [word for word in used if f"{word} " not in known.stdout and f"{word}," not in known.stdout] == []


def test_without_a_configuration_init_is_named(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["asv", "run"]) == 1
    assert "pytest-ddl asv init MODULE:FUNCTION" in capsys.readouterr().err


def test_a_commit_that_there_is_not_is_named(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    init("train:train", Path())
    assert main(["asv", "run", "--commit", "nowhere"]) == 1
    assert "nowhere" in capsys.readouterr().err


def with_asv(monkeypatch: pytest.MonkeyPatch, status: int, saves: bool) -> list[list[str]]:
    """Put something in the place of asv that ends so, and writes a result or not."""
    calls: list[list[str]] = []

    def call(words: list[str], cwd: Path, environ: dict[str, str]) -> int:
        calls.append(words)
        assert environ["ASV_PYTHONPATH"] == os.getcwd()
        folder = cwd / ".asv" / "results" / words[words.index("--machine") + 1]
        folder.mkdir(parents=True, exist_ok=True)
        if saves:
            (folder / f"{words[words.index('--set-commit-hash') + 1][:8]}-env.json").write_text("{}")
        return status

    monkeypatch.setattr(asv_command, "call", call)
    return calls


@pytest.mark.parametrize("status", [0, 2])
def test_the_exit_status_is_that_of_asv(status: int, repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    init("train:train", Path())
    with_asv(monkeypatch, status, saves=True)
    assert main(["asv", "run", "--machine", "m"]) == status


@pytest.mark.parametrize(("load", "is_told"), [(0.9, False), (3.2, True)])
def test_a_busy_machine_is_reported(
    load: float, is_told: bool, repository: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(machine.os, "getloadavg", lambda: (load, 0, 0))
    monkeypatch.setattr(machine.os, "sched_getaffinity", lambda _pid: {0, 1})
    init("train:train", repository)
    with_asv(monkeypatch, 0, saves=True)
    assert main(["asv", "run", "--machine", "m"]) == 0
    assert ("the machine is busy (load 3.2 on 2 cores): counters are exact" in capsys.readouterr().err) is is_told


def test_a_run_that_saved_nothing_is_an_error(
    repository: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    init("train:train", Path())
    with_asv(monkeypatch, 0, saves=False)
    assert main(["asv", "run", "--machine", "m"]) == 1
    commit = git(repository, "rev-parse", "HEAD")[:8]
    assert f"asv ended with status 0 and saved no result for {commit}" in capsys.readouterr().err


@pytest.mark.parametrize("revision", ["HEAD", "HEAD~1"])
def test_other_files_than_those_of_the_commit_are_never_kept_as_its_result(
    revision: str, repository: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    init("train:train", Path())
    calls = with_asv(monkeypatch, 0, saves=True)
    (repository / "train.py").write_text("def train(run): run\n")
    if revision == "HEAD~1":
        git(repository, "commit", "-qam", "Train more")
    assert main(["asv", "run", "--machine", "m", "--commit", revision]) == 1
    told = capsys.readouterr().err
    assert f"--commit={revision}: files differ from {git(repository, 'rev-parse', revision)[:8]}" in told
    assert str(repository / "train.py") in told
    assert calls == []
    # What is not kept may be of any files.
    assert main(["asv", "run", "--machine", "m", "--commit", revision, "--quick"]) == 0


def test_an_older_commit_is_measured_in_a_checkout_of_it(
    repository: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The benchmarks of today measure the older commit, as asv does. Files that asv writes may be tracked."""
    init("train:train", Path())
    (repository / "train.py").write_text("def train(run): run\n")
    results = repository / ".asv" / "results" / "benchmarks.json"
    results.parent.mkdir(parents=True)
    results.write_text("{}")
    git(repository, "add", "--all", "--force")
    git(repository, "commit", "-qm", "Train more")
    old = repository.parent / "old"
    git(repository, "worktree", "add", "-q", "--detach", str(old), "HEAD~1")
    results.write_text('{"version": 2}')
    monkeypatch.setattr(asv_command, "call", lambda _words, _folder, _environ: 3)
    assert main(["asv", "run", "--machine", "m", "--commit", "HEAD~1", "--path", str(old)]) == 3
    assert main(["asv", "run", "--machine", "m"]) == 3
    assert "differ from" not in capsys.readouterr().err
    (repository / "benchmarks" / "training.py").write_text("")
    assert main(["asv", "run", "--machine", "m"]) == 3
    assert "benchmarks differ from" in capsys.readouterr().err


def test_an_interrupted_run_is_said_and_has_a_status_of_its_own(
    repository: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    init("train:train", Path())

    def call(*_given: object) -> int:
        os.kill(os.getpid(), signal.SIGTERM)
        return 0

    monkeypatch.setattr(asv_command, "call", call)
    assert main(["asv", "run", "--machine", "m"]) == 130
    assert "interrupted" in capsys.readouterr().err
