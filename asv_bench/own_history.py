"""Measure the harness over commits of this repository: ``python asv_bench/own_history.py measure|collect``.

``measure`` runs the benchmarks of ``benchmarks/harness.py`` at evenly spaced commits, each with its own code and its
own benchmarks, in the environment of this interpreter. ``asv run`` would install each commit anew, and its benchmarks
of today cannot call the plugin of old commits. Commits are measured in an order in which each one halves a gap, so that
a run that was cut off has measured the whole range. The next run continues after it.

``collect`` adds what was measured to ``docs/own-history.json``, from which ``python -m docs.tables`` makes the tables
of the page. With ``--bench`` it takes the values of these benchmarks only: a value that needs a quiet machine may have
been measured in another run than one that does not.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from asv.util import load_json

ROOT = Path(__file__).resolve().parents[1]
NUMBERS = ROOT / "docs/own-history.json"
FIRST = "f7fed299"


def git(*arguments: str) -> str:
    return subprocess.run(["git", "-C", str(ROOT), *arguments], check=True, capture_output=True, text=True).stdout


def evenly_spaced(commits: Sequence[str], number: int) -> list[str]:
    """Return this many of the commits, with both ends."""
    steps = max(min(number, len(commits)) - 1, 1)
    return [commits[round(step * (len(commits) - 1) / steps)] for step in range(steps + 1)]


def halving(number: int) -> Iterator[int]:
    """Yield both ends of ``range(number)``, then the middle of each gap, the widest gaps first."""
    yield from sorted({0, number - 1} & set(range(number)))
    gaps = [(0, number - 1)]
    while gaps:
        first, last = gaps.pop(0)
        middle = (first + last) // 2
        if middle not in (first, last):
            yield middle
            gaps += [(first, middle), (middle, last)]


def results_of(results: Path) -> dict[str, dict[str, Any]]:
    """Return the files of asv by the commit that each one measured. Two files of one commit are two environments.

    :raises SystemExit: if a commit has two files, because their numbers cannot be in one row.
    """
    found: dict[str, dict[str, Any]] = {}
    for path in sorted(results.glob("*/*-*.json")):
        content = json.loads(path.read_text("utf-8"))
        if content["commit_hash"] in found:
            raise SystemExit(f"{path}: commit {content['commit_hash'][:8]} has results of two machines or environments")
        found[content["commit_hash"]] = content
    return found


def measure(commit: str, results: Path, bench: str, machine: str | None, *, quick: bool) -> int:
    """Run benchmarks of a commit, and return asv's exit status."""
    with tempfile.TemporaryDirectory(prefix="own-history-") as folder:
        tree = Path(folder) / "tree"
        git("worktree", "add", "--detach", str(tree), commit)
        try:
            config = load_json(str(tree / "asv_bench/asv.conf.json"), js_comments=True)
            config |= {"repo": str(ROOT), "results_dir": str(results), "html_dir": f"{folder}/html"}
            (tree / "asv_bench/own.conf.json").write_text(json.dumps(config), "utf-8")
            # asv removes PYTHONPATH from what it starts, and gives it the value of ASV_PYTHONPATH.
            surroundings = {**os.environ, "PYTHONPATH": str(tree), "ASV_PYTHONPATH": str(tree)}
            command = [sys.executable, "-m", "asv", "run", "--config", "own.conf.json", "--bench", bench]
            command += ["-E", f"existing:{sys.executable}", "--set-commit-hash", commit]
            command += ["--machine", machine] if machine else []
            if quick:
                command.append("--quick")
                surroundings["DDL_BENCH_QUICK"] = "1"
            return subprocess.run(command, cwd=tree / "asv_bench", env=surroundings, check=False).returncode
        finally:
            git("worktree", "remove", "--force", str(tree))


def is_measured(commit: str, results: Path, bench: str) -> bool:
    """Return whether a commit has a result of each benchmark that the expression finds. asv asks HEAD in its place."""
    listed = results / "benchmarks.json"
    names = json.loads(listed.read_text("utf-8")) if listed.exists() else {}
    wanted = {name for name in names if name != "version" and re.search(bench, name)}
    return bool(wanted) and wanted <= results_of(results).get(commit, {"results": {}})["results"].keys()


def series(content: dict[str, Any]) -> Iterator[tuple[str, float]]:
    """Yield ``Class.benchmark(parameter)`` and the value of each series that has one, in a file of asv."""
    for name, row in content["results"].items():
        columns = dict(zip(content["result_columns"], row, strict=False))
        short = name.removeprefix("harness.")
        (parameters,) = columns["params"] or [[None]]
        for parameter, value in zip(parameters, columns["result"] or [], strict=False):
            if value is not None:
                yield (short if parameter is None else f"{short}({parameter.strip(chr(39))})"), value


def collect(results: Path, bench: str, published: dict[str, Any]) -> dict[str, Any]:
    """Return the values of each measured commit, in the order of the branch, and what is published already.

    :param bench: regular expression of the benchmarks, as for ``asv run``.
    :raises SystemExit: if another machine has measured what is published.
    """
    described = json.loads(next(results.glob("*/machine.json")).read_text("utf-8"))
    machine = f"{described['cpu']}, {described['ram']}"
    if machine != published["machine"]:
        raise SystemExit(f"{machine} has measured {results}, and {published['machine']} what is published")
    values = {row["commit"]: row["values"] for row in published["commits"]}
    for commit, content in results_of(results).items():
        chosen = {name: row for name, row in content["results"].items() if re.search(bench, name)}
        found = {name: float(f"{value:.4g}") for name, value in series({**content, "results": chosen})}
        values[commit[:8]] = dict(sorted((values.get(commit[:8], {}) | found).items()))
    dated = (line.split() for line in git("log", "--first-parent", "--reverse", "--format=%H %cs", "HEAD").splitlines())
    rows = [{"commit": c[:8], "date": day, "values": values[c[:8]]} for c, day in dated if c[:8] in values]
    return {"machine": machine, "commits": rows}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python asv_bench/own_history.py", description=__doc__)
    parser.add_argument("command", choices=["measure", "collect"])
    parser.add_argument("--results", type=Path, default=ROOT / "build/own-history", help="asv's folder of results")
    parser.add_argument("--first", default=FIRST, help="the first commit")
    parser.add_argument("--last", default="HEAD", help="the last commit")
    parser.add_argument("--commits", type=int, default=26, help="how many commits")
    parser.add_argument("--bench", default="^harness", help="which benchmarks, as for asv run")
    parser.add_argument("--machine", help="asv's name of this machine (default: its host name)")
    parser.add_argument("--quick", action="store_true", help="few repetitions")
    options = parser.parse_args(arguments)
    results = options.results.resolve()
    if options.command == "collect":
        published = json.loads(NUMBERS.read_text("utf-8"))
        NUMBERS.write_text(json.dumps(collect(results, options.bench, published), indent=1) + "\n", "utf-8")
        return 0

    commits = git("rev-list", "--first-parent", "--reverse", f"{options.first}^..{options.last}").split()
    chosen = evenly_spaced(commits, options.commits)
    statuses = [
        measure(commit, results, options.bench, options.machine, quick=options.quick)
        for commit in (chosen[index] for index in halving(len(chosen)))
        if not is_measured(commit, results, options.bench)
    ]
    return max(statuses, default=0)


if __name__ == "__main__":
    sys.exit(main())
