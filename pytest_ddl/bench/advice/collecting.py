"""Measure what rules need: the first launches of a variant, and what a rule asks for later."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from pytest_ddl.bench.advice.facts.evidence import AdviceEvidence, Contender, Measured, MissingError
from pytest_ddl.bench.advice.facts.gains import gain_of, noise_of
from pytest_ddl.bench.advice.turns import take_turns
from pytest_ddl.bench.collectives import measure_collectives
from pytest_ddl.bench.launching.ranks import BenchError
from pytest_ddl.bench.launching.records import BenchSpec
from pytest_ddl.harness import Harness

TOGETHER = 3
"""Further launches that take turns with the program as it is, so that a group of turns stays short."""
LOOPS = {
    "cached": ("steps", "batches", "fit"),
    "parallel": ("steps", "batches", "fit"),
    "prefetch": ("steps", "batches", "fit"),
    "graph": ("steps", "fit"),
    "rarely": ("steps", "fit"),
    "loop": ("steps", "fit"),
}
"""Knob -> kinds of loops that it changes; a knob that is not here changes all."""
COLLECTIVE_SAMPLES = 9


@dataclass
class Collector:
    """Measurements of one training function under one variant, made when they are asked for."""

    harness: Harness
    train: Callable[[Any], Any]
    variant: str
    bench: BenchSpec
    say: Callable[[str], None] = lambda _text: None

    def first(self) -> AdviceEvidence:
        """Measure the program as it is, twice, with the first batch from memory, and without communication.

        :raises BenchError: if the program cannot be measured.
        """
        spec = self.harness.registry.parse_variant(self.variant)
        several = self.harness.registry[spec.name].num_replicas(spec) != 1
        knobs = ["again", "cached", *(["alone"] if several else [])]
        self.say(f"measuring {self.variant}: the program as it is, with its data in memory, without communication …")
        found, failed = self._turns(knobs)
        base = found.pop("base")
        evidence = AdviceEvidence(base.launch, base.notes, measured={"base": base, **found}, unavailable=failed)
        self._take(evidence, base, found)
        return evidence

    def answer(self, evidence: AdviceEvidence, missing: Iterable[MissingError]) -> bool:
        """Measure what rules miss, as far as that is possible, and return whether something was measured."""
        open_questions = [error for error in missing if not error.reason]
        knobs = list(dict.fromkeys(error.knob for error in open_questions if error.knob))
        for knob in knobs:
            reason = self._unfit(evidence, knob)
            if reason:
                evidence.unavailable[knob] = reason
        knobs = [knob for knob in knobs if knob not in evidence.unavailable]
        sizes = list(dict.fromkeys(error.collective for error in open_questions if error.collective))
        if sizes:
            self._time_collectives(evidence, sizes)
        for start in range(0, len(knobs), TOGETHER):
            some = knobs[start : start + TOGETHER]
            self.say(f"measuring with {', '.join(some)} …")
            found, failed = self._turns(["again", *some])
            base = found.pop("base")
            evidence.unavailable.update(failed)
            self._take(evidence, base, found)
        return bool(open_questions)

    def _unfit(self, evidence: AdviceEvidence, knob: str) -> str:
        kinds = {notes.loops for notes in evidence.notes}
        wanted = LOOPS.get(knob)
        if wanted is not None and not kinds & set(wanted):
            return f"the program trains with run.{'/'.join(sorted(kinds - {''})) or 'record'}, which it does not change"
        return ""

    def _take(self, evidence: AdviceEvidence, base: Measured, found: dict[str, Measured]) -> None:
        for knob, measured in found.items():
            counted, examples = measured.launch.examples_per_step, base.launch.examples_per_step
            if knob == "batch" and (counted is None or examples is None):
                evidence.unavailable[knob] = "the examples of a step could not be counted"
                continue
            if knob == "batch" and counted == examples:
                evidence.unavailable[knob] = "the program does not take its batch size from run.global_batch_size"
                continue
            for gains, on_average in ((evidence.gains, False), (evidence.averages, True)):
                gain = gain_of(base.steps, measured.steps, on_average=on_average)
                if knob == "again" and knob in gains:
                    # The noise of the busiest part of the measurement holds for all of it.
                    gain = max(gain, gains[knob], key=noise_of)
                gains[knob] = gain

    def _turns(self, knobs: Sequence[str]) -> tuple[dict[str, Measured], dict[str, str]]:
        contenders = [Contender(knob, self.train, self.variant, self.bench, knob) for knob in ("base", *knobs)]
        return take_turns(self.harness, contenders)

    def _time_collectives(self, evidence: AdviceEvidence, wanted: Sequence[tuple[str, int]]) -> None:
        self.say("timing collectives with nothing else running …")
        kinds = {kind for kind, _size in wanted}
        for kind in sorted(kinds):
            sizes = [size for each, size in wanted if each == kind]
            try:
                timings = measure_collectives(
                    self.variant,
                    sizes,
                    (kind,),
                    samples=COLLECTIVE_SAMPLES,
                    device=self.bench.device,
                    timeout=self.bench.timeout,
                )
            except (BenchError, ValueError) as error:
                evidence.unavailable["collectives"] = str(error).splitlines()[0]
                return
            # The fastest call: other programs can only make one longer.
            for size, timing in zip(sizes, timings, strict=True):
                evidence.collectives[kind, size] = min(timing.samples)
