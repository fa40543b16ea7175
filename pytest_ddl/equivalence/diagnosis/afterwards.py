"""Compare the final values of variables that a program changes after its last step with those of one device."""

from __future__ import annotations

from collections.abc import Sequence

from pytest_ddl.equivalence.causes import fix_of
from pytest_ddl.equivalence.evidence.arrays import difference, magnitude
from pytest_ddl.equivalence.evidence.comparison import Comparison
from pytest_ddl.equivalence.evidence.observe import of_kind, read_locally
from pytest_ddl.equivalence.findings import CheckResult, Finding
from pytest_ddl.equivalence.outcomes import failed, inconclusive
from pytest_ddl.hints import Hint
from pytest_ddl.records import VariableKind

CAUSE = "changed-after-last-step"
_VALUES = (VariableKind.TRAINABLE, VariableKind.FROZEN, VariableKind.STATE, VariableKind.SLOT)
"""Kinds of variables from which a program may compute its final weights.

Counters are left out, because almost every step that is cut off has increased them.
"""


def changed_afterwards(check: str, comparison: Comparison, kinds: Sequence[VariableKind]) -> CheckResult | None:
    """Compare the variables that either program changed after its loop; ``None`` if they are equal.

    A step that finds the end of its data may have run in part, and differently in each run. The check decides nothing
    about values that the program computes from such a step.
    """
    found = _first_difference(check, comparison, kinds)
    if found is None:
        tasks = [rank.task for rank in comparison.distributed.ranks if rank.final is None]
        ended = all(rank.final is not None for rank in comparison.reference.ranks)
        if tasks and ended and not comparison.distributed.errors:
            return inconclusive(check, f"the values at the end of the program were not recorded on {', '.join(tasks)}")
        return None
    partly = {index for rank in (*comparison.reference.ranks, *comparison.distributed.ranks) for index in rank.cut_off}
    names = [v.name for v in of_kind(comparison.reference, *_VALUES) if v.index in partly and not read_locally(v)]
    if not names:
        return failed(check, [found])
    return inconclusive(
        check,
        f"{found.variable} differs from one device when the program ends, and the step in which the data ended had "
        f"changed {', '.join(names[:3])} in part; give the dataset its length "
        f"(tf.data.experimental.assert_cardinality), or pass {Hint.STEPS}",
    )


def _first_difference(check: str, comparison: Comparison, kinds: Sequence[VariableKind]) -> Finding | None:
    reference, distributed = comparison.records
    steps = comparison.steps
    finals = [rank.final for rank in (*reference.ranks, *distributed.ranks)]
    known = [final for final in finals if final is not None]
    for variable in of_kind(reference, *kinds) if len(known) == len(finals) else ():
        last = reference.value(variable.index, steps)
        changed = any(variable.index in final for final in known)
        if last is None or not changed or read_locally(variable):
            continue
        ours = known[0].get(variable.index, (last,))[0]
        # Use the bound of the last step, scaled up because the program may have multiplied the values since.
        grown = max(1.0, magnitude(ours) / magnitude(last)) if magnitude(last) else 1.0
        bound = comparison.tolerance.variable(variable.index, steps)
        for rank in distributed.ranks:
            after = (rank.final or {}).get(variable.index, rank.steps[steps - 1].snapshot.get(variable.index, ()))
            for value in after:
                error = difference(value, ours).error
                if error > grown * bound.value:
                    return Finding(
                        check=check,
                        message=f"{variable.name} differs from one device when the program ends, but did not after "
                        f"step {steps}: it was changed after the last recorded step",
                        cause=CAUSE,
                        step=steps,
                        variable=variable.name,
                        worker=rank.rank,
                        error=error,
                        tolerance=grown * bound.value,
                        fix=fix_of(CAUSE),
                        origin=bound.origin,
                        a_priori=bound.a_priori,
                    )
    return None
