"""Candidates for data: the same examples with other values, or counted another number of times."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from pytest_ddl.equivalence.causes.special import SPECIAL
from pytest_ddl.equivalence.diagnosis.candidates.case import Case, Fit, Source
from pytest_ddl.equivalence.diagnosis.candidates.shared import (
    factor_of,
    factors_alone,
    is_one,
    odd_replicas,
    plain_normalization,
    random_sources,
)
from pytest_ddl.equivalence.evidence import gradients
from pytest_ddl.equivalence.evidence.combination import Values, Weights, solve
from pytest_ddl.equivalence.findings import Grounds
from pytest_ddl.records import GradientStage, TrainingRecord

_TIMES = {0: "is left out", 2: "counts twice"}


def other_values(case: Case) -> Fit | None:
    """Test for examples whose ids are those of one device, and whose contents are not."""
    ours = {name: content for name, content, _replica in _contents(case.reference, case.step)}
    theirs = _contents(case.distributed, case.step)
    known = [(ours[name], content, replica) for name, content, replica in theirs if name in ours]
    altered = [replica for mine, content, replica in known if mine != content]
    if not altered or len(known) < len(theirs):
        return None
    replicas = ", ".join(map(str, dict.fromkeys(altered)))
    return Fit(
        "examples-altered",
        f"{len(altered)} of {len(theirs)} examples have the ids of one device, but other contents: on replica "
        f"{replicas}",
    )


def counted_another_number_of_times(case: Case) -> Fit | None:
    """Test for examples that a replica consumed, but whose gradients it counts zero or several times.

    One device computes the gradient of each single example. The replica's gradient is the sum of these gradients, each
    times a whole number, times one common factor. The factor is free: a program may divide by its examples' number.
    """
    source = case.computed
    if source is None:
        return None
    everywhere = len(case.examples) == case.replicas
    if everywhere and not _counts_all_once(case, source):
        return None
    for replica, runs in case.examples.items():
        counts = _counted(case, source.parts[replica], runs)
        if counts is None or set(counts) == {1} or (everywhere and max(counts) > 1):
            continue
        rows = sorted(runs)
        again = any(count > 1 for count in counts)
        described = ", ".join(_described(case.reference, case.step, dict(zip(rows, counts, strict=True))))
        return Fit(
            "examples-duplicated" if again else "examples-dropped",
            f"the gradients that one device computes for each example alone make the gradient of replica {replica} "
            f"only if {described}",
            also=("examples-dropped",) if again and 0 in counts else (),
            fix=SPECIAL["examples-left-out"],
        )
    return None


def paired_otherwise(case: Case) -> Fit | None:
    """Test for a replica that gives its inputs the labels of other examples of its batch."""
    source = case.computed
    for pairing, run in case.pairings.items() if source is not None else ():
        if source is not None and factor_of(case, source, source.parts[pairing.replica], run) is not None:
            return Fit(
                "examples-altered",
                f"one device gets the gradient of replica {pairing.replica} if the rows of tensor {pairing.tensor} of "
                f"its examples are {pairing.order}, and those of the other tensors are not",
                fix=SPECIAL["pairs-broken"],
            )
    return None


def treated_otherwise(case: Case) -> Fit | None:
    """Test for some replicas whose gradient is not the one of their examples, while that of the others is.

    Each replica may also multiply its gradient by a factor of its own.
    """
    if not case.same_examples or plain_normalization(case) or random_sources(case):
        return None
    odd = odd_replicas(case)
    if not odd:
        return _multiplied_otherwise(case)
    replicas = ", ".join(map(str, odd))
    return Fit(
        "replica-computes-otherwise",
        f"only replica {replicas} computes another gradient than one device does for the same examples",
        grounds=Grounds.PATTERN,
        also=("examples-altered",),
    )


def _multiplied_otherwise(case: Case) -> Fit | None:
    source = case.computed
    factors = factors_alone(case, source) if source is not None else []
    known = [factor for factor in factors if factor]
    if not known or len(known) < len(factors) or all(is_one(factor / known[0]) for factor in known):
        return None
    shown = ", ".join(f"{factor:.4g} x on replica {replica}" for replica, factor in enumerate(known))
    return Fit(
        "replica-computes-otherwise",
        f"the gradient that one device computes for the same examples is multiplied by another number: {shown}",
        also=("examples-altered",),
    )


def _counts_all_once(case: Case, source: Source) -> bool:
    """Return whether one device counts each example of the batch once: the loss selects no examples, and pairs none."""
    counts = _counted(case, source.own, {row: run for runs in case.examples.values() for row, run in runs.items()})
    return counts is not None and set(counts) == {1}


def _counted(case: Case, whole: Values, runs: Mapping[int, TrainingRecord]) -> list[int] | None:
    """Return how often each example counts in a gradient, ordered by row; ``None`` if it is no such sum."""
    alone = [gradients.by_replica(runs[row], case.step, GradientStage.COMPUTED).get(0, {}) for row in sorted(runs)]
    weights = solve(whole, alone, case.gradient_slack)
    return None if weights is None else _counts(weights)


def _counts(weights: Weights) -> list[int] | None:
    """Return how often each example counts; ``None`` if the weights are no multiples of the smallest one."""
    pairs = list(zip(weights.values, weights.slack, strict=True))
    positive = [(value, slack) for value, slack in pairs if value > slack]
    if not positive:
        return None
    unit, unsure = min(positive)
    counts = [round(value / unit) for value, _slack in pairs]
    fits = [
        abs(value - count * unit) <= slack + count * unsure for (value, slack), count in zip(pairs, counts, strict=True)
    ]
    return counts if all(fits) and min(counts) >= 0 else None


def _described(record: TrainingRecord, step: int, counts: Mapping[int, int]) -> Iterator[str]:
    (batch, *_others) = record.batches(step)
    for row, count in counts.items():
        if count != 1:
            name = f"example {batch.example_ids[row]}" if batch.example_ids else f"row {row} of the global batch"
            yield f"{name} {_TIMES.get(count, f'counts {count} times')}"


def _contents(record: TrainingRecord, step: int) -> list[tuple[int | str, int, int]]:
    return [
        (name, content, batch.replica)
        for batch in record.batches(step)
        if batch.example_ids and batch.fingerprints
        for name, content in zip(batch.example_ids, batch.fingerprints, strict=False)
    ]
