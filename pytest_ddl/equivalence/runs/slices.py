"""Select parts of a global batch to train on separately, so that a supposed cause can be recomputed."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from pytest_ddl.equivalence.checks.loss import CHECK as LOSS_EQ
from pytest_ddl.equivalence.checks.metric import CHECK as METRIC_EQ
from pytest_ddl.equivalence.checks.optimizer_state import CHECK as OPT_STATE
from pytest_ddl.equivalence.checks.step_equality import CHECK as STEP_EQ
from pytest_ddl.equivalence.diagnosis.candidates.case import Case, Source
from pytest_ddl.equivalence.diagnosis.candidates.shared import (
    adds_up,
    computed_alone,
    factors_alone,
    is_one,
    plain_normalization,
    random_sources,
)
from pytest_ddl.equivalence.diagnosis.unequal_parts import MEAN
from pytest_ddl.equivalence.evidence.arrays import difference
from pytest_ddl.equivalence.evidence.comparison import Comparison
from pytest_ddl.equivalence.evidence.observe import is_uneven, shared_steps
from pytest_ddl.equivalence.evidence.slices import Pairing
from pytest_ddl.equivalence.findings import Finding, Reason
from pytest_ddl.equivalence.roles import Role, Roles
from pytest_ddl.equivalence.verdict.judge import is_open
from pytest_ddl.equivalence.verdict.report import Report
from pytest_ddl.records import BatchRecord, TrainingRecord, VariableKind

_MOST_COPIES = 4096
"""Maximum number of examples of a batch that is made of copies."""
_MOST_TERMS = 2
"""Maximum number of examples whose gradients show how large the terms of a sum are."""
_ORDERS = 3
"""Number of runs on batches in another order."""
_MOST_EXAMPLES = 16
"""Maximum number of examples to train on one by one. Each is a run of its own."""


def sharing_replicas(report: Report) -> int:
    """Return how many replicas may share the state of metrics whose numbers differ, or 0 if nothing shows this."""
    record = report.distributed
    if record.strategy.partition("[")[0] != "central_storage" or record.num_replicas < 2:
        return 0
    return record.num_replicas if any(one.check in (LOSS_EQ, METRIC_EQ) for one in report.findings) else 0


def slices_to_recompute(report: Report) -> list[tuple[int, Mapping[int, tuple[int, ...]]]]:
    """Return at most one ``(step, {replica: rows})``: the first step whose difference was not recomputed.

    ``rows`` are positions in the global batch of the reference. The list is empty if every cause is exact, if the
    examples of the replicas were not observed, or if a replica consumed none.
    """
    reference, distributed = report.reference, report.distributed
    findings = (*report.findings, *report.excused)
    open_steps = [f.step for f in findings if f.step and (_is_guessed(f, report.roles) or is_open(f, report))]
    if not open_steps:
        return []
    step = min(open_steps)
    rows = _rows_by_replica(reference, distributed, step)
    return [(step, rows)] if rows and all(rows.values()) else []


def terms_to_measure(report: Report) -> list[tuple[int, tuple[int, ...]]]:
    """Return at most one ``(step, rows)``: the first step with a slot beyond its measured bound, and some examples.

    Rounding of a gradient grows with its terms, one for each example. If they cancel, neither the slot nor a run that
    is moved by one ulp shows how large they are. A run on one example does.
    """
    reference, distributed = report.reference, report.distributed
    steps = [f.step for f in _found(report, OPT_STATE) if f.step and not f.a_priori]
    if not steps:
        return []
    rows = _rows_by_replica(reference, distributed, min(steps)) or {}
    return [(min(steps), tuple(own[0] for own in rows.values() if own)[:_MOST_TERMS])] if rows else []


def orders_to_measure(report: Report, step: int) -> list[tuple[tuple[int, tuple[int, ...]], ...]]:
    """Return for some runs ``(step, rows)`` of each step, with its examples in another order.

    That is so if the weights of a step differ although all slots agree within the rounding of their terms. The
    optimizer then divides by a gradient that is little more than rounding.
    """
    reference, slots = report.reference, [f.step for f in _found(report, OPT_STATE) if f.step]
    if step not in [f.step for f in _found(report, STEP_EQ)] or min([*slots, step + 1]) <= step:
        return []
    batches = [reference.batches(at) for at in range(1, reference.num_steps + 1)]
    if any(len(found) != 1 for found in batches):
        return []
    return [
        tuple(
            (at, tuple(map(int, np.random.default_rng((order, at)).permutation(batch.size))))
            for at, (batch,) in enumerate(batches, 1)
        )
        for order in range(_ORDERS)
    ]


def is_rounding(report: Report, step: int, run: TrainingRecord) -> bool:
    """Return whether a run on batches in another order differs only by rounding until the optimizer divides.

    It does not if its random numbers, or a loss of neighbouring examples, depend on the order.
    """
    reference, tolerance = report.reference, report.tolerance
    if tolerance is None or run.num_steps < reference.num_steps or run.errors:
        return False
    places = [
        (v, at) for v in reference.variables for at in range(step + 1) if at < step or v.kind is VariableKind.SLOT
    ]
    pairs = [(v.index, at, run.value(v.index, at), reference.value(v.index, at)) for v, at in places]
    return all(
        actual is None or desired is None or difference(actual, desired).error <= tolerance.variable(index, at).value
        for index, at, actual, desired in pairs
    )


def _found(report: Report, check: str) -> list[Finding]:
    """Return all findings of a check, also those that another finding explains."""
    return [f for result in report.results if result.check == check for f in result.findings]


def uneven_parts(report: Report) -> dict[int, tuple[tuple[int, tuple[int, ...]], ...]]:
    """Return for each replica ``(step, rows)`` of its examples in each uneven step, if a state differs in one of them.

    The state may be a mean of the replicas' values. Only runs on their examples show whether it is.
    """
    reference, distributed = report.reference, report.distributed
    found = [f for result in report.results if report.roles.have(result, Role.STATE) for f in result.findings]
    if not any(f.step and _is_guessed(f, report.roles) and is_uneven(distributed, f.step) for f in found):
        return {}
    steps = [step for step in range(1, shared_steps(reference, distributed) + 1) if is_uneven(distributed, step)]
    rows = {step: _rows_by_replica(reference, distributed, step) or {} for step in steps}
    whole = [step for step in steps if len(rows[step]) == distributed.num_replicas and all(rows[step].values())]
    return {
        replica: tuple((step, rows[step][replica]) for step in whole)
        for replica in range(distributed.num_replicas if whole else 0)
    }


def equal_parts(report: Report) -> tuple[tuple[int, tuple[int, ...]], ...]:
    """Return ``(step, rows)`` of each uneven step in which replicas may count equally.

    The list is empty if nothing needs it: the cause is recomputed, and the program keeps no value of such a step.

    The rows hold each example as often as it takes for the parts of all replicas to be equally long. One device then
    trains on the mean of their means, whatever its optimizer does with the gradient.
    """
    reference, distributed = report.reference, report.distributed
    found = [finding for result in report.results for finding in result.findings if finding.cause == MEAN]
    kept = any(item.reason is Reason.KEPT for result in report.results for item in result.unjudged)
    if all(finding.exact for finding in found) and not kept:
        return ()
    steps = [step for step in range(1, shared_steps(reference, distributed) + 1) if is_uneven(distributed, step)]
    slices = []
    for step in steps:
        parts = (_rows_by_replica(reference, distributed, step) or {}).values()
        length = math.lcm(*map(len, parts)) if parts and all(parts) else 0
        if 0 < length * len(parts) <= _MOST_COPIES:
            slices.append((step, tuple(row for rows in parts for row in rows * (length // len(rows)))))
    return tuple(slices)


def examples_to_recompute(
    report: Report, step: int, rows: Mapping[int, tuple[int, ...]]
) -> Mapping[int, tuple[int, ...]]:
    """Return the replicas whose examples should be trained on one by one, with their positions in the global batch.

    That is a replica whose gradient is not the one of its examples, although its random numbers and its statistics are
    those of one device. Of several such replicas, it is the one with the fewest examples. If all replicas have the
    gradients of their examples, and these do not add up to that of one device, then it is all replicas: each may leave
    out examples because of the size of its batch.
    """
    case, source = _open_case(report, step)
    if case is None or source is None:
        return {}
    alone = computed_alone(case, source)
    wrong = [replica for replica, right in alone.items() if not right]
    if alone and not wrong and sum(map(len, rows.values())) <= _MOST_EXAMPLES and not adds_up(case, source):
        return rows
    chosen = sorted(
        (replica for replica in wrong if 1 < len(rows[replica]) <= _MOST_EXAMPLES), key=lambda r: len(rows[r])
    )
    return {replica: rows[replica] for replica in chosen[:1]}


def pairings_to_recompute(report: Report, step: int, rows: Mapping[int, tuple[int, ...]]) -> list[Pairing]:
    """Return the orders of single tensors in which the examples of a replica should be trained on.

    That is so for the first replica whose gradient is not the one of its examples: its inputs may have the labels of
    other examples. Only the order of a tensor relative to the first one matters.
    """
    case, source = _open_case(report, step)
    if case is None or source is None:
        return []
    wrong = [replica for replica, right in computed_alone(case, source).items() if not right]
    batches = _batches(case.reference, step)
    pairings: dict[tuple[int, tuple[int, ...]], Pairing] = {}
    for replica in wrong[:1]:
        own = rows[replica]
        orders = {
            "reversed": own[::-1],
            "moved by one row": own[1:] + own[:1],
            "moved back by one row": own[-1:] + own[:-1],
        }
        for tensor in range(1, len(batches[0].columns)):
            for order, moved in orders.items():
                pairings.setdefault((tensor, moved), Pairing(replica, tensor, order, moved))
    return [pairing for pairing in pairings.values() if pairing.rows != rows[pairing.replica]][:_MOST_EXAMPLES]


def parts_to_recompute(
    report: Report, step: int, rows: Mapping[int, tuple[int, ...]]
) -> Mapping[int, tuple[tuple[int, ...], ...]]:
    """Return equal parts of each replica's examples, by positions in the global batch, if they should be trained on.

    That is so if every replica computes the gradient of its examples, perhaps divided by the number of replicas, and
    these gradients do not add up to that of one device: a term of the loss may be a mean over the replica's examples,
    or a sum beside such means. All replicas must have equally many.
    """
    case, source = _open_case(report, step)
    if case is None or source is None or adds_up(case, source):
        return {}
    factors = [factor or 0.0 for factor in factors_alone(case, source)]
    shares = (1, case.replicas)
    return _in_parts(rows) if any(all(is_one(share * factor) for factor in factors) for share in shares) else {}


def told_to_recompute(
    report: Report, step: int, rows: Mapping[int, tuple[int, ...]]
) -> Mapping[int, tuple[tuple[int, ...], ...]]:
    """Return each replica's examples and equal parts of them, if a device that reads N replicas should train on them.

    That is so if no replica computes a multiple of the gradient of its examples: terms of the loss may be divided by
    the number of replicas. Only the first step begins with weights that no step changed by this number before.
    """
    case, source = _open_case(report, step) if step == 1 else (None, None)
    alone = computed_alone(case, source) if case is not None and source is not None else {}
    if not alone or any(alone.values()):
        return {}
    return {replica: (rows[replica], *parts) for replica, parts in _in_parts(rows).items()}


def smaller_batch(report: Report, step: int, rows: Mapping[int, tuple[int, ...]]) -> int:
    """Return the size of a global batch that is the first replica's part of the usual one, if one device should train.

    That shows whether a coupled loss is divided by the size of the global batch. The result is 0 if it need not be
    shown, or if the first examples are not those of the first replica.
    """
    case, source = _open_case(report, step) if step == 1 else (None, None)
    own = rows.get(0, ())
    if case is None or source is None or own != tuple(range(len(own))) or adds_up(case, source):
        return 0
    return len(own) if all(factor and is_one(factor * case.replicas) for factor in factors_alone(case, source)) else 0


def _in_parts(rows: Mapping[int, tuple[int, ...]]) -> Mapping[int, tuple[tuple[int, ...], ...]]:
    """Return equal parts of each replica's examples; empty if the replicas have different numbers, or too many."""
    counts = {len(own) for own in rows.values()}
    count = min(counts)
    number = next((number for number in range(2, count + 1) if count % number == 0), None)
    if len(counts) != 1 or number is None or number * len(rows) > _MOST_EXAMPLES:
        return {}
    size = count // number
    return {
        replica: tuple(own[first : first + size] for first in range(0, count, size)) for replica, own in rows.items()
    }


def _open_case(report: Report, step: int) -> tuple[Case, Source | None] | tuple[None, None]:
    """Return the case of a step without a recomputed cause, with the gradients that the replicas computed.

    Nothing is returned if random numbers or statistics change gradients.

    A coupled loss counts as no cause yet: only runs on other parts distinguish it from a mean or a cut of each part.
    """
    open_steps = [
        finding.step
        for finding in (*report.findings, *report.excused)
        if _is_guessed(finding, report.roles) or finding.cause == "batch-coupled-loss"
    ]
    if step not in open_steps or report.tolerance is None:
        return None, None
    case = Case.at(Comparison(report.reference, report.distributed, report.tolerance), step)
    return (None, None) if random_sources(case) or plain_normalization(case) else (case, case.computed)


def _is_guessed(finding: Finding, roles: Roles) -> bool:
    open_still = (finding.cause is None and not finding.follows) or not finding.exact
    return roles.have(finding, Role.WEIGHTS | Role.STATE) and open_still


def _rows_by_replica(
    reference: TrainingRecord, distributed: TrainingRecord, step: int
) -> dict[int, tuple[int, ...]] | None:
    """Return the rows of the reference's batch that each replica consumed, by the examples' contents or ids."""
    ours, theirs = _batches(reference, step), _batches(distributed, step)
    if len(ours) != 1 or len(theirs) != distributed.num_replicas or distributed.num_replicas < 2:
        return None
    places: dict[int | str, list[int]] = {}
    for row, example in enumerate(ours[0].examples):
        places.setdefault(example, []).append(row)
    rows: dict[int, tuple[int, ...]] = {}
    for batch in theirs:
        found = [places[example].pop(0) for example in batch.examples if places.get(example)]
        if len(found) != batch.size:
            return None
        rows[batch.replica] = tuple(sorted(found))
    return rows


def _batches(record: TrainingRecord, step: int) -> tuple[BatchRecord, ...]:
    return record.batches(step) if step <= record.num_steps else ()
