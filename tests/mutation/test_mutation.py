"""The mutation tool plants each mutation in its place, and identifies those that change nothing."""

from __future__ import annotations

from collections import Counter

import pytest

from pytest_ddl.equivalence.causes import CAUSES
from tests.evaluation.programs import by_name
from tests.mutation import evaluate
from tests.mutation.evaluate import CAUGHT, EQUIVALENT, Case, all_cases, check_mutant, rates
from tests.mutation.mutant import DATA_PARALLEL, Mutant, train_mutated
from tests.mutation.mutations import MUTATIONS
from tests.mutation.survivors import SURVIVORS

BY_NAME = {mutation.name: mutation for mutation in MUTATIONS}


def test_names_are_different_and_each_says_what_it_does() -> None:
    assert len(BY_NAME) == len(MUTATIONS) >= 40
    assert all(mutation.told.endswith(".") for mutation in MUTATIONS)


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.name)
def test_causes_exist_and_there_is_a_program_for_it(mutation) -> None:
    assert set(mutation.causes) <= set(CAUSES)
    assert all_cases(mutations=[mutation])


def test_every_program_that_is_correct_with_several_replicas_is_mutated() -> None:
    correct = {program.name for program in by_name().values() if {*DATA_PARALLEL} & {*program.strategies}}
    assert {case.program.name for case in all_cases()} == correct


def test_explained_survivors_exist() -> None:
    for name, part in SURVIVORS:
        assert name in BY_NAME
        assert any(part in program for program in by_name())


class FakeStrategy:
    def run(self, fn, args=(), kwargs=None, options=None):
        return fn(*args, **(kwargs or {}))

    def reduce(self, reduce_op, value, axis=None):
        return (reduce_op, value, axis)


class FakeRun:
    def __init__(self, is_reference=False):
        self.strategy, self.is_reference, self.num_replicas = FakeStrategy(), is_reference, 2


@pytest.mark.parametrize(
    ("name", "is_reference", "operation"),
    [
        ("report-the-mean-of-shares", False, "MEAN"),
        ("report-the-mean-of-shares", True, "MEAN"),  # on one device a mean is a sum
        ("report-a-rounded-loss", True, "SUM"),  # planted only in the distributed run
    ],
)
def test_a_mutation_is_planted_where_it_belongs(name, is_reference, operation) -> None:
    seen = []
    run = FakeRun(is_reference)
    train_mutated(run, name, lambda mutant: seen.append(mutant.strategy.reduce("SUM", 1.0)))
    assert [call[0] for call in seen] == [operation]


def test_the_strategy_is_as_before_whatever_happens() -> None:
    run = FakeRun()
    before = run.strategy.run

    def fails(_mutant):
        raise RuntimeError("broken")

    with pytest.raises(RuntimeError, match="broken"):
        train_mutated(run, "report-the-mean-of-shares", fails)
    assert vars(run.strategy) == {}
    assert run.strategy.run == before


def test_a_replaced_run_is_put_back_too() -> None:
    run = FakeRun()
    run.strategy.run = observed = lambda fn, args=(), kwargs=None, options=None: fn(*args)
    with Mutant(run).instrumented_strategy():
        assert run.strategy.run is not observed
    assert vars(run.strategy) == {"run": observed}


def test_hooks_change_what_a_replica_function_is_given() -> None:
    run = FakeRun()
    mutant = Mutant(run)
    mutant.batch = lambda batch: batch * 10
    with mutant.instrumented_strategy():
        assert run.strategy.run(lambda batch, more: (batch, more), args=(1, 2)) == (10, 2)


def test_rates_count_neither_what_is_equivalent_nor_what_crashes() -> None:
    rows = [{"outcome": outcome, "diagnosed": diagnosed} for outcome, diagnosed in
            [("caught", True), ("caught", False), ("tolerated", True), ("survived", False),
             ("equivalent", False), ("crashed", False)]]  # fmt: skip
    found = rates(rows)
    assert (found["counted"], found["caught rate"], found["cause rate"]) == (4, 0.75, 0.5)


def test_the_order_of_cases_is_a_fair_sample_and_always_the_same() -> None:
    cases = all_cases()
    assert [evaluate.key_of(case) for case in cases] == [evaluate.key_of(case) for case in all_cases()]
    assert len(Counter(case.mutation.name for case in cases[:100])) > 30


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "program", "outcome"),
    [
        ("reduce-twice", "mlp loop even", CAUGHT),
        ("reduce-twice", "mlp fit even", CAUGHT),
        ("mean-of-means", "mlp loop even", EQUIVALENT),
    ],
)
def test_real_mutants(name, program, outcome) -> None:
    row = check_mutant(Case(BY_NAME[name], by_name()[program], "mirrored"))
    assert row["outcome"] == outcome
    assert row["diagnosed"] is (outcome == CAUGHT)
