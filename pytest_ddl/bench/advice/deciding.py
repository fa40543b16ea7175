"""Apply the rules to the evidence of a variant, ask for what they miss, and put their advice into an order."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from pytest_ddl.bench.advice.facts.evidence import AdviceEvidence, MissingError
from pytest_ddl.bench.advice.facts.gains import Gain
from pytest_ddl.bench.advice.rules import RULES, AdviceRule, RuleFinding

ROUNDS = 6
"""Maximum number of times that rules may ask for further measurements."""


@dataclass(frozen=True)
class Advice:
    """A rule that applies, and its finding."""

    rule: AdviceRule
    found: RuleFinding


@dataclass(frozen=True)
class AdviceDecision:
    """Advice for one variant, the most important first."""

    advice: tuple[Advice, ...]
    missing: dict[str, str]
    """Rule that could not be judged -> the measurement that it misses."""
    not_asked: tuple[str, ...] = ()
    """Rules for general remedies, which are not judged if there is other advice."""


def decide(
    evidence: AdviceEvidence,
    answer: Callable[[AdviceEvidence, Iterable[MissingError]], bool] = lambda _evidence, _missing: False,
) -> AdviceDecision:
    """Judge all rules, causes first; general remedies only if no cause was found.

    :param answer: function that measures what rules miss and adds it to the evidence. It returns False if it measured
        nothing.
    """
    causes = [rule for rule in RULES.values() if rule.rank < 2]
    general = [rule for rule in RULES.values() if rule.rank >= 2]
    advice, missing = _judged(causes, evidence, answer)
    not_asked: tuple[str, ...] = ()
    if advice:
        not_asked = tuple(rule.id for rule in general)
    else:
        advice, further = _judged(general, evidence, answer)
        missing |= further
    return AdviceDecision(tuple(sorted(advice, key=_importance)), missing, not_asked)


def _judged(
    rules: list[AdviceRule], evidence: AdviceEvidence, answer: Callable[[AdviceEvidence, Iterable[MissingError]], bool]
) -> tuple[list[Advice], dict[str, str]]:
    for _round in range(ROUNDS):
        advice: list[Advice] = []
        missing: dict[str, MissingError] = {}
        for rule in rules:
            try:
                found = rule.judge(evidence)
            except MissingError as error:
                missing[rule.id] = error
            else:
                if found is not None:
                    advice.append(Advice(rule, found))
        if not missing or not answer(evidence, missing.values()):
            break
    return advice, {name: str(error) for name, error in missing.items()}


def _importance(advice: Advice) -> tuple[int, float]:
    gain = advice.found.gain
    return (advice.rule.rank, -gain.value if gain is not None else 0.0)


def limits(evidence: AdviceEvidence) -> dict[str, Gain]:
    """Return what a step spends its time on: part -> the gain if that part took no time, as far as it was measured.

    Parts overlap: a step that waits for data also waits for the slowest rank.
    """
    gains: dict[str, Gain] = {}
    if "cached" in evidence.gains:
        gains["input"] = evidence.helps("cached") or evidence.gains["cached"]
    if evidence.replicas > 1 and "alone" in evidence.gains:
        gains["communication"] = evidence.helps("alone") or evidence.gains["alone"]
    for name, part in (("Python and host", "bodies"), ("tracing", "traced")):
        try:
            gains[name] = evidence.share(part)
        except MissingError:
            continue
    try:
        slowest = evidence.slowest_rank()
    except MissingError:
        slowest = None
    if slowest is not None:
        gains["stragglers"] = slowest[1]
    return gains


def parts_of(evidence: AdviceEvidence, decision: AdviceDecision) -> dict[str, Gain]:
    """Return the limits of the program, each with the largest gain that was found for it.

    A change may save what no part measures: several steps in one call save the cost of calls, not of the loop's body.
    """
    found = limits(evidence)
    for advice in decision.advice:
        part, gain = advice.rule.limit, advice.found.gain
        if gain is not None and part in found and gain.value > found[part].value:
            found[part] = gain
    return found


def limit_of(evidence: AdviceEvidence, decision: AdviceDecision) -> str:
    """Return what limits the program: that of the first advice, or the largest part above the noise, or ``compute``."""
    if decision.advice:
        return decision.advice[0].rule.limit
    parts = {name: gain for name, gain in limits(evidence).items() if evidence.beyond_noise(gain)}
    return max(parts, key=lambda name: parts[name].value, default="compute")
