"""Candidates for damaged values: not finite, out of a format's range, or mixed rows of sparse gradients."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from pytest_ddl.equivalence.diagnosis.candidates.case import Case, Fit, Motion
from pytest_ddl.equivalence.diagnosis.candidates.shared import total_of
from pytest_ddl.equivalence.evidence.arrays import Float, all_finite, difference, magnitude
from pytest_ddl.equivalence.evidence.gradients import sparse_variables
from pytest_ddl.equivalence.findings import Grounds

_HALF_MAX = float(np.finfo(np.float16).max)


def overflow(case: Case) -> Fit | None:
    """Test for a sum over replicas that is not finite although all addends are: it left the range of its format."""
    reductions = [r for rank in case.distributed.ranks for r in rank.steps[case.step - 1].reductions]
    for reduction in reductions:
        given = [r.given for r in reductions if r.position == reduction.position]
        if all(map(all_finite, given)) and not all_finite(reduction.received):
            return Fit(
                "reduction-overflow",
                f"all-reduce {reduction.position} ({reduction.op}, {reduction.dtype}) of finite values gave a value "
                "that is not finite",
            )
    broken = [m for m in case.weights if all_finite(m.ours) and not all(map(all_finite, m.theirs))]
    for source in case.sources if broken else ():
        if not all(all_finite(value) for part in source.parts for value in part.values()):
            continue
        summed = total_of(source)
        for motion in broken:
            value = summed.get(motion.variable.index)
            if value is not None and magnitude(value) > _HALF_MAX:
                return Fit(
                    "reduction-overflow",
                    f"the {source} the replicas are finite and their sum for {motion.variable.name} reaches "
                    f"{magnitude(value):.4g}, beyond float16's {_HALF_MAX:.0f}",
                )
    return None


def not_finite(case: Case) -> Fit | None:
    """Test for values that are finite only on one device, for example after an empty replica divided 0 by 0."""
    broken = [m for m in case.weights if all_finite(m.ours) and not all(map(all_finite, m.theirs))]
    if not broken:
        return None
    name = broken[0].variable.name
    for source in case.sources:
        bad = [r for r, part in enumerate(source.parts) if not all(map(all_finite, part.values()))]
        if bad and len(case.sizes) == case.replicas and all(case.sizes[replica] == 0 for replica in bad):
            evidence = f"the {source} replica {bad[0]}, which had no example, are not finite: sizes {case.sizes}"
            return Fit("empty-replica", evidence)
    if 0 in case.sizes:
        evidence = f"{name} is not finite, and a replica had no example: sizes {case.sizes}"
        return Fit("empty-replica", evidence, grounds=Grounds.PATTERN)
    if not all(all(map(all_finite, m.theirs)) == all_finite(m.theirs[0]) for m in broken):
        evidence = f"{name} is not finite on some replicas only"
        return Fit("non-finite-not-synchronised", evidence, grounds=Grounds.PATTERN)
    return None


def sparse_rows(case: Case) -> Fit | None:
    """Test for mixed rows of a sparse gradient.

    The values of ``tf.IndexedSlices`` were summed without their indices, so that only the columns add up. Or the rows
    of one replica replaced those of the others.
    """
    if case.replicas == 1 or not case.pulls:
        return None
    sparse = sparse_variables(case.distributed, case.step) | sparse_variables(case.reference, case.step)
    off = [m for m in case.pulls if not m.is_right]
    if not off or not all(m.variable.index in sparse and m.ours.ndim >= 1 for m in off):
        return None
    source = case.computed
    if source is None:
        return None
    names = ", ".join(m.variable.name for m in off[:3])
    if all(_one_of_several(motion, source.parts) for motion in off):
        return Fit(
            "sparse-gradient-mismatch",
            f"the gradient of {names} is sparse: for a row that several replicas have, the update contains the row of "
            "only one of them, not their sum",
        )
    if not all(_rows_mixed(case, motion, source.parts) for motion in off):
        return None
    return Fit(
        "sparse-gradient-mismatch",
        f"the gradient of {names} is sparse: summed over all rows, the update equals the replicas' gradients, "
        "but its single rows do not",
    )


def _one_of_several(motion: Motion, parts: list[dict[int, Float]]) -> bool:
    """Return whether each row is right, or that of one of several replicas that have it: the last one written."""
    given = [part[motion.variable.index] for part in parts if motion.variable.index in part]
    if len(given) != len(parts) or not all(map(all_finite, motion.theirs)):
        return False

    def rows(value: Float) -> Float:
        return np.reshape(value, (value.shape[0], -1))

    def equal(left: Float, right: Float) -> NDArray[np.bool_]:
        close: NDArray[np.bool_] = np.all(np.abs(rows(left) - rows(right)) <= motion.slack, axis=1)
        return close

    touched = np.stack([np.any(rows(part) != 0, axis=1) for part in given])
    several = touched.sum(axis=0) > 1
    for theirs in motion.theirs:
        right = equal(theirs, motion.ours)
        one = np.any([equal(theirs, part) & own for part, own in zip(given, touched, strict=True)], axis=0)
        if not np.all(right | (one & several)) or not np.any(~right):
            return False
    return True


def _rows_mixed(case: Case, motion: Motion, parts: list[dict[int, Float]]) -> bool:
    given = [part[motion.variable.index] for part in parts if motion.variable.index in part]
    if len(given) != case.replicas:
        return False
    rows = motion.ours.shape[0]
    summed = np.sum(given, axis=0)
    touched = np.any(np.reshape(np.stack(given), (len(given), rows, -1)) != 0, axis=(0, 2))
    for theirs in motion.theirs:
        if not all_finite(theirs):
            return False
        outside = np.reshape(theirs, (rows, -1))[~touched]
        if magnitude(outside) > motion.slack:
            return False
        scales = (1.0, 1.0 / case.replicas, float(case.replicas))
        slack = {scale: motion.slack * max(1.0, scale * case.replicas) for scale in scales}
        fitting = [
            scale
            for scale, allowed in slack.items()
            if difference(theirs.sum(axis=0), scale * summed.sum(axis=0)).error <= allowed * rows
        ]
        # If each row is that of the sum, the gradients themselves are wrong.
        if not fitting or any(difference(theirs, scale * summed).error <= slack[scale] for scale in fitting):
            return False
    return True
