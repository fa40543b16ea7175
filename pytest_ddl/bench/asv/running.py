"""Set up asv for a training function, describe this machine in asv's file, and run asv on a commit."""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest_ddl
from pytest_ddl.bench.asv.suite import QUICK
from pytest_ddl.bench.gate.target import VersionTarget
from pytest_ddl.bench.git import GitError, git
from pytest_ddl.bench.launching.machine import load_note, machine_facts
from pytest_ddl.bench.launching.processes import GRACE, Processes, die_with
from pytest_ddl.bench.outcome import INTERRUPTED
from pytest_ddl.bench.provenance import SourceTrees
from pytest_ddl.definitions import lacks
from pytest_ddl.installing import install_line

CONFIGURATIONS = ("asv.conf.json", "asv_bench/asv.conf.json")
ASV_RUNNER = "0.3.2"
_FOLDER = ".asv"
"""Folder of all that asv writes, in the configuration below."""
_CONFIGURATION = """{{
    "version": 1,
    "project": {project},
    "repo": ".",
    "branches": [{branch}],
    "benchmark_dir": "benchmarks",
    "env_dir": ".asv/env",
    "results_dir": ".asv/results",
    "html_dir": ".asv/html",
    // For asv run NEW, which makes an environment of each commit; pytest-ddl asv run measures in the one it is in.
    "environment_type": "virtualenv",
    "matrix": {{"req": {{"pip+asv_runner": ["{asv_runner}"]}}}},
    "build_command": ["python -m pip wheel --no-deps -w {{build_cache_dir}} {{build_dir}}"],
    "launch_method": "spawn",
    "default_benchmark_timeout": 600,
    "install_timeout": 1800,
    // asv takes every metric for better when lower (asv#1617); the Gate classes have the duals of these.
    "regressions_first_commits": {{".*\\\\.Dash.*": null}}
}}
"""
_START = f"from {__name__} import run_asv; sys.exit(run_asv())"
_BENCHMARKS = '''"""How fast {train} is under each strategy, tracked over commits."""

from pytest_ddl.bench.asv import training_suite

Gate, Dash = training_suite("{train}", ["one_device", "mirrored"], replicas=[1, 2], batch_per_replica=32)
'''


class AsvError(RuntimeError):
    """Error of this command, for example if asv cannot run or saved nothing; the message says why and what to do."""


class AsvTargetError(AsvError):
    """Error for a training function that does not exist or is not named as ``module:function``."""


def init(train: str, folder: Path) -> list[Path]:
    """Write a configuration and one file of benchmarks, let git ignore what asv writes, and return the paths.

    :raises AsvTargetError: if the function is not named as ``module:function`` or does not exist.
    :raises AsvError: if a file exists already, or cannot be written.
    """
    module, colon, function = train.partition(":")
    if not (module and colon and function) or module.endswith(".py"):
        raise AsvTargetError(f"{train!r} must be of the form module:function")
    if not module.startswith("."):  # relative to the benchmarks, which do not exist yet
        _check_there(VersionTarget(module, function.split(".")[0]), folder)
    branch = git(folder, "symbolic-ref", "--short", "HEAD")
    values = {"project": json.dumps(folder.resolve().name), "branch": json.dumps(branch), "asv_runner": ASV_RUNNER}
    files = {
        folder / "asv.conf.json": _CONFIGURATION.format(**values),
        folder / "benchmarks" / "__init__.py": "",
        folder / "benchmarks" / "training.py": _BENCHMARKS.format(train=train),
    }
    there = [str(path) for path in files if path.exists()]
    if there:
        raise AsvError(f"not written, because a file already exists: {', '.join(there)}")
    try:
        (folder / "benchmarks").mkdir(exist_ok=True)
        for path, text in files.items():
            path.write_text(text, encoding="utf-8")
        return [*files, *_ignored_by_git(folder)]
    except OSError as error:
        raise AsvError(f"{error.filename} cannot be written: {error.strerror}") from None


def _ignored_by_git(folder: Path) -> list[Path]:
    """Let git ignore the environments, results and pages of asv, unless it does. Return the file that was changed."""
    with contextlib.suppress(GitError):  # exit status 1: not ignored
        git(folder, "check-ignore", "--quiet", f"{_FOLDER}/results")
        return []
    file = folder / ".gitignore"
    before = file.read_text(encoding="utf-8") if file.exists() else ""
    end = "" if before.endswith("\n") or not before else "\n"
    file.write_text(f"{before}{end}{_FOLDER}/\n", encoding="utf-8")
    return [file]


def _check_there(target: VersionTarget, folder: Path) -> None:
    """Check in the text of a module that it has the function, because an import may take long.

    The text of an installed module is not searched.

    :raises AsvTargetError: if the module's file lacks the function, or there is no module of that name.
    """
    paths = (folder, folder / "src")
    file = target.find(folder, paths)
    if file is None:
        meant = target.meant(paths)
        if importlib.util.find_spec(target.module.split(".")[0]) is None:
            hint = f"; is {meant}:{target.function} meant?" if meant else ""
            raise AsvTargetError(
                f"{str(target)!r}: there is no module {target.module} here, in src, or installed{hint}"
            )
        return
    try:
        problem = lacks(file, target.function)
    except SyntaxError as error:
        raise AsvTargetError(f"{file} cannot be imported: {error}") from None
    if problem:
        raise AsvTargetError(problem)


def describe_machine(name: str) -> dict[str, str]:
    """Describe this machine in asv's ``~/.asv-machine.json``, and add GPUs and their driver, which asv does not detect.

    asv copies the fields to the results and shows them on its pages (0.6.6). Existing fields stay unchanged, because
    asv makes a separate graph for each combination.

    :raises AsvError: if asv is not installed.
    """
    try:
        from asv.machine import Machine, MachineCollection
    except ImportError as error:
        raise AsvError(f"asv cannot be imported ({error}): {install_line('bench')}") from error
    file = Path(MachineCollection.get_machine_file_path())
    known: dict[str, Any] = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    more = {"gpu": machine_facts()["gpu"], "driver": _driver()}
    seen = {**Machine.get_defaults(), **{key: value for key, value in more.items() if value}, "machine": name}
    facts: dict[str, str] = {**seen, **known.get(name, {})}
    MachineCollection.save(name, facts)
    return facts


def _driver(file: Path = Path("/proc/driver/nvidia/version")) -> str:
    """Return the version line of the NVIDIA driver; empty if there is no driver."""
    lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("NVRM version")), "")


def run(options: argparse.Namespace) -> int:
    """Run asv on this environment and return its exit status.

    :raises AsvError: if there is no configuration or commit, or asv saved nothing.
    """
    config = options.config or next((Path(name) for name in CONFIGURATIONS if Path(name).exists()), None)
    if config is None or not config.exists():
        raise AsvError(f"no {config or CONFIGURATIONS[0]} here: pytest-ddl asv init MODULE:FUNCTION writes one")
    folder = config.resolve().parent
    try:
        commit = git(folder, "rev-parse", "--verify", f"{options.commit}^{{commit}}")
    except GitError as error:
        raise AsvError(f"--commit={options.commit}: {error}") from None
    benchmarks, results, pages = (folder / name for name in _folders(config))
    source = SourceTrees.of(commit, _paths(options), folder, benchmarks, (results, pages))
    _check(source, commit, options)
    describe_machine(options.machine)
    found = load_note()
    if found:
        warning = f"the machine is busy ({found}): counters are exact, but times are unreliable"
        sys.stderr.write(f"pytest-ddl asv: {warning}\n")
    before = _saved(results / options.machine, commit)
    status = call(command(config, commit, options), folder, _environment(options, commit, source))
    if not options.quick and status in (0, 2) and _saved(results / options.machine, commit) <= before:
        raise AsvError(
            f"asv ended with status {status} and saved no result for {commit[:8]} in {results / options.machine}"
        )
    return status


def _check(source: SourceTrees, commit: str, options: argparse.Namespace) -> None:
    """Refuse to keep a result for a commit if the measured files differ from it.

    :raises AsvError: if they differ; it names the files.
    """
    measured, measuring = source.differences(commit)
    shown = ", ".join(measured[:5]) + (" …" if len(measured) > 5 else "")
    if measured and not options.quick:
        raise AsvError(
            f"--commit={options.commit}: files differ from {commit[:8]}: {shown}. asv would store their result as that "
            "of the commit. Commit or undo the changes, check out that commit, or give the folder of a checkout of it "
            "as --path. With --quick, no result is stored"
        )
    if measuring:
        sys.stderr.write(f"pytest-ddl asv: benchmarks differ from {commit[:8]}: {', '.join(measuring[:5])}\n")


def command(config: Path, commit: str, options: argparse.Namespace) -> list[str]:
    """Return asv's arguments for the options of ``run``."""
    words = ["run", "--config", config.name, "-E", f"existing:{options.python}"]
    words += ["--set-commit-hash", commit, "--machine", options.machine, "--launch-method", "spawn", "--show-stderr"]
    words += [word for regex in options.bench for word in ("--bench", regex)]
    return [*words, "--quick", "--dry-run"] if options.quick else words


def _paths(options: argparse.Namespace) -> list[Path]:
    """Return the folders from which modules are imported."""
    return [Path(path).resolve() for path in options.path or (path for path in (".", "src") if Path(path).is_dir())]


def _environment(options: argparse.Namespace, commit: str, source: SourceTrees) -> dict[str, str]:
    paths = os.pathsep.join(map(str, _paths(options)))
    # asv removes PYTHONPATH but uses ASV_PYTHONPATH. With an existing environment, asv does not set ASV_COMMIT.
    environment = {**os.environ, "ASV_PYTHONPATH": paths, "ASV_COMMIT": commit, **source.as_environ()}
    return {**environment, QUICK: "1"} if options.quick else environment


def _folders(config: Path) -> tuple[str, str, str]:
    """Return the folders of benchmarks, results and pages from asv's configuration."""
    from asv.config import Config

    config_of_asv = Config.load(str(config))
    return config_of_asv.benchmark_dir, config_of_asv.results_dir, config_of_asv.html_dir


def _saved(folder: Path, commit: str) -> float:
    """Return when results of a commit were last written, in nanoseconds since the epoch; 0 if there are none."""
    return max((path.stat().st_mtime_ns for path in folder.glob(f"{commit[:8]}-*.json")), default=0)


def call(words: Sequence[str], folder: Path, environ: Mapping[str, str]) -> int:
    """Run asv with these arguments in its own process, which ends with this one, and return its exit status.

    Everything that asv starts ends too. asv's output is shown.

    :raises KeyboardInterrupt: if the command is interrupted; see :mod:`pytest_ddl.bench.outcome`.
    """
    # If this package is not installed, it was imported from a working folder that asv's process does not search.
    start = f"import sys; sys.path.append({str(Path(pytest_ddl.__file__).parents[1])!r}); {_START}"
    with Processes(f"asv-{os.getpid()}") as processes:
        asv = processes.start([sys.executable, "-c", start, str(os.getpid()), *words], folder, environ)
        try:
            return asv.wait()
        except KeyboardInterrupt:
            asv.send_signal(signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                asv.wait(GRACE)
            raise


def run_asv() -> int:
    """Run asv in this process; the first argument is the parent process with which it ends, the others are asv's."""
    parent = int(sys.argv.pop(1))
    # asv ends the running benchmark on SIGINT, but not on other signals. A process that a shell starts in the
    # background ignores SIGINT by default.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        die_with(parent, signal.SIGINT)
        from asv.main import main as asv

        sys.argv[0] = "asv"
        asv()
    except KeyboardInterrupt:
        return INTERRUPTED
    return 0
