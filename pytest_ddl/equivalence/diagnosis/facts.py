"""Facts about a step whose cause is not known, and the places of the program that they point to."""

from __future__ import annotations

from collections.abc import Iterator

from pytest_ddl.equivalence.diagnosis.candidates.case import Case
from pytest_ddl.equivalence.diagnosis.candidates.shared import (
    adds_up,
    assigned_by_the_program,
    odd_replicas,
    total_of,
)
from pytest_ddl.equivalence.evidence.observe import unwatched
from pytest_ddl.records import GradientStage

_MOST = 3
"""Maximum number of places to look at. A longer list helps nobody."""


def facts_of(case: Case) -> Iterator[str]:
    """Yield which values of the step are right and which are not, in the order in which a step computes them."""
    same = case.same_examples
    if same is not None:
        yield f"the replicas consumed {'the' if same else 'other'} examples {'of' if same else 'than'} one device"
    assigned = assigned_by_the_program(case)
    if assigned:
        yield f"no gradient was computed for {', '.join(assigned[:_MOST])}, neither here nor on one device"
    odd = odd_replicas(case)
    if odd:
        replicas = ", ".join(map(str, odd))
        yield f"only replica {replicas} computes another gradient than one device does for the same examples"
    for source in case.sources:
        yield f"the {source} the replicas {'add' if adds_up(case, source) else 'do not add'} up to those of one device"
    if case.pulls:
        right = sum(motion.is_right for motion in case.pulls)
        yield f"the gradient computed back from the update is right for {right} of {len(case.pulls)} weights"
    for motions, what in ((case.slots, "slots of the optimizer"), (case.state, "state")):
        wrong = [motion.variable.name for motion in motions if not motion.is_right]
        if wrong:
            yield f"{what} that also differ: {', '.join(wrong[:_MOST])}"


def tape_of(case: Case) -> dict[int, bool]:
    """Map weights to whether the gradients that the replicas computed add up to that of one device.

    A weight is left out if their mean is that of one device: the program may add them up or average them later.
    """
    source = case.computed
    if source is None:
        return {}
    summed, close = total_of(source), case.close(case.replicas)
    return {
        index: right
        for index, own in source.own.items()
        if (right := index in summed and close(index, summed[index], own))
        or not (index in summed and close(index, summed[index] / case.replicas, own))
    }


def places_of(case: Case) -> tuple[str, ...]:
    """Return the two or three likeliest places of the defect."""
    return tuple(dict.fromkeys(_places(case)))[:_MOST]


def _places(case: Case) -> Iterator[str]:
    sources = {source.stage: adds_up(case, source) for source in case.sources}
    computed, applied = (sources.get(stage) for stage in (GradientStage.COMPUTED, GradientStage.APPLIED))
    left_out = unwatched(case.reference, case.distributed)
    if left_out is not None:
        yield left_out
    assigned = assigned_by_the_program(case)
    if assigned:
        yield f"the condition under which the program assigns {', '.join(assigned[:_MOST])}, and the assigned value"
        return
    odd = odd_replicas(case)
    if odd:
        yield f"code of the replica function that treats replica {', '.join(map(str, odd))} in another way"
    if case.same_examples is False:
        yield "the input pipeline, which gave the replicas other examples or values than one device"
    if computed is False:
        if not odd:
            yield "terms of the loss that are means over the replica's own examples, or are divided by its own counts"
        yield "terms of the loss that use other examples of the batch: sorting, pairs, batch statistics, gathers"
        yield "assignments to variables before the forward pass, in the function that strategy.run calls"
        yield "what the forward pass reads of the number or the id of the replica"
    elif applied is False:
        yield "the lines between tape.gradient and apply_gradients: clipping, scaling, masking, reductions by hand"
    elif computed or applied:
        yield "the optimizer: its learning rate and its slots, and whether they were restored"
    wrong = [motion.variable.name for motion in (*case.state, *case.slots) if not motion.is_right]
    if wrong:
        yield f"the code that writes {', '.join(wrong[:_MOST])}, which also differ"
    if computed is not False:
        yield "assignments to the weights after the update, and the learning rate, which may depend on a counter"
    if not sources:
        yield "the loss and its scale (gradients were not recorded, so that no cause was recomputed from them)"
