"""Find out which example each random number belongs to, so that replicas draw the numbers of one device."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace

from pytest_ddl.equivalence.evidence.observe import executions
from pytest_ddl.records import BatchRecord, DrawRecord, TrainingRecord
from pytest_ddl.training.places import Block, Placement, Places, Rows, Shared, Spans, Unplaced
from pytest_ddl.training.replaced_draws import SHUFFLES

Shape = tuple[int, ...]
UNKNOWN = -1
"""Length of a dimension that is only known when the graph runs. It is then that of the batch."""


def places_of(reference: TrainingRecord, distributed: TrainingRecord) -> Places:
    """Return the places of the examples in the runs, and to which examples the draws of an operation belong."""
    blocks: dict[int, tuple[Block, ...]] = {}
    calls: dict[int, tuple[int, ...]] = {}
    for step in range(1, min(reference.num_steps, distributed.num_steps) + 1):
        ours = _calls(reference.batches(step))
        theirs = _calls(distributed.batches(step))
        placed = _placed([batch for call in ours for batch in call], theirs)
        if placed is not None:
            blocks[step] = placed
            calls[step] = tuple(batch.size for call in ours for batch in call)
    draws = _placements(reference, distributed)
    return Places(distributed.global_batch_size, blocks, calls, draws)


def unplaced(places: Places, *records: TrainingRecord) -> list[str]:
    """Describe the draws whose numbers belong to examples, but it is not known to which.

    All numbers of such a draw are the same. What depends on how they differ is then not compared.
    """
    names: dict[str, None] = {}
    for record in records:
        for number, step, draw in _draws(record):
            placement = places.draws.get(draw.position)
            # Rows change places only if each belongs to one example of the whole batch.
            kept = draw.op in SHUFFLES and placement not in (Rows(0), Rows(0, looped=True), Shared())
            if placement is None or (draw.size > 1 and (kept or isinstance(placement, Unplaced))):
                names.setdefault(f"{draw.op} {draw.shape}")
            if isinstance(placement, Rows):
                own = _size(record, step, number) * placement.each
                drawn = executions(draw) if placement.looped else draw.shape[placement.axis] * placement.parts
                if drawn != own or step not in places.blocks:
                    names.setdefault(f"{draw.op} {draw.shape} in step {step}")
    return list(names)


def moved(places: Places, reference: TrainingRecord, distributed: TrainingRecord) -> Places | None:
    """Return the right places if draws have other lengths than in the runs that the places come from, else ``None``.

    Lengths may follow from other draws, for example from a random mask.
    """
    again = places_of(reference, distributed)
    numbers = {*places.spans(), *again.spans()}
    wrong = any(again.draws.get(number) != places.draws.get(number) for number in numbers)
    return replace(places, draws={**places.draws, **again.draws}) if wrong else None


def unlike_loops(places: Places, reference: TrainingRecord, distributed: TrainingRecord) -> list[str]:
    """Describe the draws in a loop of another length than on one device, if it is not known to which examples they
    belong.

    Each execution draws a number of its own, so one device and the replicas cannot draw the same.
    """
    ours, theirs = (
        [(step, draw) for _r, step, draw in _draws(record) if _is_unplaced(places, draw)]
        for record in (reference, distributed)
    )
    # An eager loop has an operation for each execution.
    unlike = {d.position for _step, d in ours} ^ {d.position for _step, d in theirs}
    times = {(step, draw.position): executions(draw) for step, draw in ours}
    unlike |= {d.position for step, d in theirs if times.get((step, d.position), executions(d)) != executions(d)}
    return list(dict.fromkeys(f"{d.op} {d.shape}" for _step, d in (*ours, *theirs) if d.position in unlike))


def _is_unplaced(places: Places, draw: DrawRecord) -> bool:
    return isinstance(places.draws.get(draw.position, Unplaced()), Unplaced)


def same_examples(first: TrainingRecord, second: TrainingRecord) -> bool:
    """Return whether two runs of a program consumed the same examples in the same order."""
    steps = range(1, min(first.num_steps, second.num_steps) + 1)
    return all(_contents(first, step) == _contents(second, step) for step in steps)


def _contents(record: TrainingRecord, step: int) -> list[tuple[int, int, object]]:
    return [(b.replica, b.size, b.fingerprints or b.example_ids) for b in record.batches(step)]


def _draws(record: TrainingRecord) -> Iterator[tuple[int, int, DrawRecord]]:
    """Yield replica, step and draw of all draws of a run."""
    for rank in record.ranks:
        for step in rank.steps[: record.num_steps]:
            for draw in step.draws:
                yield draw.replica, step.index, draw


def _calls(batches: Sequence[BatchRecord]) -> list[list[BatchRecord]]:
    """Return the batches by call of the replica function, and in each call by replica. Calls without a batch are left
    out."""
    by_replica: dict[int, list[BatchRecord]] = {}
    for batch in batches:
        if batch.size or batch.fingerprints is not None:
            by_replica.setdefault(batch.replica, []).append(batch)
    count = max(map(len, by_replica.values()), default=0)
    return [[own[call] for _replica, own in sorted(by_replica.items()) if call < len(own)] for call in range(count)]


def _placed(ours: Sequence[BatchRecord], theirs: Sequence[Sequence[BatchRecord]]) -> tuple[Block, ...] | None:
    """Return the places of the examples of each call, or ``None`` if one device did not consume the same examples."""
    flat = [batch for call in theirs for batch in call]
    if sum(batch.size for batch in ours) != sum(batch.size for batch in flat) or not ours:
        return None
    rows: dict[object, list[int]] = {}
    contents = [batch.examples for batch in (*ours, *flat)]
    if all(len(content) == batch.size for content, batch in zip(contents, (*ours, *flat), strict=True)):
        for place, example in enumerate(example for batch in ours for example in batch.examples):
            rows.setdefault(example, []).append(place)
        blocks = []
        for batch in flat:
            if not all(rows.get(example) for example in batch.examples):
                return None
            found = []
            for example in batch.examples:
                if not rows[example]:
                    return None
                found.append(rows[example].pop(0))
            blocks.append(Block(batch.replica, tuple(found)))
        return tuple(blocks)
    # Contents are not known. The replicas take successive parts of the batch of a call.
    if [batch.size for batch in ours] != [sum(batch.size for batch in call) for call in theirs]:
        return None
    first, blocks = 0, []
    for batch in flat:
        blocks.append(Block(batch.replica, tuple(range(first, first + batch.size))))
        first += batch.size
    return tuple(blocks)


def _placements(reference: TrainingRecord, distributed: TrainingRecord) -> Mapping[int, Placement]:
    """Return how the draws of each operation are placed, by their shapes on one device and on the replicas."""
    shapes: dict[int, list[tuple[Shape, int, Shape, int]]] = {}
    loops: dict[int, list[tuple[int, int]]] = {}
    ours = {(draw.position, step): draw for _replica, step, draw in _draws(reference)}
    for replica, step, draw in _draws(distributed):
        if (draw.position, step) in ours:
            whole, own = _size(reference, step, 0), _size(distributed, step, replica)
            alone = ours[draw.position, step]
            shapes.setdefault(draw.position, []).append((alone.shape, whole, draw.shape, own))
            loops.setdefault(draw.position, []).append((executions(alone), executions(draw)))
    unseen = [
        record.ranks[0].facts.get("draws_unseen", {}) if record.ranks else {} for record in (reference, distributed)
    ]
    for position in set(unseen[0]) & set(unseen[1]):
        whole, own = (_size(record, 1, 0) for record in (reference, distributed))
        shapes.setdefault(position, []).append((unseen[0][position][1], whole, unseen[1][position][1], own))
    placements = {position: _placement(pairs, loops.get(position, ())) for position, pairs in shapes.items()}
    for position, placement in placements.items():
        alike = all(first == second for first, second in loops.get(position, ()))
        if isinstance(placement, Unplaced) and position not in unseen[0] and alike:
            placements[position] = _spans(position, reference, distributed)
    in_loops = {d.position for r in (reference, distributed) for _n, _s, d in _draws(r) if executions(d) > 1}
    return placements | _parts(placements, {d.position: d.op for _n, _s, d in _draws(distributed)}, in_loops)


def _parts(
    placements: Mapping[int, Placement], operations: Mapping[int, str], in_loops: Collection[int]
) -> dict[int, Placement]:
    """Return the placements of draws for a part of the examples if each part has operations of its own."""
    alike: dict[tuple[str, Placement], list[int]] = {}
    for position, placement in sorted(placements.items()):
        if isinstance(placement, Rows) and placement.parts > 1 and position not in in_loops:
            alike.setdefault((operations.get(position, ""), placement), []).append(position)
    parts: dict[int, Placement] = {}
    for (_operation, placement), positions in alike.items():
        assert isinstance(placement, Rows)
        each = len(positions) // placement.parts
        for index, position in enumerate(positions):
            complete = each * placement.parts == len(positions)
            first = positions[index % each] if complete else position
            parts[position] = replace(placement, part=index // each, operation=first) if complete else Unplaced()
    return parts


def _spans(position: int, reference: TrainingRecord, distributed: TrainingRecord) -> Placement:
    """Return the placement of a draw whose lengths on the replicas add up to the one on one device, in each step."""
    ours = {step: draw.shape for _replica, step, draw in _draws(reference) if draw.position == position}
    theirs: dict[int, list[tuple[int, Shape]]] = {}
    for replica, step, draw in _draws(distributed):
        if draw.position == position:
            theirs.setdefault(step, []).append((replica, draw.shape))
    for axis in range(min(map(len, ours.values()), default=0)):
        firsts = []
        for step, parts in theirs.items():
            total = 0
            for replica, shape in sorted(parts):
                if _without(shape, axis) != _without(ours.get(step, ()), axis):
                    break
                firsts.append((step, replica, total))
                total += shape[axis]
            if step not in ours or total != ours[step][axis]:
                break
        else:
            return Spans(axis, tuple(firsts))
    return Unplaced()


def _without(shape: Shape, axis: int) -> Shape | None:
    return (*shape[:axis], *shape[axis + 1 :]) if axis < len(shape) else None


def _size(record: TrainingRecord, step: int, replica: int) -> int:
    """Return the number of examples in the first batch of a replica in a step."""
    batches = record.batches(step) if step <= record.num_steps else ()
    return next((batch.size for batch in batches if batch.replica == replica and batch.size), 0)


def _placement(pairs: Sequence[tuple[Shape, int, Shape, int]], loops: Sequence[tuple[int, int]] = ()) -> Placement:
    """Return the placement that fits all pairs of shapes, on one device for all examples and on a replica for its own.

    A dimension belongs to the examples if it is in the ratio of their numbers.

    :param loops: for each pair, executions in a step on one device and on the replica.
    """
    if any(first != second for first, second in loops) and all(ours == theirs for ours, _w, theirs, _o in pairs):
        sizes = [(whole, own) for _ours, whole, _theirs, own in pairs]
        return Rows(0, looped=True) if sizes == list(loops) else Unplaced()
    found = {_dimension(*pair) for pair in pairs}
    # With one replica, or without examples, a pair says nothing if another one does.
    certain = {placement for placement in found if placement is not None}
    if len(certain) == 1:
        return certain.pop()
    return Shared() if not certain else Unplaced()


def _dimension(ours: Shape, whole: int, theirs: Shape, own: int) -> Placement | None:
    if len(ours) != len(theirs):
        return Unplaced()
    open_axes = [axis for axis, length in enumerate(ours) if length == UNKNOWN and theirs[axis] == UNKNOWN]
    if open_axes:
        return Rows(open_axes[0])
    apart = [axis for axis, length in enumerate(ours) if length != theirs[axis]]
    if own == whole:
        return None if not apart else Unplaced()
    if not apart:
        return Shared()
    axis = apart[0]
    if len(apart) > 1 or not own or ours[axis] * own != theirs[axis] * whole:
        return Unplaced()
    if theirs[axis] % own == 0:
        return Rows(axis, theirs[axis] // own)
    return Rows(axis, parts=own // theirs[axis]) if theirs[axis] and own % theirs[axis] == 0 else Unplaced()
