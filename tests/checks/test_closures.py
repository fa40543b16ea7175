"""Concurrent closures: one device recomputes the gradient of each from what it read and consumed."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest

from pytest_ddl.equivalence.runs.closures import with_closures
from pytest_ddl.equivalence.verdict.judge import judge
from pytest_ddl.equivalence.verdict.report import Report
from pytest_ddl.records import GradientRecord, GradientStage, RankRecord, StepRecord, TrainingRecord, VariableRecord
from pytest_ddl.records import VariableKind as Kind
from pytest_ddl.run_facts import Call
from pytest_ddl.strategies.spec import Capabilities
from pytest_ddl.training.settings import RunSettings

DATA = np.random.default_rng(4).normal(size=(24, 3))
CALLS: tuple[Call, ...] = tuple((part, part.sum(axis=1)) for part in np.split(DATA, 6))
SHUFFLED = tuple(CALLS[at] for at in (2, 0, 1, 5, 3, 4))
SETTINGS = RunSettings(global_batch_size=4, precision="float64")
VARIABLES = (VariableRecord(0, "weight", Kind.TRAINABLE, (3,), "float64"),)
State = Mapping[str, float]


@dataclass(frozen=True)
class Program:
    """Linear regression whose closures read old weights under the coordinator."""

    factor: Callable[[State], float] = lambda _state: 1.0
    """Factor of the gradient, from what the closure read beside the weights."""
    others: Callable[[int, bool], State] = lambda _call, _concurrent: {}
    """State that a closure reads beside the weights, by its number; the flag is true if closures run together."""
    scalars: Callable[[int], tuple[float, ...]] = lambda _call: ()
    facts: Mapping[str, Any] = field(default_factory=dict)

    def _run(self, settings: RunSettings, concurrent: bool) -> TrainingRecord:
        given = SHUFFLED if concurrent else CALLS if settings.feed is None else settings.feed.calls
        history, reads, gradients = [np.zeros(3)], [], {}
        for call, (x, y) in enumerate(given):
            fed = settings.feed.reads[call] if settings.feed is not None and settings.feed.reads is not None else {}
            # A concurrent closure has read the weights before the last two updates.
            weight = fed[0][0] if 0 in fed else history[max(0, len(history) - (3 if concurrent else 1))]
            own = {name: np.asarray(value) for name, value in self.others(call, concurrent).items()}
            state = {name: fed[name][0] if name in fed else value for name, value in own.items()}
            reads.append({0: (weight,), **{name: (value,) for name, value in own.items()}})
            gradient = self.factor(state) * 2 * x.T @ (x @ weight - y) / len(x)
            gradients[call] = [(GradientStage.COMPUTED, 0, {0: gradient})]
            history.append(history[-1] - 0.05 * gradient)
        facts = {"calls": given, "reads": tuple(reads), "gradients_of_calls": gradients, "hidden": (), "repeated": ()}
        facts |= {"assigned": ({},) * len(given), "takes_more": False, **self.facts}
        facts["scalars"] = tuple(self.scalars(call) for call in range(len(given)))
        facts |= {"own_schedule": True, "scheduled": len(given), "workers": 2} if concurrent else {}
        records = tuple(
            GradientRecord(0, GradientStage.COMPUTED, call, of[0][2]) for call, of in sorted(gradients.items())
        )
        initial, final = {0: (history[0],)}, {0: (history[-1],)}
        step = StepRecord(1, None, snapshot=final, gradients=records)
        rank = RankRecord(0, "chief:0", (0,), VARIABLES, initial, (step,), {}, asynchronous=concurrent, facts=facts)
        capabilities = Capabilities(coordinator=True)
        return TrainingRecord("parameter_server", 1, (rank,), 4, "float64", 0, capabilities=capabilities)

    def reference(self, settings: RunSettings) -> TrainingRecord:
        return self._run(settings, concurrent=False)

    def distributed(self, settings: RunSettings) -> TrainingRecord:
        return self._run(settings, concurrent=True)

    anew = reference


def judged(program: Program, device: Program | None = None) -> Report:
    device = device or program
    report = judge(device.reference(SETTINGS), program.distributed(SETTINGS))
    return with_closures(replace(report, doubts=(), findings=[]), SETTINGS, device)


def recomputed(report: Report) -> bool:
    return any("one device recomputed the gradients" in str(note) for note in report.notes)


def found(report: Report) -> list[tuple[str, str | None]]:
    return [(finding.check, finding.cause) for finding in report.findings]


def counts(call: int, _concurrent: bool) -> State:
    """Read how many closures have begun, in another order than one device."""
    return {"begun": float(call if not _concurrent else 5 - call)}


def runs(call: int, concurrent: bool) -> State:
    """Read how many closures run now."""
    return {"running": 1.0 + (concurrent and call > 1)}


def follows(call: int, concurrent: bool) -> State:
    """Read a state that depends on the order of the closures."""
    return {"average": call + 0.1 * concurrent}


def by_state(state: State) -> float:
    return 1.0 + sum(float(value) for value in state.values())


@pytest.mark.parametrize(
    "program", [Program(), Program(by_state, counts), Program(others=runs), Program(others=follows)]
)
def test_stale_weights_and_another_order_are_right(program: Program) -> None:
    report = judged(program)
    assert not report.findings, str(report)
    assert not report.doubts, str(report)
    assert recomputed(report)


def test_a_state_that_changes_only_if_closures_run_together_is_a_mistake() -> None:
    report = judged(Program(by_state, runs))
    assert found(report) == [("PS", "closure-depends-on-others")], str(report)
    assert "closures read running" in str(report.findings[0].evidence)


def test_a_difference_that_nothing_explains_is_a_mistake() -> None:
    factors = itertools.cycle((1.0, 2.0))
    report = judged(Program(lambda _state: next(factors)), Program())
    assert found(report) == [("PS", "closure-depends-on-others")], str(report)
    assert "3 of 6 concurrent closures" in report.findings[0].message


def test_the_same_factor_in_all_closures_is_no_dependence() -> None:
    report = judged(Program(lambda _state: -1.0), Program())
    assert found(report) == [("PS", None)], str(report)
    assert "-1 x the gradient" in report.findings[0].message


@pytest.mark.parametrize(
    ("program", "reason"),
    [
        (Program(by_state, follows), "depend on average"),
        (Program(facts={"hidden": (0,)}), "a tf.function that they call"),
        (Program(lambda _state: 1.2, facts={"takes_more": True}), "as arguments"),
        (Program(facts={"reads": ()}), "strategy.run(function, args=(batch,))"),
        (Program(scalars=lambda call: (float(call),)), ""),
    ],
)
def test_what_is_not_known_is_a_doubt(program: Program, reason: str) -> None:
    device = replace(program, factor=by_state if program.others is follows else lambda _state: 1.0, facts={})
    if not reason:
        device = replace(device, scalars=lambda call: (float(call) + 1,))
        reason = "one device could not be given"
    report = judged(program, device)
    assert not report.findings, str(report)
    assert any(reason in str(doubt) for doubt in report.doubts), str(report)


def test_closures_with_numbers_are_given_in_the_order_of_one_device() -> None:
    order = (2, 0, 1, 5, 3, 4)
    device = Program(scalars=lambda call: (float(call),))
    report = judged(replace(device, scalars=lambda call: (float(order[call]),)), device)
    assert not report.findings, str(report)
    assert recomputed(report), str(report)
