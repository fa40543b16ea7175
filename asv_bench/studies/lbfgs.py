"""Study ``lbfgs``: L-BFGS with its vectors and data split over shards, against L-BFGS on one machine."""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from statistics import fmean
from typing import Any

import numpy as np

from asv_bench.studies.comparing import LEVEL, shown, written
from asv_bench.studies.lbfgs_method import (
    NUMBER_BYTES,
    Problem,
    Trace,
    Vector,
    digits_problem,
)
from asv_bench.studies.lbfgs_sharded import Orders, RankCourse, solve
from asv_bench.studies.lbfgs_verdict import (
    DIFFERS,
    EQUAL,
    FALSE_ALARM,
    Equality,
    compare_course,
    compare_optimum,
    deviations,
)
from asv_bench.studies.published import SANDBLASTER, published_table
from asv_bench.studies.report import Report
from asv_bench.studies.running import add_common, conduct, numbers, tell
from pytest_ddl.bench.launching.ranks import BenchError, fresh_ranks
from pytest_ddl.bench.outcome import UsageError
from pytest_ddl.harness import process_harness
from pytest_ddl.web.results import Table

NAME = "lbfgs"
SHARDS, QUICK_SHARDS = "1,2,3,4", "1,2"
REPEATS, QUICK_REPEATS = 3, 1
NOISE_RUNS, QUICK_NOISE_RUNS = 20, 8
ITERATIONS, TOLERANCE, PENALTY = 200, 1e-7, 0.01
AT_OPTIMUM = 1e-6
"""Norm of the gradient that both minimizers must have reached to be compared."""
VARIANTS = {
    "mirrored": "mirrored[replicas={}]",
    "multi_worker_mirrored": "multi_worker_mirrored[workers={},replicas=1]",
}
ONE = "one_device"


@dataclass(frozen=True)
class Case:
    """One run under one variant, and what it was compared with."""

    variant: str
    shards: int
    repeat: int
    trace: Trace
    course: Equality
    optimum: Equality


def add_arguments(parser: argparse.ArgumentParser) -> None:
    quick = f"{QUICK_SHARDS} shards, {QUICK_REPEATS} run, {QUICK_NOISE_RUNS} runs for the rounding noise"
    add_common(parser, NAME, repeats=REPEATS, quick=quick, timeout=300.0)
    add = parser.add_argument
    add("--shards", metavar="N,...", help=f"Numbers of shards, 1 to 4 (default: {SHARDS}).")
    add("--strategy", default="all", choices=["all", *VARIANTS], help="Strategies to run under (default: all).")
    text = f"Penalty on the squared weights, which makes the minimum unique (default: {PENALTY:g})."
    add("--penalty", type=float, default=PENALTY, metavar="P", help=text)


def main(options: argparse.Namespace) -> int:
    """Run the study and return the exit status."""
    return conduct(options, run)


def run(options: argparse.Namespace) -> Report:
    """Minimize on one machine and on shards, compare, and report.

    :raises UsageError: if an option cannot be used.
    :raises BenchError: if a run fails.
    """
    shards = numbers("shards", options.shards or (QUICK_SHARDS if options.quick else SHARDS), least=1, most=4)
    if not options.penalty > 0:
        raise UsageError(f"--penalty={options.penalty} must be above 0, so that there is only one minimum")
    repeats = options.repeats or (QUICK_REPEATS if options.quick else REPEATS)
    problem = digits_problem(options.penalty)
    scipy_point, scipy_note = scipy_optimum(problem)
    seeds = tuple(range(1, 1 + (QUICK_NOISE_RUNS if options.quick else NOISE_RUNS)))
    (single,) = launch(ONE, Orders(problem, ITERATIONS, TOLERANCE, seeds), options.timeout)
    tell(f"one machine: {single.course.iterations} iterations, {len(seeds)} more in other orders")

    def judged(variant: str, number: int, repeat: int, trace: Trace) -> Case:
        optimum = compare_optimum(
            problem, trace.points[-1], scipy_point, tolerance=AT_OPTIMUM, converged=trace.converged
        )
        return Case(variant, number, repeat, trace, compare_course(single.course, single.permuted, trace), optimum)

    # NumPy's run on one machine is no case: its exponentials round differently, which other orders do not show.
    cases = [judged(ONE, 1, 1, single.course)]
    strategies = list(VARIANTS) if options.strategy == "all" else [options.strategy]
    for repeat in range(1, repeats + 1):
        # One worker is no cluster; one shard is measured under the strategy that has it in one process.
        plan = [(name, number) for name in strategies for number in shards if number > 1 or name == strategies[0]]
        for name, number in plan:
            variant = VARIANTS[name].format(number)
            ranks = launch(variant, Orders(problem, ITERATIONS, TOLERANCE), options.timeout)
            case = judged(variant, number, repeat, same_on_all(variant, ranks))
            tell(f"run {repeat}/{repeats}, {variant}: {case.course.verdict}, {case.course.reason}")
            cases.append(case)
    return report(problem, cases, single, scipy_note)


def launch(variant: str, orders: Orders, timeout: float) -> list[RankCourse]:
    """Minimize in fresh processes of a variant, and return the course of each rank.

    :raises BenchError: if the variant cannot run here, or a rank fails.
    """
    harness = process_harness()
    spec = harness.registry.parse_variant(variant)
    with fresh_ranks(harness, spec) as ranks:
        doing = f"in L-BFGS under {variant}"
        found: list[RankCourse] = ranks.call(solve, orders, deadline=time.monotonic() + timeout, doing=doing)
    return found


def same_on_all(variant: str, ranks: Sequence[RankCourse]) -> Trace:
    """Return the course of all ranks.

    :raises BenchError: if ranks differ. Each runs the coordinator, and all must get the same numbers.
    """
    first = ranks[0].course
    for place, rank in enumerate(ranks[1:], 1):
        own = rank.course
        if own.decisions != first.decisions or own.objectives != first.objectives:
            raise BenchError(f"{variant}: rank {place} has another course than rank 0: they got different sums")
    return first


def scipy_optimum(problem: Problem) -> tuple[Vector, str]:
    """Return the minimizer that ``scipy.optimize.minimize(method="L-BFGS-B")`` finds, and its message."""
    from scipy import optimize

    found = optimize.minimize(
        problem.gradient,
        np.zeros(problem.size),
        jac=True,
        method="L-BFGS-B",
        options={"maxiter": 5000, "maxfun": 20000, "gtol": TOLERANCE / problem.size, "ftol": 0.0, "maxcor": 10},
    )
    return np.asarray(found.x), f"{found.nit} iterations; {found.message}"


def moved_bytes(problem: Problem, trace: Trace) -> int:
    """Return the bytes of vectors that a gradient command moves between shards, over all commands of a course.

    Each gathers the point and sums the gradient: two vectors. They are counted once, for any number of shards.
    """
    return 2 * problem.size * NUMBER_BYTES * trace.commands["gradient"]


def report(problem: Problem, cases: Sequence[Case], single: RankCourse, scipy_note: str) -> Report:
    """Make tables and a picture of all runs."""
    variants = list(dict.fromkeys(case.variant for case in cases))
    groups = {variant: [case for case in cases if case.variant == variant] for variant in variants}
    verdicts = [verdict for case in cases for verdict in (case.course.verdict, case.optimum.verdict)]
    wrong = [case for case in cases if DIFFERS in (case.course.verdict, case.optimum.verdict)]
    equal = sum(verdict == EQUAL for verdict in verdicts)
    differ = verdicts.count(DIFFERS)
    headline = (
        f"{equal} of {len(verdicts)} comparisons with one machine (course) and with SciPy (optimum) are equal to "
        f"rounding, {differ} differ, {len(verdicts) - equal - differ} are inconclusive"
    )
    problem_text = ""
    if wrong:
        why = wrong[0].course if wrong[0].course.verdict == DIFFERS else wrong[0].optimum
        problem_text = f"{wrong[0].variant}, run {wrong[0].repeat}: differs from one machine: {why.reason}"
    course, penalty, noise_runs = single.course, problem.penalty, len(single.permuted)
    tables = (
        _equality(groups),
        _costs(problem, groups),
        published_table(
            (SANDBLASTER,),
            headline,
            [
                ("vectors", "parts of parameters and history on parameter servers", "parts on the replicas"),
                ("data", "handed to model replicas in small portions", "a fixed part on each replica"),
                ("hardware", "clusters with thousands of machines", "1 to 4 replicas on one machine"),
                ("problem", "deep networks", f"softmax regression, {problem.size} parameters, float64"),
            ],
        ),
    )
    return Report(
        study=NAME,
        title="L-BFGS over shards against one machine",
        headline=headline,
        tables=tables,
        figures={NAME: partial(draw, groups, single)},
        data={
            "cases": [
                {
                    "variant": case.variant,
                    "shards": case.shards,
                    "repeat": case.repeat,
                    "iterations": case.trace.iterations,
                    "objective": case.trace.objectives[-1],
                    "seconds": case.trace.seconds,
                    "commands": dict(case.trace.commands),
                    "command_bytes": case.trace.command_bytes,
                    "course": asdict(case.course),
                    "optimum": asdict(case.optimum),
                }
                for case in cases
            ],
            "noise": [list(deviations(one, course, _shortest([*single.permuted, course]))) for one in single.permuted],
            "scipy": scipy_note,
        },
        notes=("All shards share the cores of one machine: the times say nothing about a network.",),
        problem=problem_text,
        settings={
            "problem": f"digits: {len(problem.labels)} examples, {problem.size} parameters, penalty {penalty:g}",
            "course": f"each point against one_device; the bound is the prediction limit of {noise_runs} runs in other "
            f"orders (false alarms: {FALSE_ALARM:.1%})",
            "optimum": "distance to SciPy's minimizer; the bound follows from strong convexity: sum of the gradients' "
            "norms divided by the penalty",
            "SciPy": scipy_note,
            "intervals": f"t intervals at {LEVEL:.0%} over runs",
        },
    )


def _equality(groups: Mapping[str, Sequence[Case]]) -> Table:
    rows = [
        ("variant", "shards", "course", "deviation / median noise (bound)", "iterations", "optimum", "distance (bound)")
    ]
    for variant, cases in groups.items():
        worst = max(cases, key=lambda case: (case.course.verdict != EQUAL, case.course.found))
        farthest = max(cases, key=lambda case: (case.optimum.verdict != EQUAL, case.optimum.found))
        rows.append((
            variant,
            str(cases[0].shards),
            worst.course.verdict,
            f"{worst.course.found:.2f} ({worst.course.bound:.2f})",
            str(worst.course.iterations),
            farthest.optimum.verdict,
            f"{farthest.optimum.found:.1e} ({farthest.optimum.bound:.1e})",
        ))  # fmt: skip
    return Table("Equal to one machine (worst of all runs)", tuple(rows))


def _costs(problem: Problem, groups: Mapping[str, Sequence[Case]]) -> Table:
    rows = [("variant", "ms per iteration", "commands per iteration", "bytes of commands", "bytes of vectors moved")]
    for variant, cases in groups.items():
        trace = cases[0].trace
        seconds = [fmean(case.trace.seconds) for case in cases]
        rows.append((
            variant,
            shown(seconds, scale=1e3),
            written(sum(trace.commands.values()) / max(trace.iterations, 1)),
            str(trace.command_bytes),
            str(moved_bytes(problem, trace)) if cases[0].shards > 1 else "0",
        ))  # fmt: skip
    return Table("Costs", tuple(rows))


def _shortest(traces: Sequence[Trace]) -> int:
    return min(trace.iterations for trace in traces)


def draw(groups: Mapping[str, Sequence[Case]], single: RankCourse, figure: Any) -> None:
    """Draw the objective (left), and the deviation from one machine against the rounding noise (right)."""
    from pytest_ddl.web.drawing import ALL, GREY, INK, MANY, SINGLE, STEADY

    left, right = figure.subplots(1, 2)
    colors = (SINGLE, MANY, ALL, STEADY, INK, "#CC79A7", "#E69F00", "#F0E442")
    shared = _shortest([*single.permuted, single.course])
    noise = np.array([deviations(one, single.course, shared) for one in single.permuted])
    if len(noise):
        iterations = range(1, shared + 1)
        right.fill_between(iterations, noise.min(0), noise.max(0), color=GREY, alpha=0.35, label="other orders", lw=0)
    lowest = min(single.course.objectives)
    for color, (variant, cases) in zip(colors, groups.items(), strict=False):
        trace = cases[0].trace
        short = variant.replace("multi_worker_mirrored", "multi_worker").replace(",replicas=1", "")
        left.plot([max(value - lowest, 1e-16) for value in trace.objectives], color=color, label=short, linewidth=1.2)
        count = min(trace.iterations, single.course.iterations)
        right.plot(range(1, count + 1), deviations(trace, single.course, count), color=color, linewidth=1.2)
    left.set(title="Objective above the minimum", xlabel="iteration", yscale="log")
    left.legend(fontsize=7)
    right.set(title="Distance from one machine, relative", xlabel="iteration", yscale="log")
    right.legend(fontsize=8)
