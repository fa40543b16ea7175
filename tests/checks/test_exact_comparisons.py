"""Exact comparisons hold on a GPU: records of kernels that round otherwise, and the list of all such comparisons."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from simulated_training import Program, pair

from pytest_ddl.equivalence.evidence.tolerance import Tolerance
from pytest_ddl.equivalence.verdict.judge import judge
from pytest_ddl.records import StepRecord, TrainingRecord

ROOT = Path(__file__).parents[2]
GPU = {"device": "gpu"}
OTHERS = (Program(replicas=2), Program(replicas=4, optimizer="Adam"), Program(workers=2, replicas=2, momentum=0.9))


def _rounded(value: Any, generator: np.random.Generator, ulps: float) -> Any:
    array = np.asarray(value)
    if array.dtype.kind != "f":
        return value
    return array + ulps * generator.choice([-1.0, 1.0], array.shape) * np.spacing(np.abs(array).max(initial=0.0))


def _of_other_kernels(record: TrainingRecord, ulps: float = 1.0) -> TrainingRecord:
    """Move all numbers that kernels have computed, by the same on all replicas: a sum is made once, and sent to all."""

    def step_of(step: StepRecord, generator: np.random.Generator) -> StepRecord:
        snapshot = {}
        for index, parts in step.snapshot.items():
            variable = record.variables[index]
            moves = not np.array_equal(np.asarray(parts[0]), np.asarray(record.ranks[0].initial[index][0]))
            first = _rounded(parts[0], generator, ulps) if moves and variable.dtype.startswith("float") else parts[0]
            snapshot[index] = (first, *(first for _copy in parts[1:]))
        loss = None if step.loss is None else float(_rounded(step.loss, generator, ulps))
        return replace(step, snapshot=snapshot, loss=loss)

    def steps_of(rank: Any) -> tuple[StepRecord, ...]:
        # The same on each rank, which has its own generator.
        return tuple(map(partial(step_of, generator=np.random.default_rng(5)), rank.steps))

    return replace(
        record, ranks=tuple(replace(rank, steps=steps_of(rank), facts={**rank.facts, **GPU}) for rank in record.ranks)
    )


@pytest.mark.parametrize("program", OTHERS, ids=["replicas", "adam", "workers"])
def test_sums_in_another_order_agree(program: Program) -> None:
    """NCCL adds in another order, and so do cuDNN's algorithm for another batch size and operations that XLA fused."""
    reference, distributed = pair(program)
    report = judge(_of_other_kernels(reference, 0.0), _of_other_kernels(distributed))
    assert report.passed, str(report)


@pytest.mark.parametrize("program", OTHERS, ids=["replicas", "adam", "workers"])
def test_what_is_no_rounding_is_found_on_a_gpu(program: Program) -> None:
    reference, distributed = pair(program)
    assert not judge(_of_other_kernels(reference, 0.0), _of_other_kernels(distributed, 1e6)).passed


def test_integers_have_no_bound() -> None:
    reference, _distributed = pair(OTHERS[0])
    bounds = Tolerance(_of_other_kernels(reference))
    (counter,) = (item.index for item in reference.variables if item.dtype == "int64")
    assert bounds.variable(counter, 1).value == 0.0
    assert all(bounds.variable(item.index, 1).value > 0 for item in reference.variables if item.dtype == "float64")


ANSWERS = {
    "copies of a variable": (
        "equivalence.checks.replica_equality",
        "equivalence.diagnosis.state_updates",  # also for copies that are not within the bound of one device
        "equivalence.verdict.overflows",
    ),
    "… in a real job": ("guarding.judging",),
    "initial values": ("equivalence.evidence.arithmetic",),
    "whether a variable moves": ("equivalence.checks.moves", "equivalence.checks.nonfinite", "equivalence.runs.sums"),
    "values after a restart": (
        "equivalence.checks.resume",
        "equivalence.checks.resumed_draws",
        "faults.at_least_once",
        "faults.rank.damage",
        "faults.rank.observer",
    ),
    "an interrupted run": ("faults.damaged", "faults.joining", "faults.judging", "faults.unlike"),
    "examples": ("equivalence.checks.repeats", "equivalence.checks.seed", "equivalence.probes.neutralized"),
    "calls and closures": (
        "equivalence.checks.parameter_server",
        "equivalence.evidence.replica_calls",
        "equivalence.runs.closures",
    ),
    "counters, and sums of integers": ("equivalence.evidence.metric_state", "equivalence.evidence.tolerance"),
    "which cause": ("equivalence.diagnosis.candidates.patterns",),
    "repeated runs": ("equivalence.probes.apart",),
    "the same random numbers": ("conformance.layers", "conformance.describing"),
}
"""Row of the table of docs/gpus.md, by its beginning -> modules with such comparisons."""
_IN_PLACE = ("equivalence.evidence.arrays",)
"""Modules that only say what equal means."""


def _exact(path: Path) -> Iterator[int]:
    """Yield the lines of a module that compare bits, or have a bound of 0."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            zero = bool(node.args) and isinstance(node.args[0], ast.Constant) and node.args[0].value == 0.0
            if name in ("same", "same_parts", "array_equal", "tobytes") or (name == "Bound" and zero):
                yield node.lineno
        elif isinstance(node, ast.Attribute) and node.attr in ("digest", "digests"):
            yield node.lineno


def _rows() -> Mapping[str, tuple[str, str]]:
    text = (ROOT / "docs" / "gpus.md").read_text(encoding="utf-8")
    _before, _header, after = text.partition(
        "| comparison | why it holds on a GPU | tested by |\n| --- | --- | --- |\n"
    )
    lines = after.partition("\n\n")[0].splitlines()
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return {first: (why, test) for first, why, test in cells}


def test_each_module_with_an_exact_comparison_has_an_answer() -> None:
    package = ROOT / "pytest_ddl"
    found = {
        ".".join(path.relative_to(package).with_suffix("").parts): lines
        for folder in ("equivalence", "faults", "guarding", "conformance")
        for path in sorted((package / folder).rglob("*.py"))
        if (lines := list(_exact(path)))
    }
    answered = {module for modules in ANSWERS.values() for module in modules}
    assert {name: lines for name, lines in found.items() if name not in {*answered, *_IN_PLACE}} == {}
    assert sorted(answered - set(found)) == []
    rows = list(_rows())
    assert [key for key in ANSWERS if not any(row.startswith(key) for row in rows)] == []


@pytest.mark.parametrize(("comparison", "test"), [(row, test) for row, (_why, test) in _rows().items()])
def test_each_row_names_a_test_that_exists(comparison: str, test: str) -> None:
    place = re.fullmatch(r"`(tests/[\w/]+\.py)::(test_\w+)`", test)
    assert place is not None, comparison
    tree = ast.parse((ROOT / place[1]).read_text(encoding="utf-8"))
    assert place[2] in [node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
