"""Run one check on the ranks of a cluster, and turn what they found into the outcome of a test."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

import pytest

from pytest_ddl.cluster.explain import RankError
from pytest_ddl.cluster.ship import unpack
from pytest_ddl.conformance.checks import CONFORMANCE_CHECKS
from pytest_ddl.conformance.comparing import MismatchError, NotJudgedError
from pytest_ddl.conformance.kinds import prepared
from pytest_ddl.conformance.layers import GLOBAL_BATCH
from pytest_ddl.conformance.registry import ConformanceCheck, Subject
from pytest_ddl.equivalence.verdict.report import DivergenceError
from pytest_ddl.strategies.spec import Capabilities, StrategySpec


@dataclass(frozen=True)
class RankAnswer:
    """Result of a check on one rank."""

    value: Any = None
    """Value that ``together`` compares."""
    problem: str = ""
    """Description of what is wrong; empty if the property holds here."""
    skipped: str = ""
    """Why the check judges nothing here."""

    @property
    def failed(self) -> bool:
        """True if other ranks may wait for this one in vain."""
        return bool(self.problem or self.skipped)


def on_rank(name: str, subject: Subject) -> RankAnswer:
    """Run a check on this rank."""
    from pytest_ddl.cluster.worker import current_strategy

    with prepared(subject.flavor, subject.precision):
        try:
            return RankAnswer(CONFORMANCE_CHECKS[name].function(current_strategy(), subject))
        except MismatchError as error:
            return RankAnswer(problem=str(error))
        except NotJudgedError as error:
            return RankAnswer(skipped=str(error))


@dataclass(frozen=True)
class Planned:
    """One check of one object: the parameter of a test."""

    check: ConformanceCheck
    subject: Subject
    expected_failures: Mapping[str, str]
    """Those of this object and check, by strategy, or by an empty name for all strategies."""

    @property
    def id(self) -> str:
        """Part of the id of a test."""
        return f"{self.subject.name}-{self.check.name}"

    def run(
        self,
        spec: StrategySpec,
        capabilities: Capabilities,
        call: Callable[..., list[Any]],
        compare: Callable[..., Any],
    ) -> None:
        """Run the check under a strategy.

        :param call: calls a function on every rank.
        :param compare: compares a training function with one device.
        """
        __tracebackhide__ = True
        if capabilities.global_view or (capabilities.coordinator and not self.check.coordinator):
            pytest.skip(f"{self.check.name}: {spec.name} has no replicas that take a step together")
        expected = self.expected_failures.get(spec.name) or self.expected_failures.get("")
        failure: Exception | None = None
        try:
            self._run(spec, call, compare)
        except (MismatchError, RankError, DivergenceError) as error:
            failure = error
        if failure is not None and expected:
            pytest.xfail(expected)
        if isinstance(failure, MismatchError):
            self._fail(str(failure), spec)
        if failure is not None:
            raise failure
        if expected:
            pytest.fail(
                f"{self.subject.name}: {self.check.name} passes under {spec}, and expected_failures says that it "
                f"fails: {expected!r}; take the entry out",
                pytrace=False,
            )

    def _run(self, spec: StrategySpec, call: Callable[..., list[Any]], compare: Callable[..., Any]) -> None:
        if self.check.is_training:
            compare(Training(self.check.name, self.subject), global_batch_size=GLOBAL_BATCH, steps=4)
            return
        try:
            answers: list[RankAnswer] = call(on_rank, self.check.name, self.subject)
        except RankError as error:
            # After a rank has found something, the others may wait in a collective and are stopped there.
            found = [unpack(one.body) for one in error.answers if one.ok]
            if not any(answer.problem for answer in found):
                raise
            answers = found
        problems = {rank: answer.problem for rank, answer in enumerate(answers) if answer.problem}
        if problems:
            rank, problem = next(iter(problems.items()))
            where = f" (rank {rank} of {len(answers)})" if len(answers) > 1 else ""
            raise MismatchError(f"{problem}{where}")
        skipped = [answer.skipped for answer in answers if answer.skipped]
        if skipped:
            pytest.skip(f"{self.check.name}: {skipped[0]}")
        if self.check.together is not None:
            self.check.together([answer.value for answer in answers])

    def _fail(self, problem: str, spec: StrategySpec) -> NoReturn:
        __tracebackhide__ = True
        advice = f"\nadvice: {self.check.advice}" if self.check.advice else ""
        text = f"{self.subject.name}: {self.check.name} under {spec}: {problem}\nproperty: {self.check.title}{advice}"
        pytest.fail(text, pytrace=False)


@dataclass(frozen=True)
class Training:
    """Training function of a check, which is sent to ranks."""

    check: str
    subject: Subject

    def __call__(self, run: Any) -> None:
        """Train."""
        CONFORMANCE_CHECKS[self.check].function(run, self.subject)
