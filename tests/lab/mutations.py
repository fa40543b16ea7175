"""Mutations of a record: each makes one recorded quantity wrong, as a defect of training or of its report would."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, is_dataclass, replace
from enum import Enum
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from pytest_ddl.equivalence.evidence.bounds import Bound
from pytest_ddl.equivalence.evidence.gradients import slack
from pytest_ddl.equivalence.evidence.tolerance import Tolerance
from pytest_ddl.records import BatchRecord, GradientRecord, RankRecord, StepRecord, TrainingRecord
from tests.lab.walk import Field, Item, Key, Path, Place, drop, get, is_leaf, of_variables, put, siblings, step_of

BEYOND = 2.5
"""A nudge in units of the bound. It is multiplied by the number of replicas, since a mean over them divides it."""


class Mutant(NamedTuple):
    """A way to make a record wrong, not yet done."""

    operator: str
    kind: str
    path: Path
    make: Callable[[], TrainingRecord]


@dataclass(frozen=True)
class Subject:
    """A record of the strategy, with the bounds of its pair."""

    record: TrainingRecord
    tolerance: Tolerance


def mutants(subject: Subject, place: Place) -> Iterator[Mutant]:
    """Yield every mutation of the value at a place."""
    record = subject.record
    alike = siblings(record, place.path)

    def mutant(operator: str, make: Callable[[], TrainingRecord]) -> Mutant:
        return Mutant(operator, place.kind, place.path, make)

    # A number that is not finite has no other value that is wrong: checks compare only whether both runs have one.
    if _is_in_lost_sum(record, place):
        return
    if (
        is_leaf(place.value)
        and not _is_lost(place.value)
        and not _is_within_bound(subject, place, changed(place.value))
    ):
        yield mutant("change", lambda: put(record, place.path, changed))
        if len(alike) > 1:
            yield mutant("change everywhere", lambda: _each(record, alike, changed))
        size = bound_of(subject, place)
        if size is not None:
            yield mutant("nudge", lambda: put(record, place.path, lambda value: _moved(value, size)))
            if len(alike) > 1:
                yield mutant("nudge everywhere", lambda: _each(record, alike, lambda value: _moved(value, size)))
    if _can_drop(record, place) and not _is_zero_within_bound(subject, place):
        yield mutant("drop", lambda: drop(record, place.path))
        if len(alike) > 1 and not _is_component(place):
            yield mutant("drop everywhere", lambda: _without(record, alike))
    yield from _of_replicas(record, place, mutant)
    yield from _of_steps(subject, place, alike, mutant)
    if isinstance(place.value, BatchRecord):
        yield from _of_examples(record, place, mutant)


def _each(record: TrainingRecord, alike: list[Path], change: Callable[[Any], Any]) -> TrainingRecord:
    for path in alike:
        record = put(record, path, change)
    return record


def _without(record: TrainingRecord, alike: list[Path]) -> TrainingRecord:
    for path in alike:
        record = drop(record, path)
    return record


def changed(value: Any) -> Any:
    """Return another value of the same type. A number changes by about its own size."""
    if isinstance(value, Enum):
        others = [other for other in type(value) if other is not value]
        return others[0] if others else value
    if isinstance(value, bool | np.bool_):
        return not value
    if isinstance(value, int):
        return value + 1
    if isinstance(value, float):
        return 0.5 if not np.isfinite(value) else 1.5 * value + 0.5
    if isinstance(value, str):
        return value + "x"
    if isinstance(value, frozenset):
        return frozenset() if value else frozenset({0})
    array = np.array(value)
    if not array.size:
        return np.zeros((1, *array.shape[1:]), array.dtype) if array.ndim else array
    last = (-1,) * array.ndim
    array[last] = _other(array[last])
    return array if isinstance(value, np.ndarray) else array[()]


def _other(element: Any) -> Any:
    if isinstance(element, bool | np.bool_):
        return not element
    if isinstance(element, np.integer | int):
        return element - 1 if element > 0 else element + 1
    if isinstance(element, np.inexact | float):
        return 1.5 * element + 0.5 if np.isfinite(element) else 0.5
    if isinstance(element, bytes):
        return b"x" + element[1:]
    return "x" + str(element)[1:]


def _moved(value: Any, size: float) -> Any:
    if isinstance(value, float):
        return value + size
    array = np.array(value)
    last = (-1,) * array.ndim
    before = array[last]
    # A number that is stored coarsely moves at least to the next one.
    array[last] = max(before + array.dtype.type(size), np.nextafter(before, array.dtype.type(np.inf)))
    return array if isinstance(value, np.ndarray) else array[()]


def bound_of(subject: Subject, place: Place) -> float | None:
    """Return how far a number must move to be beyond its bound; ``None`` if the tolerance has no bound for it."""
    bound = plain_bound(subject, place)
    return None if bound is None else BEYOND * max(1, subject.record.num_replicas) * bound.value


def _room(subject: Subject, place: Place) -> float:
    """Return how far a number may move. A bound that is wider than the effect of an example decides nothing there."""
    bound = plain_bound(subject, place)
    if bound is None:
        return 0.0
    return min(bound.effect, bound.unamplified) if bound.effect < bound.value else bound.value


def plain_bound(subject: Subject, place: Place) -> Bound | None:
    """Return the bound on a number: of a variable after a step, a loss or a named value."""
    step = step_of(place.path)
    reference = subject.tolerance.reference
    if step is None or step > reference.num_steps or not _is_float(place.value):
        return None
    owner, name = place.field
    if (owner, name) in {("StepRecord", "snapshot"), ("StepRecord", "own"), ("RankRecord", "initial")}:
        index = next(item.key for item in place.path if isinstance(item, Key))
        known = any(variable.index == index for variable in reference.variables)
        bound = subject.tolerance.variable(index, step) if known else None
    elif (owner, name) == ("StepRecord", "loss"):
        bound = subject.tolerance.loss(step) if reference.ranks[0].steps[step - 1].loss is not None else None
    elif (owner, name) == ("StepRecord", "values"):
        key = place.path[-1][0]
        held = key in reference.ranks[0].steps[step - 1].values
        bound = subject.tolerance.value(key, step) if held else None
    else:
        bound = None
    return bound if bound is not None and np.isfinite(bound.value) else None


def _is_float(value: Any) -> bool:
    if isinstance(value, float):
        return bool(np.isfinite(value))
    floating = isinstance(value, np.ndarray | np.generic) and np.issubdtype(value.dtype, np.floating)
    return bool(floating and np.size(value) and np.all(np.isfinite(value)))


def _is_lost(value: Any) -> bool:
    """Return whether some number is not finite."""
    floating = isinstance(value, float | np.ndarray | np.generic) and np.issubdtype(
        np.asarray(value).dtype, np.floating
    )
    return floating and not bool(np.all(np.isfinite(value)))


def _is_component(place: Place) -> bool:
    """Return whether a place is a component of a variable: dropping all of them is dropping the variable."""
    return isinstance(place.path[-1], Item) and len(place.path) > 1 and isinstance(place.path[-2], Key)


def _can_drop(record: TrainingRecord, place: Place) -> bool:
    last = place.path[-1]
    if isinstance(last, Field):
        return place.value is not None and _allows_none(get(record, place.path[:-1]), last.name)
    return True


def _allows_none(owner: Any, name: str) -> bool:
    return any(f.name == name and str(f.type).endswith("| None") for f in fields(owner))


def _of_replicas(record: TrainingRecord, place: Place, mutant: Callable[..., Mutant]) -> Iterator[Mutant]:
    """Give one replica what another has, and exchange what two of them have."""
    value = place.value
    if not isinstance(value, tuple) or len(value) < 2:
        return
    if all(is_dataclass(item) and hasattr(item, "replica") for item in value):
        first = value[0]
        for position, other in enumerate(value[1:], 1):
            if other.replica == first.replica or _key(other) != _key(first):
                continue
            if _same(replace(other, replica=first.replica), first):
                return
            here, there = replace(other, replica=first.replica), replace(first, replica=other.replica)
            rest = (*value[1:position], there, *value[position + 1 :])
            yield mutant("swap replicas", partial(put, record, place.path, partial(_constant, (here, *rest))))
            yield mutant("copy replica", partial(put, record, place.path, partial(_constant, (first, *rest))))
            return
    elif all(isinstance(item, np.ndarray) for item in value) and isinstance(place.path[-1], Key):
        if _same(value[0], value[1]):
            return
        yield mutant("swap replicas", lambda: put(record, place.path, lambda v: (v[1], v[0], *v[2:])))
        yield mutant("copy replica", lambda: put(record, place.path, lambda v: (v[0], v[0], *v[2:])))


def _constant(value: Any, _before: Any) -> Any:
    return value


def _key(item: Any) -> tuple[Any, ...]:
    """Return what says which quantity of a replica an item is: its position, stage or call."""
    return tuple(getattr(item, name, None) for name in ("position", "stage", "call", "op"))


def _of_steps(subject: Subject, place: Place, alike: list[Path], mutant: Callable[..., Mutant]) -> Iterator[Mutant]:
    """Repeat what an earlier step had; take steps away and add some."""
    record = subject.record
    if place.path[-1:] == (Field("RankRecord", "steps"),) and place.value:

        def longer(rank: Any) -> Any:
            return (*rank, replace(rank[-1], index=rank[-1].index + 1))

        yield mutant("add step", lambda: put(record, place.path, longer))
        if len(alike) > 1:
            yield mutant("add step everywhere", lambda: _each(record, alike, longer))
        return
    earlier = [_earlier(path) for path in alike]
    if any(before is None for before in earlier) or place.value is None:
        return
    if not (is_leaf(place.value) or isinstance(place.value, tuple)):
        return
    try:
        values = [get(record, before) for before in earlier if before is not None]
    except (KeyError, IndexError, AttributeError, TypeError):
        return
    own = values[alike.index(place.path)] if place.path in alike else values[0]
    if own is None or _same(own, place.value) or _is_within_bound(subject, place, own):
        return
    yield mutant("repeat step", lambda: put(record, place.path, lambda _value: own))
    if len(alike) > 1:

        def repeated() -> TrainingRecord:
            changed_record = record
            for path, value in zip(alike, values, strict=True):
                changed_record = put(changed_record, path, lambda _old, value=value: value)
            return changed_record

        yield mutant("repeat step everywhere", repeated)


def _is_within_bound(subject: Subject, place: Place, other: Any) -> bool:
    """Return whether another value is as right as the recorded one, for example of a bias that nothing moves."""
    values, others = (one if isinstance(one, tuple) else (one,) for one in (place.value, other))
    size = _largest_error(subject, replace(place, value=values[0])) if values else None
    return size is not None and all(_is_near(*pair, size) for pair in zip(others, values, strict=False))


def _is_zero_within_bound(subject: Subject, place: Place) -> bool:
    """Return whether a gradient is as right as none: a variable without a gradient does not move either."""
    is_gradient = place.kind.startswith("GradientRecord.values[") and _is_float(place.value)
    return is_gradient and _is_within_bound(subject, place, np.zeros_like(place.value))


def _largest_error(subject: Subject, place: Place) -> float | None:
    """Return how far a number of one replica may be from the right one: the bound on it, or on its sum."""
    last, step = place.path[-1], step_of(place.path)
    if not (place.kind.startswith("GradientRecord.values[") and isinstance(last, Key) and _is_float(place.value)):
        bound = plain_bound(subject, place)
        return None if bound is None else bound.value
    found = [item.values.get(last.key) for item in _of_stage(subject.record, place)]
    scale = max(float(np.max(np.abs(value), initial=0.0)) for value in found if value is not None)
    assert step is not None
    return subject.record.num_replicas * slack(subject.tolerance, last.key, step, scale)


def _of_stage(record: TrainingRecord, place: Place) -> list[GradientRecord]:
    """Return the gradients of all replicas in the step and the stage of a gradient."""
    gradient, step = get(record, place.path[:-2]), step_of(place.path)
    assert step is not None
    found = [item for rank in record.ranks if len(rank.steps) >= step for item in rank.steps[step - 1].gradients]
    return [item for item in found if item.stage is gradient.stage]


def _is_near(one: Any, value: Any, size: float) -> bool:
    return np.shape(one) == np.shape(value) and bool(np.all(np.abs(np.subtract(one, value)) <= size))


def _is_in_lost_sum(record: TrainingRecord, place: Place) -> bool:
    """Return whether a gradient is added to one that is not finite, so that nothing of it is left."""
    last = place.path[-1]
    if not place.kind.startswith("GradientRecord.values[") or not isinstance(last, Key):
        return False
    values = [item.values.get(last.key) for item in _of_stage(record, place)]
    return any(value is not None and not np.all(np.isfinite(value)) for value in values)


def _earlier(path: Path) -> Path | None:
    """Return the path to the same quantity one step earlier."""
    for position, step in enumerate(path):
        if step == Field("RankRecord", "steps") and position + 2 < len(path):
            number = path[position + 1][0]
            if number:
                return (*path[: position + 1], Item(number - 1), *path[position + 2 :])
            if path[position + 2] == Field("StepRecord", "snapshot"):
                return (*path[:position], Field("RankRecord", "initial"), *path[position + 3 :])
    return None


def _of_examples(record: TrainingRecord, place: Place, mutant: Callable[..., Mutant]) -> Iterator[Mutant]:
    """Lose the last example of a batch, or use the first one in its place."""
    batch: BatchRecord = place.value
    per_example = [f.name for f in fields(batch) if _has(getattr(batch, f.name), batch.size)]
    if not batch.size or not per_example:
        return
    fewer = replace(batch, size=batch.size - 1, **{name: getattr(batch, name)[:-1] for name in per_example})
    yield mutant("drop example", lambda: put(record, place.path, lambda _value: fewer))
    first = replace(batch, **{n: (*getattr(batch, n)[:-1], getattr(batch, n)[0]) for n in per_example})
    if first != batch:
        yield mutant("repeat example", lambda: put(record, place.path, lambda _value: first))


def _has(value: Any, size: int) -> bool:
    return isinstance(value, tuple) and len(value) == size


def _same(left: Any, right: Any) -> bool:
    if isinstance(left, np.ndarray | np.generic) and isinstance(right, np.ndarray | np.generic):
        floating = np.issubdtype(left.dtype, np.inexact) and np.issubdtype(right.dtype, np.inexact)
        return left.shape == right.shape and bool(np.array_equal(left, right, equal_nan=bool(floating)))
    if type(left) is not type(right):
        return False
    if is_dataclass(left):
        return all(_same(getattr(left, f.name), getattr(right, f.name)) for f in fields(left))
    if isinstance(left, tuple):
        return len(left) == len(right) and all(map(_same, left, right))
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(_same(left[key], right[key]) for key in left)
    return bool(left == right)


def within_bounds(subject: Subject, fraction: float, seed: int = 0) -> TrainingRecord:
    """Return the record with every bounded number moved by a fraction of its bound, at random up or down.

    All components of a variable that hold the same number still do, since one number is the same on all replicas.
    """
    record = subject.record
    generator = np.random.default_rng(seed)
    signs: dict[tuple[Any, ...], Any] = {}

    def moved(value: Any, size: float, key: tuple[Any, ...]) -> Any:
        if not size:
            return value
        if isinstance(value, float):
            return value + size * signs.setdefault(key, generator.choice([-1.0, 1.0]))
        if key not in signs:
            signs[key] = generator.choice([-1.0, 1.0], size=np.shape(value))
        return (value + size * signs[key]).astype(value.dtype) if np.shape(signs[key]) == np.shape(value) else value

    def of_rank(number: int, rank: RankRecord) -> RankRecord:
        start = (Field("TrainingRecord", "ranks"), Item(number), Field("RankRecord", "steps"))
        latest: dict[tuple[str, int], tuple[Any, Any]] = {}

        def snapshot(step: int, held: Any, name: str) -> Any:
            if not of_variables(held):
                return held
            return {index: components(step, index, parts, name) for index, parts in held.items()}

        def components(step: int, index: int, parts: Any, name: str) -> Any:
            before, moved_before = latest.get((name, index), (None, None))
            if before is None and step == 1:
                before = moved_before = rank.initial.get(index)
            if before is not None and _same(before, parts):
                # No arithmetic has touched it since, so no rounding has.
                latest[name, index] = before, moved_before
                return moved_before
            place = Place((*start, Item(step - 1), Field("StepRecord", name), Key(index), Item(0)), parts[0], "")
            size = _room(subject, place) if _may_move(record, index) else 0.0
            latest[name, index] = parts, tuple(moved(value, fraction * size, (index, step)) for value in parts)
            return latest[name, index][1]

        def of_step(step: StepRecord) -> StepRecord:
            way = (*start, Item(step.index - 1))
            loss = step.loss
            size = _room(subject, Place((*way, Field("StepRecord", "loss")), loss, "")) if loss is not None else 0.0
            named = {}
            for name, value in step.values.items():
                place = Place((*way, Field("StepRecord", "values"), Key(name)), value, "")
                named[name] = moved(value, fraction * _room(subject, place), (name, step.index))
            return replace(
                step,
                loss=None if loss is None else moved(loss, fraction * size, ("loss", step.index)),
                values=named,
                snapshot=snapshot(step.index, step.snapshot, "snapshot"),
                own=None if step.own is None else snapshot(step.index, step.own, "own"),
            )

        return replace(rank, steps=tuple(map(of_step, rank.steps)))

    return replace(record, ranks=tuple(of_rank(number, rank) for number, rank in enumerate(record.ranks)))


def _may_move(record: TrainingRecord, index: int) -> bool:
    """Return whether rounding may move a variable: a frozen one is computed by nothing."""
    return any(v.index == index and v.kind.value != "frozen" for v in record.variables)
