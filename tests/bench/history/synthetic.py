"""Results in asv's own format, made up from a seed: for tests, for simulations, and for pictures of the page.

``python -m tests.bench.history.synthetic FOLDER`` makes a repository with a history of results in FOLDER, which
``asv publish`` and ``pytest-ddl history`` read.
"""

from __future__ import annotations

import itertools
import json
import math
import random
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pytest_ddl.bench.history.confirm import FILE

COLUMNS = [
    "result",
    "params",
    "version",
    "started_at",
    "duration",
    "stats_ci_99_a",
    "stats_ci_99_b",
    "stats_q_25",
    "stats_q_75",
    "stats_number",
    "stats_repeat",
    "samples",
    "profile",
]
DAY = 86_400_000
START = 1_770_000_000_000
Value = Callable[[int, tuple[Any, ...]], Any]
"""Commit number and parameters -> a number, a list of samples, ``None`` for a failure, or NaN for a skipped one."""


@dataclass
class Bench:
    """A benchmark with its values."""

    name: str
    unit: str
    parameters: Mapping[str, Sequence[Any]]
    value: Value
    version: str | Callable[[int], str] = "1"
    attributes: Mapping[str, Any] = field(default_factory=dict)
    known: bool = True
    """True if ``benchmarks.json`` has it."""


def commit_hashes(count: int) -> list[str]:
    rng = random.Random(0)
    return [f"{rng.getrandbits(160):040x}" for _ in range(count)]


def write_results(
    folder: Path,
    benches: Sequence[Bench],
    commits: Sequence[str],
    *,
    machine: str = "runner",
    environment: str = "virtualenv-py3.11-tensorflow-cpu",
    facts: Mapping[str, str] | None = None,
    dates: Sequence[int] | None = None,
) -> Path:
    """Write ``benchmarks.json``, ``machine.json`` and one result file for each commit, as asv 0.6.6 does."""
    home = folder / machine
    home.mkdir(parents=True, exist_ok=True)
    machine_facts = {"arch": "x86_64", "cpu": "Example CPU", "num_cpu": "2", "os": "Linux 6.1", "ram": "8000000"}
    machine_facts = {**machine_facts, **(facts or {}), "machine": machine}
    (home / "machine.json").write_text(json.dumps({**machine_facts, "version": 1}))
    last = len(commits) - 1
    entries: dict[str, Any] = {"version": 2}
    for bench in benches:
        if bench.known:
            entries[bench.name] = {
                "name": bench.name,
                "code": "def track…",
                "type": "track",
                "unit": bench.unit,
                "version": bench.version if isinstance(bench.version, str) else bench.version(last),
                "param_names": list(bench.parameters),
                "params": [[repr(one) for one in values] for values in bench.parameters.values()],
                "timeout": 60.0,
                **bench.attributes,
            }
    (folder / "benchmarks.json").write_text(json.dumps(entries, indent=4))
    for number, commit in enumerate(commits):
        rows = {bench.name: _row(bench, number) for bench in benches}
        data = {
            "commit_hash": commit,
            "env_name": environment,
            "date": dates[number] if dates else START + number * DAY,
            "params": {**machine_facts, "python": "3.11"},
            "python": "3.11",
            "requirements": {"tensorflow-cpu": ""},
            "env_vars": {},
            "result_columns": COLUMNS,
            "results": rows,
            "durations": {},
            "version": 2,
        }
        (home / f"{commit[:8]}-{environment}.json").write_text(json.dumps(data))
    return folder


def _row(bench: Bench, number: int) -> list[Any]:
    cells = [bench.value(number, choice) for choice in itertools.product(*bench.parameters.values())]
    columns: dict[str, list[Any]] = {name: [] for name in COLUMNS}
    for cell in cells:
        samples = sorted(cell) if isinstance(cell, list) else None
        columns["result"].append(samples[len(samples) // 2] if samples else cell)
        columns["samples"].append(cell if samples else None)
        for name, at in (("stats_ci_99_a", 0), ("stats_ci_99_b", -1), ("stats_q_25", 0), ("stats_q_75", -1)):
            columns[name].append(samples[at] if samples else None)
        columns["stats_number"].append(1 if samples else None)
        columns["stats_repeat"].append(len(samples) if samples else None)
    whole: dict[str, Any] = {
        name: None if all(one is None for one in values) else values for name, values in columns.items()
    }
    whole["params"] = [[repr(one) for one in values] for values in bench.parameters.values()]
    whole["version"] = bench.version if isinstance(bench.version, str) else bench.version(number)
    whole["started_at"], whole["duration"], whole["profile"] = START, None, None
    row = [whole[name] for name in COLUMNS]
    while row and row[-1] is None:
        row.pop()
    return row


def noisy(level: Callable[[int], float], cv: float, seed: int) -> Callable[[int], float]:
    """Log-normal noise around a level: the same number for the same commit and seed."""

    def value(number: int) -> float:
        return level(number) * math.exp(random.Random(f"{seed}/{number}").gauss(0, cv))

    return value


VARIANTS = {"strategy": ["one_device", "mirrored", "multi_worker_mirrored"], "replicas": [1, 2, 4]}


def training(workload: str, slow_from: int, cv: float, fast: float, seed: int, *, bad: str = "mirrored") -> list[Bench]:
    """The benchmarks of one workload, as ``training_suite`` names them; ``bad`` is 5 % slower from a commit on."""

    def step(number: int, choice: tuple[Any, ...]) -> float:
        strategy, replicas = choice
        if strategy == "one_device" and replicas != 1:
            return math.nan
        share = {"one_device": 0.0, "mirrored": 0.06, "multi_worker_mirrored": 0.17}[strategy]
        level = fast * (1 + share * math.log2(replicas) + (0.012 if strategy != "one_device" else 0))
        if strategy == bad and number >= slow_from:
            level *= 1.05
        if strategy == "one_device" and number >= 12:
            level *= 0.93
        noise = random.Random(f"{seed}/{workload}/{choice}/{number}").gauss(0, cv)
        return level * math.exp(noise)

    def samples(number: int, choice: tuple[Any, ...]) -> Any:
        value = step(number, choice)
        rng = random.Random(f"s{seed}/{workload}/{choice}/{number}")
        return value if math.isnan(value) else [value * math.exp(rng.gauss(0, 0.004)) for _ in range(10)]

    def efficiency(number: int, choice: tuple[Any, ...]) -> float:
        return step(number, ("one_device", 1)) / step(number, choice)

    def waiting(number: int, choice: tuple[Any, ...]) -> float:
        return math.nan if choice[1] == 1 else max(0.0, 1 - efficiency(number, choice)) * 0.8 + 0.02

    def skipped(choice: tuple[Any, ...]) -> bool:
        return choice[0] == "one_device" and choice[1] != 1

    def collectives(number: int, choice: tuple[Any, ...]) -> float:
        if skipped(choice):
            return math.nan
        if choice[1] == 1:
            return 0.0
        return 2.0 if choice[0] == "multi_worker_mirrored" and number >= 25 else 1.0

    def memory(number: int, choice: tuple[Any, ...]) -> float:
        noise = random.Random(f"m{seed}/{choice}/{number}").gauss(0, 0.004)
        return math.nan if skipped(choice) else 4.1e8 * (1 + 0.04 * choice[1] + 0.0002 * number) * math.exp(noise)

    def joules(number: int, choice: tuple[Any, ...]) -> float:
        return 64 * choice[1] / step(number, choice) / (38 + 31 * choice[1])

    up = {"higher_is_better": True}
    gate, dash = f"training.Gate{workload}", f"training.Dash{workload}"
    return [
        Bench(f"{dash}.track_throughput", "examples/s", VARIANTS, lambda n, c: 64 * c[1] / step(n, c), attributes=up),
        Bench(f"{dash}.track_efficiency", "", VARIANTS, efficiency, attributes=up),
        Bench(f"{gate}.track_step_time", "seconds", VARIANTS, samples),
        Bench(f"{dash}.track_communication_share", "", VARIANTS, waiting),
        Bench(f"{gate}.track_peak_memory", "bytes", VARIANTS, memory),
        Bench(f"{dash}.track_examples_per_joule", "examples/J", VARIANTS, joules, attributes=up),
        Bench(f"{gate}.track_collectives", "", VARIANTS, collectives),
        Bench(
            f"{gate}.track_reduced_bytes",
            "bytes",
            VARIANTS,
            lambda _n, c: math.nan if skipped(c) else (0.0 if c[1] == 1 else 421642.0),
        ),
    ]


def repository(folder: Path, count: int) -> list[str]:
    """A git repository with so many empty commits, a day apart; gives their hashes, oldest first."""

    def git(*arguments: str, date: str = "") -> str:
        environment = {
            "PATH": "/usr/bin:/bin:/usr/local/bin",
            "HOME": str(folder),
            **{f"GIT_{who}_{what}": "dev" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")},
            **({"GIT_AUTHOR_DATE": date, "GIT_COMMITTER_DATE": date} if date else {}),
        }
        done = subprocess.run(
            ["git", "-C", str(folder), *arguments], check=True, capture_output=True, text=True, env=environment
        )
        return done.stdout

    folder.mkdir(parents=True, exist_ok=True)
    git("init", "-q", "-b", "main")
    git("remote", "add", "origin", "https://github.com/example/project.git")
    for number in range(count):
        date = f"{(START + number * DAY) // 1000} +0000"
        git("commit", "-q", "--allow-empty", "-m", f"Change number {number + 1}", date=date)
    return git("rev-list", "--reverse", "HEAD").split()


def demonstration(folder: Path, count: int = 40) -> Path:
    """A repository with results of two workloads on two machines, and verdicts; gives asv's configuration."""
    commits = repository(folder / "project", count)
    dates = [START + number * DAY for number in range(count)]
    benches = training("Cnn", 30, 0.012, 0.0213, 3) + training("Mlp", 999, 0.02, 0.0042, 4)
    facts = {"cpu": "Example CPU", "num_cpu": "16", "gpu": "4 x Example GPU"}
    environment = "existing-py_opt_ddl_venv_bin_python"
    write_results(
        folder / "results", benches, commits, machine="gpu-runner", environment=environment, facts=facts, dates=dates
    )
    write_results(folder / "results", benches, commits[-25:], machine="laptop", dates=dates[-25:])
    verdicts = [
        {
            "cell": ["gpu-runner", environment, "training.Cnn", "mirrored", str(replicas)],
            "kind": "step",
            "base": commits[29],
            "head": commits[30],
            "status": "confirmed",
            "message": "re-run, 6 launches: a step takes +5.1 % time: more than the margin of 2.5%, and not by chance",
            "effect": 0.051,
        }
        for replicas in (1, 2, 4)
    ]
    (folder / "results" / FILE).write_text("".join(json.dumps(one) + "\n" for one in verdicts))
    configuration = {
        "version": 1,
        "project": "Example project",
        "repo": "project",
        "branches": ["main"],
        "results_dir": "results",
        "html_dir": "html",
        "benchmark_dir": "benchmarks",
        "environment_type": "existing",
        "pythons": ["same"],
    }
    path = folder / "asv.conf.json"
    path.write_text(json.dumps(configuration, indent=1))
    return path


if __name__ == "__main__":
    print(demonstration(Path(sys.argv[1])))
