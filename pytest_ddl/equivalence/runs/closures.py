"""Recompute each concurrent closure on one device, from the weights that it read and the examples that it consumed.

The order of closures, and how old the weights are that they read, makes no difference here. So the gradients must be
equal. A difference shows that a closure depends on something else, such as what other closures do at the same time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from pytest_ddl.equivalence.causes import fix_of
from pytest_ddl.equivalence.checks.parameter_server import CHECK
from pytest_ddl.equivalence.diagnosis.candidates.shared import random_layers
from pytest_ddl.equivalence.diagnosis.summed_updates import all_steps
from pytest_ddl.equivalence.evidence.arithmetic import unit_roundoff
from pytest_ddl.equivalence.evidence.arrays import Float, all_finite, coefficient, difference, magnitude, norm
from pytest_ddl.equivalence.evidence.observe import is_asynchronous
from pytest_ddl.equivalence.evidence.replica_calls import calls_of
from pytest_ddl.equivalence.evidence.tolerance import Tolerance
from pytest_ddl.equivalence.findings import CheckResult, Doubt, Finding, Grounds
from pytest_ddl.equivalence.outcomes import failed
from pytest_ddl.equivalence.probes.one_by_one import FIX
from pytest_ddl.equivalence.runs.alignment import Runner
from pytest_ddl.equivalence.verdict.judge import concluded_from
from pytest_ddl.equivalence.verdict.report import Report
from pytest_ddl.notes import Note, NoteKind
from pytest_ddl.records import Array, GradientStage, TrainingRecord
from pytest_ddl.run_facts import Call, ReadsOfCall
from pytest_ddl.training.data import move_by_ulp
from pytest_ddl.training.neutral import RANDOM
from pytest_ddl.training.settings import Feed, RunSettings

_CAUSE = "closure-depends-on-others"
_VERBS = {
    GradientStage.COMPUTED: "compute other gradients",
    GradientStage.APPLIED: "hand other gradients to the optimizer",
    None: "assign other values",
}
_NOISE_RUNS = 3
_Gradients = Sequence[tuple[GradientStage | None, int, Mapping[int, Array | None]]]
"""Gradients of a closure, in the order of the program; without a stage, values that it assigns to weights itself."""


@dataclass(frozen=True)
class _Closures:
    """All that was recorded of the closures of a run, each in the order of the closures."""

    calls: tuple[Call, ...]
    reads: tuple[ReadsOfCall, ...]
    scalars: tuple[tuple[float, ...], ...]
    gradients: tuple[_Gradients, ...]
    hidden: tuple[int | str, ...] = ()
    """Weights by index, and other variables by name, of which some reads could not be recorded."""
    repeated: tuple[int | str, ...] = ()
    """Weights and other variables that branches or loops read."""
    takes_more: bool = False
    """True if the replica function computes from tensors that are not its arguments."""

    @property
    def keys(self) -> tuple[Hashable, ...]:
        """Marks by which the closures of a program differ: their scalars, and the weights that they train."""
        return tuple(
            (scalars, tuple((stage, *sorted(arrays)) for stage, _site, arrays in gradients))
            for scalars, gradients in zip(self.scalars, self.gradients, strict=True)
        )

    @property
    def are_ambiguous(self) -> bool:
        """True if indistinguishable closures were traced several times, perhaps for different arguments."""
        sites = zip(self.keys, (tuple(site for _stage, site, _of in one) for one in self.gradients), strict=True)
        return len(set(sites)) > len(set(self.keys))

    def feed(self, others: bool = False) -> Feed:
        """Return the examples and the weights that were read.

        :param others: also give the values of other variables that were read.
        """
        kept = tuple({key: of[key] for key in of if others or isinstance(key, int)} for of in self.reads)
        return Feed(self.calls, kept)

    def in_order_of(self, keys: Sequence[Hashable]) -> _Closures | None:
        """Return these closures in the order of others with these keys, or ``None`` if they are not the same ones."""
        waiting: dict[Hashable, list[int]] = {}
        for position, key in enumerate(self.keys):
            waiting.setdefault(key, []).append(position)
        if Counter(self.keys) != Counter(keys):
            return None
        order = [waiting[key].pop(0) for key in keys]
        return replace(
            self,
            calls=tuple(self.calls[at] for at in order),
            reads=tuple(self.reads[at] for at in order),
            scalars=tuple(self.scalars[at] for at in order),
            gradients=tuple(self.gradients[at] for at in order),
        )

    def is_known(self, call: int) -> bool:
        """Return whether it is known which value each read of a closure gave.

        A loop reads in any order. So it must have read the same value each time.
        """
        of = self.reads[call]
        trained = {index for stage, _site, arrays in self.gradients[call] if stage for index in arrays}
        same = all(np.array_equal(one, of[key][0]) for key in set(self.repeated) & set(of) for one in of[key])
        return trained <= set(of) and not trained & set(self.hidden) and same

    def others(self) -> list[dict[str, tuple[bytes, ...]]]:
        """Return what each closure read beside the weights."""
        return [
            {key: tuple(one.tobytes() for one in of[key]) for key in sorted(of, key=str) if isinstance(key, str)}
            for of in self.reads
        ]


@dataclass(frozen=True)
class _Difference:
    """Gradient of a closure, and what one device recomputes."""

    call: int
    stage: GradientStage | None
    index: int
    actual: Float
    desired: Float
    bound: float

    @property
    def is_small(self) -> bool:
        return difference(self.actual, self.desired).error <= self.bound

    @property
    def place(self) -> tuple[int, GradientStage | None, int]:
        return self.call, self.stage, self.index


def with_closures(report: Report, settings: RunSettings, program: Runner) -> Report:
    """Add a finding about a closure whose gradient one device does not recompute, or a doubt if that is not known."""
    plain, reference = report.distributed, report.reference
    if report.findings or not is_asynchronous(plain):
        return report
    if plain.errors or reference.errors or not plain.num_steps or report.result(CHECK) is None:
        return report
    if RANDOM not in settings.neutralize and (not _draws_are_constant(reference, plain) or random_layers(plain)):
        settings = replace(settings, neutralize=(*settings.neutralize, RANDOM))
        plain = program.distributed(settings)
    if plain.errors or not any(step.gradients for step in all_steps(plain)):
        return report
    closures = _closures_of(plain)
    if closures is None:
        return _undecided(report, "compute gradients in strategy.run(function, args=(batch,)), where they are recorded")
    return _Recomputation(report, replace(settings, keep_calls=True, whole=True), program, closures).judged()


def _draws_are_constant(reference: TrainingRecord, distributed: TrainingRecord) -> bool:
    """Return whether closures draw the same numbers in any order: from constant seeds, or none at all."""
    ours, theirs = ([draw for step in all_steps(record) for draw in step.draws] for record in (reference, distributed))
    constant = all(draw.op.startswith("stateless") and not draw.generator for draw in theirs)
    return constant and [draw.digest for draw in ours] == [draw.digest for draw in theirs]


@dataclass(frozen=True)
class _Recomputation:
    """Recomputation of all closures of a run on one device."""

    report: Report
    settings: RunSettings
    program: Runner
    closures: _Closures

    def judged(self) -> Report:
        if not any(map(self.closures.is_known, range(len(self.closures.calls)))):
            return _undecided(self.report, "a tf.function that they call reads weights unseen")
        own = self._run(self.closures.feed())
        if own is None or own[0].keys != self.closures.keys:
            return self._in_order_of_one_device()
        device, record = own
        wrong = self._wrong(device, record)
        if not wrong:
            return self._passed()
        if self.closures.takes_more:
            return _undecided(self.report, "give the batch, and all else that it needs, to strategy.run as arguments")
        if self.closures.are_ambiguous:
            return _undecided(self.report, "they were traced several times, and it is not known for which arguments")
        here, there = self.closures.others(), device.others()
        if any(here):
            shared = [name for name in here[0] if _is_constant(name, there) and not _is_constant(name, (*here, *there))]
            if shared:
                return self._failed(wrong, f"closures read {shared[0]}, which is always the same if none run together")
            if not all(one in there for one in here):
                names = ", ".join(here[0])
                return _undecided(self.report, f"their gradients depend on {names}, which they read and change")
            # They have read what closures read that run one after the other. So one device is given that too.
            again = self._run(self.closures.feed(others=True))
            wrong = self._wrong(*again) if again is not None else wrong
        return self._failed(wrong) if wrong else self._passed()

    def _passed(self) -> Report:
        known = sum(map(self.closures.is_known, range(len(self.closures.calls))))
        how = f"{CHECK}: one device recomputed the gradients of {known} of {len(self.closures.calls)} closures"
        return self.report.noted(Note(NoteKind.HOW, how))

    def _in_order_of_one_device(self) -> Report:
        """Give one device the closures in the order in which it runs them itself, or add a doubt."""
        own = self._run(None)
        ordered = None if own is None else self.closures.in_order_of(own[0].keys)
        if ordered is None or ordered.keys == self.closures.keys:
            return _undecided(self.report, "one device could not be given what they read and consumed")
        return replace(self, closures=ordered).judged()

    def _run(self, feed: Feed | None) -> tuple[_Closures, TrainingRecord] | None:
        record = self.program.reference(replace(self.settings, feed=feed))
        closures = None if record.errors else _closures_of(record)
        return None if closures is None else (closures, record)

    def _wrong(self, device: _Closures, record: TrainingRecord) -> list[_Difference]:
        """Return the gradients that differ by more than rounding."""
        tolerance = Tolerance(record)
        wrong = [one for one in _differences(self.closures, device, tolerance) if not one.is_small]
        noise: dict[tuple[int, GradientStage | None, int], float] = {}
        for number in range(_NOISE_RUNS if wrong else 0):
            run = self._run(_moved(self.closures.feed(), np.random.default_rng(number)))
            for one in _differences(run[0], device, tolerance) if run is not None else ():
                noise[one.place] = max(noise.get(one.place, 0.0), difference(one.actual, one.desired).error)
        wider = [replace(one, bound=one.bound + tolerance.amplification * noise.get(one.place, 0.0)) for one in wrong]
        return [one for one in wider if not one.is_small]

    def _failed(self, wrong: Sequence[_Difference], evidence: str = "") -> Report:
        finding = _finding(wrong, self.report.distributed, len(self.closures.calls), evidence)
        results: list[CheckResult] = []
        for result in self.report.results:
            found_here = failed(CHECK, [finding, *result.findings])
            results.append(found_here if result.check == CHECK else result)
        return concluded_from(self.report, results)


def _closures_of(record: TrainingRecord) -> _Closures | None:
    calls, facts = calls_of(record), record.ranks[0].facts if record.ranks else {}
    reads, scalars = facts.get("reads", ()), facts.get("scalars", ())
    gradients: tuple[_Gradients, ...] = tuple(
        (*of, *_assigned(facts["assigned"][call]))
        for call, of in sorted(facts.get("gradients_of_calls", {}).items())
        if call < len(facts.get("assigned", ()))
    )
    complete = calls is not None and len(calls) == len(reads) == len(scalars) == len(gradients)
    if not complete or calls is None:
        return None
    return _Closures(calls, reads, scalars, gradients, facts["hidden"], facts["repeated"], facts["takes_more"])


def _is_constant(name: str, others: Sequence[Mapping[str, tuple[bytes, ...]]]) -> bool:
    """Return whether all closures read the same value of a variable."""
    return len({value for of in others for value in of.get(name, ())}) == 1


def _assigned(of: ReadsOfCall) -> Iterator[tuple[None, int, Mapping[int, Array | None]]]:
    for key, values in of.items():
        if isinstance(key, int):
            yield from ((None, 0, {key: value}) for value in values)


def _differences(ours: _Closures, device: _Closures, tolerance: Tolerance) -> Iterator[_Difference]:
    """Yield both gradients of each weight in each call, with the bound of their rounding."""
    relative = {
        variable.index: 2 * tolerance.relative(max(unit_roundoff(variable.dtype), tolerance.compute_roundoff))
        for variable in tolerance.reference.variables
    }
    pairs = enumerate(zip(ours.gradients, device.gradients, strict=False))
    for call, (left, right) in ((call, pair) for call, pair in pairs if ours.is_known(call)):
        for (stage, _site, actual), (_stage, _place, desired) in zip(left, right, strict=False):
            for index, value in actual.items():
                own = desired.get(index)
                if value is None or own is None or value.shape != own.shape:
                    continue
                mine, theirs = np.asarray(value, np.float64), np.asarray(own, np.float64)
                if all_finite(mine) and all_finite(theirs):
                    scale = max(magnitude(mine), magnitude(theirs))
                    yield _Difference(call, stage, index, mine, theirs, relative[index] * scale)


def _moved(feed: Feed, generator: np.random.Generator) -> Feed:
    """Return all numbers of a feed moved by one ulp."""

    def moved(arrays: Sequence[Array]) -> tuple[Array, ...]:
        return tuple(move_by_ulp(one, generator) if one.dtype.kind == "f" else one for one in arrays)

    calls = tuple(map(moved, feed.calls))
    return Feed(calls, tuple({key: moved(values) for key, values in of.items()} for of in feed.reads or ()))


def _undecided(report: Report, why: str) -> Report:
    doubt = Doubt(CHECK, f"closures ran at the same time, and it is not known whether each is right: {why}")
    return replace(report, doubts=(*report.doubts, doubt))


def _finding(wrong: Sequence[_Difference], plain: TrainingRecord, closures: int, evidence: str) -> Finding:
    first = wrong[0]
    factor = coefficient(first.actual, first.desired) or 0.0
    is_multiple = norm(first.actual - factor * first.desired) <= first.bound * first.actual.size
    noun = "gradient" if first.stage else "value"
    what = f"{factor:.3g} x the {noun}" if is_multiple else f"another {noun} than the one"
    numbers = len({one.call for one in wrong})
    # If all closures are wrong, it does not show that one depends on another.
    cause = _CAUSE if evidence or numbers < closures else None
    apart = difference(first.actual, first.desired)
    variable = next(variable for variable in plain.variables if variable.index == first.index)
    return Finding(
        CHECK,
        f"from the same weights and examples, {numbers} of {closures} concurrent closures {_VERBS[first.stage]} "
        f"than one device; closure {first.call + 1} has {what} for {variable.name}",
        cause=cause,
        step=first.call + 1,
        variable=variable.name,
        error=apart.error,
        tolerance=first.bound,
        fix=fix_of(cause) if cause else FIX,
        observed=apart.actual,
        expected=apart.desired,
        origin="rounding of one gradient, whose operands are equal",
        evidence=evidence or "one device was given the weights that each closure read, and the examples it consumed",
        grounds=Grounds.RECOMPUTED,
    )
