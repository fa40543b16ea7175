"""Candidates for one wrong term of the loss, beside terms that are right: runs on parts of the batch show the term."""

from __future__ import annotations

import numpy as np

from pytest_ddl.equivalence.causes.special import SPECIAL
from pytest_ddl.equivalence.diagnosis.candidates.case import Case, Fit, Source
from pytest_ddl.equivalence.diagnosis.candidates.shared import combined, factors_alone, is_one, tells
from pytest_ddl.equivalence.evidence import gradients
from pytest_ddl.equivalence.evidence.arrays import Float

SCALED, INVERSE = "gradient-scaled-by-replica-count", "gradient-scaled-by-inverse-replica-count"
PENALTY = "regularization-scaled-by-replica-count"


def mean_term(case: Case) -> Fit | None:
    """Test for a term of the loss that each replica averages over its own examples, beside terms that are right.

    The sum of the terms of all replicas is the factor ``N / (N - 1)`` times the excess of the replicas' gradients over
    that of one device. A term that is equal on all replicas does not depend on the examples: a penalty.
    """
    source = case.computed
    terms = terms_of(case, source) if source is not None else []
    if source is None or not terms:
        return None
    number, close = case.replicas, case.close(4 * case.replicas)
    summed, present = combined(source, [1.0] * number), False
    for index, own in source.own.items():
        whole = np.sum([term[index] for term in terms if index in term], axis=0)
        if index not in summed or not close(index, whole * (number - 1) / number, summed[index] - own):
            return None
        present = present or not close(index, whole, np.zeros_like(own))
    if not present:
        return None
    evidence = (
        "one device that trains on equal parts of each replica's examples shows a term of the loss that every part of "
        f"a batch counts in full: it is {number} times too large"
    )
    if are_alike(case, terms):
        return Fit(PENALTY, f"{evidence}. It is the same for all parts, as a term of only the weights is")
    layers = case.distributed.ranks[0].layers if case.distributed.ranks else ()
    penalised = [layer.name for layer in layers if "activity_regularizer" in layer.settings]
    if not penalised:
        return Fit(SCALED, evidence, fix=SPECIAL["mean-term"])
    # Keras puts the mean of this penalty over a replica's examples into ``losses`` of the model.
    return Fit(
        PENALTY, f"{evidence}; {', '.join(penalised)} penalises its output, as a mean over the examples", also=(SCALED,)
    )


def summed_term(case: Case) -> Fit | None:
    """Test for a sum over the examples, beside means over them, in a loss that is divided by the number of replicas.

    Fit of Keras divides the whole loss. One device has the mean of the replicas' means, and the sum of their sums.
    """
    source, number = case.computed, case.replicas
    factors = factors_alone(case, source) if source is not None else []
    if source is None or len(case.pieces) != number or len(factors) != number or not tells(case, source):
        return None
    if not all(factor and is_one(factor * number) for factor in factors):
        return None
    alone = Source(source.stage, source.own, [{i: v * number for i, v in part.items()} for part in source.parts])
    means = terms_of(case, alone)
    sums = [{i: part[i] - mean[i] for i in part} for part, mean in zip(alone.parts, means, strict=False)]
    if len(sums) != number or are_alike(case, sums):
        return None
    close, count = case.close(4 * number), 0
    of_means, of_sums = (combined(Source(source.stage, source.own, parts), [1.0] * number) for parts in (means, sums))
    for index, own in source.own.items():
        if index not in of_sums or not close(index, own, of_means[index] / number + of_sums[index]):
            return None
        count += not close(index, of_sums[index], np.zeros_like(own))
    if not count:
        return None
    return Fit(
        INVERSE,
        "one device that trains on equal parts of each replica's examples shows a term of the loss that is a sum over "
        f"them, beside means over them. The program divides both by {number}, the number of replicas",
        fix=SPECIAL["summed-term"],
    )


def terms_of(case: Case, source: Source) -> list[dict[int, Float]]:
    """Return for each replica the gradient of those terms of the loss that each part of a batch counts in full.

    Parts ``p`` of equal size give ``sum(T(p)) = parts * T(all)`` for a mean ``T``, and the sum of all other terms is
    the same. So the excess of their gradients over the replica's is ``parts - 1`` times that of ``T``.
    """
    if not tells(case, source):
        return []
    if len(case.pieces) != case.replicas:
        return _terms_beside_divided(case, source)
    terms = []
    for part, replica in zip(source.parts, sorted(case.pieces), strict=True):
        runs = case.pieces[replica]
        pieces = [gradients.by_replica(run, case.step, source.stage).get(0, {}) for run in runs]
        if len(pieces) < 2 or not all(set(part) <= set(piece) for piece in pieces):
            return []
        terms.append({i: (np.sum([piece[i] for piece in pieces], axis=0) - part[i]) / (len(pieces) - 1) for i in part})
    return terms


def _terms_beside_divided(case: Case, source: Source) -> list[dict[int, Float]]:
    """Return the terms ``T`` of :func:`terms_of` beside other means ``D``, which the program divides by N.

    N is the number of replicas. A device that reads N has ``T + D / N`` in the excess of its parts. A device that reads
    1 has ``D - D / N`` more in its gradient of the replica's examples, which is ``N - 1`` times the surplus. A term
    that is divided twice looks the same to both. A device that reads 2N decides: ``D / 2N`` less is divided once.
    """
    if not _is_told(case):
        return []
    close, terms = case.close(4 * case.replicas), []
    for replica, part in enumerate(source.parts):
        runs = (*case.told[replica], case.slices[replica])
        whole, *pieces, alone = (gradients.by_replica(run, case.step, source.stage).get(0, {}) for run in runs)
        if len(pieces) < 2 or not all(set(part) <= set(run) for run in (whole, *pieces, alone)):
            return []
        if not all(close(index, whole[index], value) for index, value in part.items()):
            return []
        terms.append(
            {
                index: (np.sum([piece[index] for piece in pieces], axis=0) - value) / (len(pieces) - 1)
                - (alone[index] - value) / (case.replicas - 1)
                for index, value in part.items()
            }
        )
        twice = gradients.by_replica(case.told_twice[replica], case.step, source.stage).get(0, {})
        less = {index: (alone[index] - value) / (2 * (case.replicas - 1)) for index, value in part.items()}
        if not all(index in twice and close(index, twice[index], v - less[index]) for index, v in part.items()):
            return []
    return terms


def are_alike(case: Case, terms: list[dict[int, Float]]) -> bool:
    close = case.close(4 * case.replicas)
    return all(close(index, terms[0][index], term[index]) for term in terms[1:] for index in term)


def divided_too_often(case: Case) -> Fit | None:
    """Test for a mean over the examples that the program divides by the number of replicas too often.

    A device that reads ``n`` replicas has the gradient ``A + D / n + T / n ** q`` of a replica's examples: ``A`` is
    divided by the size of the global batch, ``D`` once by the number of replicas, and ``T`` more often. The runs that
    read 1, N and 2N give ``T`` for each replica, whose mean over the replicas counts ``N ** (1 - q)`` in the update.
    """
    source, number = case.computed, case.replicas
    if source is None or not tells(case, source) or not _is_told(case):
        return None
    close = case.close(16 * number)
    summed = combined(source, [1.0] * number)
    for power in (2, 3):
        terms = _terms_divided(case, source, power)
        shared = set.intersection(*map(set, terms)) if terms else set()
        if not shared or not set(source.own) <= shared or are_alike(case, terms):
            continue
        lacking = {i: np.mean([term[i] for term in terms], axis=0) * (1 - number ** (1 - power)) for i in source.own}
        if all(close(i, own - summed[i], lacking[i]) for i, own in source.own.items()) and any(
            not close(i, value, np.zeros_like(value)) for i, value in lacking.items()
        ):
            return Fit(
                INVERSE,
                "one device that trains on only a replica's examples shows a term of the loss that becomes smaller "
                f"with the number of replicas that it reads: it is {number ** (power - 1)} times too small",
                fix=SPECIAL["divided-term"],
            )
    return None


def _is_told(case: Case) -> bool:
    """Return whether devices that read 1, N and 2N replicas trained on the examples of each replica."""
    return all(sorted(runs) == list(range(case.replicas)) for runs in (case.told, case.told_twice, case.slices))


def _terms_divided(case: Case, source: Source, power: int) -> list[dict[int, Float]]:
    """Return ``T`` of :func:`divided_too_often` for each replica. It is empty if a replica computed something else."""
    number, close, terms = case.replicas, case.close(4 * case.replicas), []
    # The first difference is of the devices that read 1 and N, the second of those that read N and 2N.
    first, second = (1 - 1 / number, 1 - number**-power), (1 / (2 * number), number**-power - (2 * number) ** -power)
    for replica, part in enumerate(source.parts):
        runs = (case.slices[replica], case.told[replica][0], case.told_twice[replica])
        one, told, twice = (gradients.by_replica(run, case.step, source.stage).get(0, {}) for run in runs)
        if not all(set(part) <= set(run) for run in (one, told, twice)):
            return []
        if not all(close(index, told[index], value) for index, value in part.items()):
            return []
        terms.append(
            {
                i: ((one[i] - told[i]) * second[0] - (told[i] - twice[i]) * first[0])
                / (first[1] * second[0] - second[1] * first[0])
                for i in part
            }
        )
    return terms
