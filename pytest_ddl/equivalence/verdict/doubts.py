"""Reasons why a report cannot pass: what is undecided or not compared, and what may hide behind an excuse."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from pytest_ddl.equivalence.checks.data_cover import CHECK as DATA_COVER
from pytest_ddl.equivalence.checks.step_equality import CHECK as STEP_EQ
from pytest_ddl.equivalence.checks.uneven import CHECK as UNEVEN
from pytest_ddl.equivalence.evidence.coverage import replicas_consume_equal_examples
from pytest_ddl.equivalence.evidence.observe import shared_steps, sizes
from pytest_ddl.equivalence.findings import CheckResult, Doubt, Finding, Outcome
from pytest_ddl.equivalence.ledger import HARMLESS
from pytest_ddl.equivalence.roles import Role, Roles
from pytest_ddl.hints import Hint
from pytest_ddl.messages import listed
from pytest_ddl.records import OptimizerRecord, TrainingRecord

_BY_ELIMINATION = ("batch-coupled-loss",)
"""Causes that are named because nothing else fits. The size of their effect is unknown."""
_CHANGE_LATER = Role.DATA | Role.RESUMPTION | Role.NONFINITE | Role.REPLICAS
"""Checks whose declared findings change all numbers after them."""

EQUAL_EXAMPLES = "examples-equal"
"""Cause that a program declares if its examples are equal on all replicas by nature."""
_ALIKE = (
    "all replicas consumed equal examples in every step: each of them computes what all compute, so that a mistake in "
    "splitting the data, or in adding up gradients, losses or metrics, does not show. Use data whose examples differ, "
    "for example numpy.random.default_rng(0).normal(size=shape) in place of ones"
)


def alike(results: Sequence[CheckResult], distributed: TrainingRecord, roles: Roles) -> Iterator[Doubt]:
    """Yield a doubt if numbers or examples were compared, and all replicas consumed equal examples."""
    compared = any(r.outcome is Outcome.PASS and roles.have(r, Role.NUMBERS | Role.EXAMPLES) for r in results)
    if compared and replicas_consume_equal_examples(distributed):
        yield Doubt(DATA_COVER, _ALIKE + Hint.EQUAL_EXAMPLES(EQUAL_EXAMPLES), in_program=True)


def undecided(
    results: Sequence[CheckResult], excused: Sequence[Finding], distributed: TrainingRecord, roles: Roles
) -> Iterator[Doubt]:
    """Yield why a verdict is missing, without the doubts that follow from a tolerated finding.

    A check is excused only if weights differ or the run failed earlier. Doubts of other kinds stay.
    """
    weights_differ = any(result.outcome is Outcome.FAIL and roles.have(result, Role.UPDATES) for result in results)
    crashed = any(roles.have(finding, Role.RUN) for finding in excused)

    def follows(result: CheckResult) -> bool:
        if crashed and (result.follows or distributed.num_steps == 0):
            return True
        return result.follows and bool(excused) and weights_differ

    for result in results:
        if result.outcome is Outcome.INCONCLUSIVE and not follows(result):
            yield Doubt(result.check, result.reason)


def before_an_end(excused: Sequence[Finding], distributed: TrainingRecord, roles: Roles) -> Iterator[Doubt]:
    """Yield the variables that were trained in no recorded step before an excused end of the run."""
    ends = [finding for finding in excused if roles.have(finding, Role.RUN)]
    names = dict.fromkeys(name for rank in distributed.ranks for name in rank.facts.get("between_steps", ()))
    if ends and names:
        text = (
            f"before the run ended, the program trained {listed(names)} outside of recorded steps{Hint.OF_RUN_STEPS}, "
            f"so that nothing compares this: {Hint.WATCH_ALL}"
        )
        yield Doubt(STEP_EQ, text, in_program=True)


def uncompared(results: Sequence[CheckResult]) -> Iterator[Doubt]:
    """Yield the quantities that were recorded and not compared, and whose reason may hide a defect."""
    for result in results:
        left = [item for item in result.unjudged if item.reason not in HARMLESS]
        if left:
            yield Doubt(result.check, f"not compared: {listed(left)}")


def later(
    reference: TrainingRecord, distributed: TrainingRecord, unverified: Sequence[Finding], roles: Roles
) -> Iterator[Doubt]:
    """Yield a doubt if steps follow an excused difference of weights: nothing compares them with one device."""
    of_weights = [f for f in unverified if roles.have(f, Role.UPDATES | Role.REPLICAS) and f.step is not None]
    first = min(of_weights, key=lambda finding: finding.step or 0, default=None)
    if first is None or not first.step or first.cause == "state-not-aggregated":
        return  # weights that differ before the first step have a doubt of their own
    last = shared_steps(reference, distributed)
    if first.step < last:
        yield Doubt(
            first.check,
            f"{first.cause} is excused in step {first.step}, and the steps after it, up to step {last}, cannot be "
            "compared with one device, because they begin with other weights",
        )


def of_other_optimizers(
    reference: TrainingRecord, distributed: TrainingRecord, declared: Sequence[Finding], roles: Roles
) -> Iterator[Doubt]:
    """Yield a doubt if weights differ as declared, and the optimizers of both runs have other settings, too.

    A cause is recomputed from gradients. They are computed back by the settings of each run, so other settings, such as
    another momentum, leave no difference of gradients.
    """
    first = next((finding for finding in declared if roles.have(finding, Role.UPDATES)), None)
    ours, theirs = (
        [_fixed(one) for rank in record.ranks[:1] for one in rank.optimizers] for record in (reference, distributed)
    )
    if first is not None and ours != theirs:
        yield Doubt(
            first.check,
            f"{first.cause} is declared in step {first.step}, and an optimizer has other settings than on one device, "
            "whose effect is not recomputed",
        )


def _fixed(optimizer: OptimizerRecord) -> tuple[str, dict[str, object]]:
    """Return type and settings of an optimizer without its rate, which is recorded and compared in each step."""
    of_a_rate = ("learning_rate", "schedule")
    return optimizer.type, {key: value for key, value in optimizer.settings.items() if key not in of_a_rate}


def beside(declared: Sequence[Finding], expected: Collection[str]) -> Iterator[Doubt]:
    """Yield the causes that act at the same time as a declared one, and are not declared."""
    for finding in declared:
        for other in finding.besides:
            if other not in expected:
                text = f"{finding.cause} is declared in step {finding.step}, and {other}, which acts too, is not"
                yield Doubt(finding.check, text)


def unseen(distributed: TrainingRecord, approximations: Sequence[Finding]) -> Iterator[Doubt]:
    """Yield empty replicas after an approximation, because their known defect cannot be judged there."""
    first = min((finding.step or 0 for finding in approximations), default=None)
    for step in range((first or 0) + 1, distributed.num_steps + 1):
        if first is not None and 0 in sizes(distributed, step).values():
            yield Doubt(
                UNEVEN,
                f"step {step} leaves a replica empty, and weights are not comparable after the approximation in step "
                f"{first}; test a batch with fewer examples than replicas separately",
            )
            return


def behind(
    found: Sequence[Finding], declared: Sequence[Finding], tolerated: Sequence[Finding], roles: Roles
) -> Iterator[Doubt]:
    """Yield reasons why a defect may hide behind excused findings.

    :param declared: findings that ``expect=`` or a known behavior excuses and that no other run verified.
    :param tolerated: approximations of weights, verified or not.
    """
    yield from _states(found, [*declared, *tolerated], roles)
    yield from (
        Doubt(finding.check, f"{finding.cause} is tolerated, and nothing recomputes the size of its effect")
        for finding in found
        if finding.approximation and finding.cause == "mean-of-replica-means" and not finding.exact
    )
    for cause in dict.fromkeys(finding.cause for finding in declared):
        ours = [finding for finding in declared if finding.cause == cause]
        of_weights = sorted((f for f in ours if roles.have(f, Role.WEIGHTS)), key=lambda f: f.step or 0)
        first = [f for f in of_weights if f.step == of_weights[0].step]
        if first and first[0].step == 0:
            yield Doubt(
                first[0].check, f"{cause} is declared, and steps that begin with different weights cannot be compared"
            )
        elif first and not any(is_recomputed(f) for f in first):
            yield Doubt(
                first[0].check,
                f"{cause} is declared in step {first[0].step}, and nothing recomputes the size of its effect, so that "
                "a second defect behind it would not be seen",
            )
        for finding in ours:
            if roles.have(finding, Role.STATE) and cause == "state-not-aggregated" and not finding.exact:
                yield Doubt(
                    finding.check,
                    f"{cause} is declared, and nothing shows that {finding.variable} differs from one device for this "
                    "reason",
                )
        for finding in ours:
            if roles.have(finding, _CHANGE_LATER) and _hides(finding, found, roles):
                at = f" in step {finding.step}" if finding.step else ""
                yield Doubt(
                    finding.check,
                    f"{cause} is declared{at}, and numbers that differ from there on cannot be compared with one "
                    "device",
                )
                break


def _states(found: Sequence[Finding], excused: Sequence[Finding], roles: Roles) -> Iterator[Doubt]:
    """Yield states that differ in the step of an excused difference of weights, and are not recomputed from it."""
    of_weights = {finding.step: finding for finding in excused if roles.have(finding, Role.UPDATES)}
    for state in found:
        weights = of_weights.get(state.step)
        if weights is not None and roles.have(state, Role.STATE) and state.cause is None and not state.follows:
            yield Doubt(
                state.check,
                f"{weights.cause} is excused in step {state.step}, and it is not known whether {state.variable}, which "
                "differs in that step, follows from it",
            )


def is_recomputed(finding: Finding) -> bool:
    """Return whether the declared cause explains the whole difference, or is tolerated as an approximation."""
    return finding.approximation or (finding.exact and finding.cause not in _BY_ELIMINATION)


def _hides(declared: Finding, found: Sequence[Finding], roles: Roles) -> bool:
    """Return whether a later finding may, or may not, be a consequence of a declared one."""
    if declared.cause == "state-not-aggregated":
        return False
    return any(
        f is not declared
        and roles.have(f, Role.FOLLOWING | Role.EXAMPLES)
        and f.cause != declared.cause
        and (f.step or 0) >= (declared.step or 0)
        for f in found
    )
