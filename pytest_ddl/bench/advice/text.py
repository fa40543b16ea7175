"""Text and JSON of an advice: the strategy, what limits it, what to change, and whether that held."""

from __future__ import annotations

import math
import textwrap
from dataclasses import dataclass
from typing import Any

from pytest_ddl.bench.advice.choosing import Choice
from pytest_ddl.bench.advice.confirming import Confirmation
from pytest_ddl.bench.advice.deciding import Advice, AdviceDecision, limit_of, parts_of
from pytest_ddl.bench.advice.facts.evidence import AdviceEvidence
from pytest_ddl.bench.advice.facts.gains import Gain
from pytest_ddl.bench.advice.rules import RULES

WIDTH = 100


@dataclass(frozen=True)
class AdviceReport:
    """Everything that the command found out."""

    choice: Choice
    evidence: AdviceEvidence
    decision: AdviceDecision
    confirmation: Confirmation | None = None
    unconfirmed: str = ""
    """Reason why the first piece of advice was not measured."""
    by_user: bool = False
    """True if the change that was measured is one that the user has made (``--after``)."""

    def __str__(self) -> str:
        lines = [f"strategy: {self.choice.variant}, because: {self.choice.because}"]
        lines += [f"  not measured: {name}: {_line(why)}" for name, why in self.choice.skipped.items()]
        lines += ["", f"what limits it: {limit_of(self.evidence, self.decision)}{self._because()}"]
        lines += [f"  {name} without cost: a step would be {gain}" for name, gain in self._parts().items()]
        if self.evidence.gains:
            lines.append(f"  noise: two launches of the same program differ by up to {self.evidence.noise:.2f} times")
        lines.append("")
        for number, advice in enumerate(self.decision.advice, 1):
            lines += _advice(number, advice)
        if not self.decision.advice:
            lines.append(
                "what to change: nothing: no rule applies" + (" to what was measured" if self.decision.missing else "")
            )
        lines += self._below()
        return "\n".join(
            part
            for line in lines
            for part in (textwrap.wrap(line, WIDTH, subsequent_indent=" " * (_indent(line) + 2)) or [""])
        )

    def _parts(self) -> dict[str, Gain]:
        return parts_of(self.evidence, self.decision)

    def _because(self) -> str:
        """Return why this is the limit, because a part below may show a smaller gain than the advice for it."""
        if not self.decision.advice:
            return ""
        gain = self.decision.advice[0].found.gain
        return ", because advice 1 below is about it" + (f": a step would be {gain}" if gain is not None else "")

    def _below(self) -> list[str]:
        lines = [""]
        if self.confirmation is not None:
            of_user = "your change (--after)"
            if self.by_user and self.decision.advice:
                of_user += f", taken as {self.decision.advice[0].rule.id},"
            lines.append(f"{of_user if self.by_user else 'the first piece of advice'} {self.confirmation}")
        elif self.unconfirmed:
            lines.append(f"the first piece of advice was not measured: {self.unconfirmed}")
        if self.decision.not_asked:
            lines.append(
                f"not looked at: {', '.join(self.decision.not_asked)}. They help against any fixed cost; remove the "
                "cause above, and ask again."
            )
        lines += [f"not judged: {name}: {_line(why)}" for name, why in self.decision.missing.items()]
        return lines if len(lines) > 1 else []

    def as_json(self) -> dict[str, Any]:
        """Return numbers, strings, lists and dicts only."""
        return {
            "strategy": self.choice.variant,
            "because": self.choice.because,
            "variants": [
                {"variant": one.variant, "replicas": one.replicas, "examples_per_second": one.examples_per_second}
                for one in self.choice.rated
            ],
            "limit": limit_of(self.evidence, self.decision),
            "parts": {name: _numbers(gain) for name, gain in self._parts().items()},
            "noise": self.evidence.noise,
            "advice": [
                {
                    "rule": advice.rule.id,
                    "change": advice.rule.change,
                    "measurement": advice.found.measurement,
                    "gain": _numbers(advice.found.gain),
                    "source": advice.rule.source,
                }
                for advice in self.decision.advice
            ],
            "confirmation": None
            if self.confirmation is None
            else {
                "outcome": self.confirmation.outcome.value,
                "gain": _numbers(self.confirmation.gain),
                "samples": list(self.confirmation.samples),
            },
            "unconfirmed": self.unconfirmed,
            "not_judged": self.decision.missing,
            "not_asked": list(self.decision.not_asked),
        }


def _advice(number: int, advice: Advice) -> list[str]:
    gain = advice.found.gain
    expected = str(gain) if gain is not None else "no number"
    return [
        f"{number}. {advice.rule.id}: {advice.rule.change}",
        f"   measured: {advice.found.measurement}",
        f"   expected gain: {expected}; {RULES[advice.rule.id].expected}",
        f"   source: {advice.rule.source}",
    ]


def _numbers(gain: Gain | None) -> dict[str, float | None] | None:
    if gain is None:
        return None
    values = {"value": gain.value, "low": gain.low, "high": gain.high}
    return {name: value if math.isfinite(value) else None for name, value in values.items()}


def _line(text: str) -> str:
    return text.strip().splitlines()[0] if text.strip() else ""


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())
