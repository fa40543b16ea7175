"""Run the gate from Python or in a test: check out both versions, measure every cell, and collect the results."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from pytest_ddl.bench.gate.cell import Cell, counters_of, measure_cell
from pytest_ddl.bench.gate.plan import GatePlan, is_same_environment
from pytest_ddl.bench.gate.result import CellResult, GateResult
from pytest_ddl.bench.gate.sides import Side
from pytest_ddl.bench.gate.target import VersionTarget
from pytest_ddl.bench.gate.verdict import Rule, Verdict
from pytest_ddl.bench.gate.worktrees import WORKTREE, Repository, Version, both_sides, check_different, usage_errors
from pytest_ddl.bench.launching.records import BenchSpec
from pytest_ddl.bench.launching.remote import source_of
from pytest_ddl.bench.outcome import UsageError
from pytest_ddl.installing import install_line

_RELEASES = ("python", "tensorflow", "keras", "tf_keras", "numpy")


def gate(
    base: str,
    head: str,
    targets: Sequence[str] | str,
    strategies: Sequence[str] | str = ("one_device",),
    *,
    tell: Callable[[str], None] = lambda _line: None,
    **options: object,
) -> GateResult:
    """Compare the step time and the counters of training functions between two versions.

    Each cell takes seconds to minutes in separate processes. The calling process does not import TensorFlow.

    :param options: the other fields of :class:`GatePlan`, and those of :class:`pytest_ddl.bench.BenchSpec`.
    :param tell: is called with a line for each event.
    :raises UsageError: if the gate cannot run: no repository, no such commit, or the same commit twice.
    """
    names = {item.name for item in fields(BenchSpec)}
    bench = {name: options.pop(name) for name in names & options.keys()}
    if bench:
        if "bench" in options:
            raise UsageError(f"give bench=, or {', '.join(sorted(bench))}=, not both")
        with usage_errors():
            options["bench"] = BenchSpec(**bench)  # type: ignore[arg-type]
    listed = [(value,) if isinstance(value, str) else tuple(value) for value in (targets, strategies)]
    return run_gate(GatePlan(base, head, *listed, **options), tell)  # type: ignore[arg-type]


def run_gate(plan: GatePlan, tell: Callable[[str], None] = lambda _line: None) -> GateResult:
    """Run :func:`gate` with all arguments in one plan."""
    _check(plan)
    targets = [VersionTarget.parse(text) for text in plan.targets]
    with usage_errors():
        rule = Rule.up_to(plan.launches, margin=plan.margin, false_alarms=plan.false_alarms)
    repository = Repository(plan.repository)
    base, head = repository.version(plan.base), repository.version(plan.head)
    same_is_meant = plan.a_a or base.tree != head.tree or not is_same_environment(plan.base_python, plan.head_python)
    check_different(base, head, same_is_meant)
    variants = _variants(plan)
    over_hosts = os.environ.get("PYTEST_DDL_LAUNCHER", "local") != "local"
    notes = list(_notes(repository, base, head, plan))
    for note in notes:
        tell(f"note: {note}")
    with both_sides(plan, repository, base, head) as (base_side, head_side, checkout_notes):
        notes += checkout_notes
        _check_functions(targets, base_side, head_side)
        cells: list[CellResult] = []
        for target in targets:
            for name, (ranks, cores, reason) in variants.items():
                tell(f"{target} {name}")
                if not reason:
                    reason = _missing(target, base_side, head_side)
                if reason:
                    cells.append(CellResult(str(target), name, Verdict.ERROR, reason))
                else:
                    cell = Cell(
                        base_side,
                        head_side,
                        target,
                        name,
                        ranks,
                        plan.bench,
                        rule,
                        plan.budget,
                        plan.accept,
                        plan.counters_only,
                        cores,
                        canary=over_hosts and ranks > 1,
                    )
                    cells.append(_measured(cell, lambda line: tell(f"  {line}")))
                tell(f"  {cells[-1].verdict.value}: {cells[-1].reason}")
    if base.tree == head.tree and not plan.a_a:
        notes += _same_releases(cells)
    return GateResult(base, head, tuple(cells), plan.margin, plan.counters_only, tuple(notes))


def _measured(cell: Cell, tell: Callable[[str], None]) -> CellResult:
    """Measure a cell. A failure of the gate itself becomes a result, so that the other cells are still measured."""
    try:
        return measure_cell(cell, tell)
    except Exception as error:
        tell(traceback.format_exc())
        message = " ".join(str(error).split())
        reason = f"the gate itself failed: {type(error).__name__}: {message}"
        return CellResult(str(cell.target), cell.strategy, Verdict.ERROR, reason)


def _check(plan: GatePlan) -> None:
    """Refuse at once a plan that would otherwise fail after minutes of measuring."""
    if not plan.counters_only and find_spec("scipy") is None:
        raise UsageError(f"a verdict on time needs SciPy: {install_line('bench')}, or give --counters-only")
    from pytest_ddl.bench.counters.changes import compare
    from pytest_ddl.bench.launching.records import Counters

    with usage_errors("--"):
        compare(Counters(steady_steps=1), Counters(steady_steps=1), counters_of(plan.accept))


def _variants(plan: GatePlan) -> dict[str, tuple[int, int, str]]:
    """Return for each variant its ranks, the cores for each replica, and the reason why it cannot run here, if any."""
    from pytest_ddl.bench.launching.pinning import cores_per_replica
    from pytest_ddl.harness import process_harness
    from pytest_ddl.items.selection import DdlMark

    harness = process_harness()
    variants = {}
    try:
        for text in plan.strategies:
            with usage_errors(f"--strategy={text!r}: "):
                spec = harness.registry.parse_variant(text)
                definition = harness.registry[spec.name]
                reason = harness.unavailable(spec, DdlMark(device=plan.bench.device))
                pinned = plan.bench.pin and not reason
                cores = cores_per_replica(harness, spec) if pinned else 0
            unavailable = f"{spec} cannot run on this machine: {reason}" if reason else ""
            variants[str(spec)] = (len(definition.topology(spec).ranks), cores, unavailable)
    finally:
        # The harness may have started a process to look for GPUs, which would now stay idle and hold memory.
        harness.close()
    return variants


def _notes(repository: Repository, base: Version, head: Version, plan: GatePlan) -> Iterator[str]:
    changed = repository.uncommitted() if head.given not in (WORKTREE, ".") and repository.is_checked_out(head) else []
    if changed:
        yield (
            f"{len(changed)} uncommitted change(s), such as {changed[0].split(maxsplit=1)[-1]}, are not measured; give "
            f"{WORKTREE} as HEAD to measure them"
        )
    lacking, shared = repository.lacking(base, head) if base.tree != head.tree else (0, "")
    if lacking and shared == head.commit:
        yield (
            f"HEAD {head.short} is older than BASE {base.short}, by {lacking} commit(s): an improvement in these "
            "commits counts as a slowdown here, and a slowdown as an improvement"
        )
    elif lacking:
        fix = f"; to measure only those of HEAD, give the merge base as BASE: {shared[:10]}" if shared else ""
        yield (
            f"HEAD {head.short} lacks {lacking} commit(s) of BASE {base.short}, whose changes are measured too, as if "
            f"HEAD had reverted them{fix}"
        )
    if plan.a_a:
        yield "A/A: the gate itself is measured"


def _same_releases(cells: Sequence[CellResult]) -> list[str]:
    """Return a note if both environments have the same releases, else nothing."""
    provenance = next((cell.launches[0].provenance for cell in cells if cell.launches), None)
    if provenance is None:
        return []
    sides = [{key: side.get(key) for key in _RELEASES} for side in provenance.values()]
    if sides[0] != sides[1]:
        return []
    releases = ", ".join(f"{key} {value}" for key, value in sides[0].items() if value)
    return [f"the same commit was measured in two environments that have the same releases ({releases})"]


def _check_functions(targets: Sequence[VersionTarget], *sides: Side) -> None:
    """Refuse a target whose file exists in both versions, and has the function in none of them.

    :raises UsageError: for the first such target.
    """
    for target in targets:
        problems = [target.problem(side.root, side.paths) for side in sides]
        if all(problems):
            raise UsageError(f"--target={str(target)!r}: {problems[-1]}, in both versions")


def _missing(target: VersionTarget, *sides: Side) -> str:
    """Return a message if a version does not have the target, else an empty text."""
    lacking = [side for side in sides if target.find(side.root, side.paths) is None]
    if not lacking:
        problems = {f"{side.name} ({side.commit[:10]})": target.problem(side.root, side.paths) for side in sides}
        return "; ".join(f"{who}: {problem}" for who, problem in problems.items() if problem)
    who = " and ".join(f"{side.name} ({side.commit[:10]})" for side in lacking)
    looked = ", ".join(str(path.relative_to(lacking[0].root)) for path in lacking[0].paths)
    none, meant = "has" if len(lacking) == 1 else "have", target.meant(lacking[0].paths)
    fix = f"Did you mean {meant}?" if meant else "To measure a new target, add it to BASE, too"
    return f"{who} {none} no {target.place}, so there is nothing to compare (looked in {looked}). {fix}"


class GateFailedError(AssertionError):
    """Raised if the gate did not pass. The message is the whole report, or the reason why there is none."""

    def __init__(self, message: str, verdict: Verdict = Verdict.ERROR) -> None:
        super().__init__(message)
        self.verdict = verdict.value


def gate_in_test(
    versions: str, root: Path, target: Callable[[Any], Any] | str, strategies: Sequence[str] | str, **options: Any
) -> GateResult:
    """Run the gate on one training function, for the fixture ``ddl_gate``.

    :param versions: ``BASE..HEAD``.
    :param root: a folder in the repository.
    :param target: the function itself, from a file of the repository, or ``module:function``.
    :raises GateFailedError: if there is a regression, if a regression cannot be ruled out, or if the gate cannot run.
    """
    base, _dots, head = versions.partition("..")

    def tell(line: str) -> None:
        sys.stderr.write(line + "\n")

    try:
        named = target if isinstance(target, str) else name_of(target, root)
        result = gate(base, head, named, strategies, tell=tell, repository=root, **options)
    except UsageError as error:
        raise GateFailedError(f"ddl_gate: {error}") from None
    if not result.passed:
        raise GateFailedError(str(result), result.verdict)
    sys.stdout.write(str(result))
    return result


def name_of(function: Callable[[Any], Any], root: Path) -> str:
    """Return a function as a target: by its module if that is found from ``root``, else by its file.

    :raises UsageError: if the function has no name there, for example a lambda or an inner function, or if it is
        not in the repository.
    """
    file, name = Path(source_of(function)), getattr(function, "__qualname__", "")
    if not name.isidentifier():
        raise UsageError(
            f"{function!r} cannot be found by its name in another version; give a function of a module, or "
            "'module:function'"
        )
    module = str(getattr(function, "__module__", ""))
    tail = Path(*module.split(".")).with_suffix(".py")
    if any((folder / tail).is_file() and (folder / tail).samefile(file) for folder in (root, root / "src")):
        return f"{module}:{name}"
    top = Repository(root).root
    if not file.is_relative_to(top):
        raise UsageError(f"{name} comes from {file}, which is not in the repository {top}")
    return f"{file.relative_to(top)}:{name}"
