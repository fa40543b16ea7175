"""Choose few cases so that each pair of values of any two dimensions occurs in one of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import combinations, product

Case = dict[str, str]


def pairwise(
    dimensions: Mapping[str, Sequence[str]], allowed: Callable[[Case], bool] = lambda _case: True
) -> list[Case]:
    """Return cases with a value for each dimension that cover all allowed pairs. The choice is the same in each run.

    The greedy method of AETG (Cohen et al., 1997) without its random candidates: each case begins with the first open
    pair, and takes for each further dimension the value that covers most open pairs.

    :param allowed: says of a case, perhaps with some dimensions only, whether its values go together.
    """
    names = list(dimensions)
    open_pairs = {
        frozenset({(one, value), (other, its)})
        for one, other in combinations(names, 2)
        for value, its in product(dimensions[one], dimensions[other])
        if allowed({one: value, other: its})
    }
    order = sorted(open_pairs, key=lambda pair: sorted(pair))
    cases = []
    while open_pairs:
        first = next(pair for pair in order if pair in open_pairs)
        case = _completed(dict(sorted(first)), dimensions, open_pairs, allowed)
        open_pairs.discard(first)  # also if no whole case may have it
        if case is not None:
            open_pairs -= _pairs(case)
            cases.append({name: case[name] for name in names})
    return cases


def _completed(
    case: Case,
    dimensions: Mapping[str, Sequence[str]],
    open_pairs: set[frozenset[tuple[str, str]]],
    allowed: Callable[[Case], bool],
) -> Case | None:
    """Return the case with a value for each dimension, or ``None`` if no value of a dimension goes with the others."""
    for name in dimensions:
        if name in case:
            continue
        candidates = [case | {name: value} for value in dimensions[name] if allowed(case | {name: value})]
        if not candidates:
            return None
        case = max(candidates, key=lambda candidate: len(_pairs(candidate) & open_pairs))
    return case


def _pairs(case: Case) -> set[frozenset[tuple[str, str]]]:
    return {frozenset(pair) for pair in combinations(case.items(), 2)}
