"""Record a digest of the random numbers per operation, replica and step, or replace them by common random numbers.

The Python functions that add a random operation are replaced during a run. They are called in the replica's own
thread, whatever graph is traced there. So a draw inside a loop, a branch or a nested function can be assigned to
its replica, with its position among the replica's draws.
"""

from __future__ import annotations

import inspect
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from types import FrameType
from typing import Any

import numpy as np

from pytest_ddl.notes import NoteKind
from pytest_ddl.records import Array, DrawRecord
from pytest_ddl.run_facts import RunFacts
from pytest_ddl.training import adapter, fingerprint, neutral, replaced_draws
from pytest_ddl.training.callback_ops import add_callback, replica_id
from pytest_ddl.training.common_numbers import Stream
from pytest_ddl.training.creations import creating
from pytest_ddl.training.lines import DRAW
from pytest_ddl.training.observer import Observer
from pytest_ddl.training.places import Placement, Rows, Shared, Unplaced
from pytest_ddl.training.replacing import Replacements
from pytest_ddl.training.stacked import Bodies, Body

HASHED = 2**16
"""Maximum count of numbers to hash per draw; copying more from the device would add no information."""
_FAR = 65537
"""Number of executions between two entries of the outer one of two maps, so that hardly any have the same number."""


@dataclass(frozen=True)
class _Site:
    """Description of one random operation, made when it was traced."""

    position: int
    op: str
    name: str
    shape: tuple[int, ...] | None
    """Shape of the numbers; ``None`` if only an execution knows it. The graph then also reports the shape."""
    seeded: bool
    generator: str
    nested: bool = False
    stateless: bool = False
    """True if the graph also reports the seeds that the operation was given."""


@dataclass
class _Replica:
    """Random operations of one call of a replica function so far."""

    graph: Any
    """Graph that is traced; ``None`` if the function runs eagerly."""
    head: Any = None
    """Step, number of blocks, 1 on a replica that draws other numbers than the first, and places of first entries."""
    rows: Any = None
    """Places of the examples; see :class:`~pytest_ddl.training.common_numbers.Stream`."""
    draws: int = 0
    sites: list[_Site] = field(default_factory=list)
    tensors: list[Any] = field(default_factory=list)


class Draws(Observer):
    """Observer that fills :attr:`~pytest_ddl.records.StepRecord.draws`. A setting makes it switch randomness off."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self._here = threading.local()
        self._bodies = Bodies(self._here)
        self._lock = threading.Lock()
        self._seen: dict[tuple[int, int], list[DrawRecord]] = {}
        self._global_seed: int | None = None
        self._neutral = neutral.RANDOM in self.settings.neutralize
        places = self.settings.places
        if places is not None and places.global_batch_size != self.settings.global_batch_size:
            places = None
        self._places = places
        self._counts: Counter[tuple[int, ...]] = Counter()
        """Calls of each replica, and executions of each of its operations inside a loop, in the current step."""
        self._unseen: dict[int, tuple[str, tuple[int, ...]]] = {}
        """Position -> operation and shape of a draw that cannot be recorded; -1 for a length that is not known."""
        self._hidden = False
        """True if an operation may have drawn numbers that are not recorded."""
        self._drew_unseen = False
        """True if an operation is known to draw numbers that are not recorded."""

    @contextmanager
    def installed(self) -> Iterator[None]:
        self._global_seed = adapter.tf_seed()
        with Replacements() as replaced:
            functions = list(adapter.random_functions(replaced_draws.FUNCTIONS))
            self._hidden = self._hidden or not functions
            for module, attribute, name in functions:
                replaced.put(module, attribute, self._watching(name, getattr(module, attribute)))
            self._bodies.replace(replaced)
            seeds = adapter.seeds_of_keras()
            if seeds is not None:
                replaced.put(*seeds, self._seeding(getattr(*seeds)))
            yield

    def before_replica(self, given: Any) -> _Replica:
        import tensorflow as tf

        graph = None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()
        head, rows = self._placed(given) if self._neutral else (None, None)
        self._here.replica = _Replica(graph, head, rows)
        replica: _Replica = self._here.replica
        return replica

    def _placed(self, given: Any) -> tuple[Any, Any]:
        """Return the head of a replica and the places of its examples, anew in each execution of the graph."""
        import tensorflow as tf

        spans = 0 if self._places is None else len(self._places.spans())
        counts = any(isinstance(item, tf.Tensor) and item.shape.rank != 0 for item in tf.nest.flatten(given))

        def now(replica: Any) -> tuple[Array, Array]:
            step = self.recorder.completed + 1
            with self._lock:
                call = self._counts[int(replica),]
                self._counts[int(replica),] += counts
            rows = self._rows(step, int(replica), call)
            blocks, firsts = 1, []
            if self._places is not None:
                blocks = self._places.number_of_blocks(step)
                firsts = self._places.firsts(step, None if self.settings.is_reference else int(replica))
            change = self.settings.neutralize
            apart = neutral.OTHER in change or (neutral.APART if int(replica) > 0 else neutral.SWAPPED) in change
            return np.array([step, blocks, apart, *firsts], np.int64), rows

        if adapter.within_xla():
            return tf.constant([1, 1, 0, *[0] * spans], tf.int64), tf.zeros([0, 3], tf.int64)
        replica = replica_id()
        if tf.executing_eagerly():
            return tuple(tf.constant(part) for part in now(replica))
        head, rows = tf.numpy_function(now, [tf.cast(replica, tf.int32)], [tf.int64, tf.int64], stateful=True)
        head.set_shape([3 + spans])
        rows.set_shape([None, 3])
        return head, rows

    def _rows(self, step: int, replica: int, call: int) -> Array:
        places, settings = self._places, self.settings
        if places is None:
            return np.zeros((0, 3), np.int64)
        step = 1 if settings.constant else step  # then all steps have the batch of the first
        if not settings.is_reference:
            return places.of_replica(step, replica, call)
        return places.of_device(step, call, dict(settings.slices).get(step))

    def after_replica(self, token: _Replica, result: Any) -> None:
        self._here.replica = self._here.seeded = None
        if token.sites:
            self._add_callback(token.sites, token.tensors)

    def end_step(self) -> Mapping[str, Any]:
        # A replica function that raised did not reset this; later draws do not belong to it.
        self._here.replica = self._here.seeded = None
        with self._lock:
            seen, self._seen = self._seen, {}
            self._counts.clear()
        return {"draws": tuple(_folded(seen[key]) for key in sorted(seen))}

    def end_run(self) -> Mapping[str, Any]:
        facts: RunFacts = {"draws_unseen": dict(self._unseen)} if self._unseen else {}
        if self._drew_unseen:
            facts["drew_unseen"] = True
        return {"draws_observed": not self._hidden, "facts": facts}

    def _seeding(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Return ``draw_seed`` of Keras that remembers the generator for the function of Keras that called it."""

        def draw_seed(seed: Any) -> Any:
            self._here.seeded = (sys._getframe(1), adapter.seed_generator(seed))
            return original(seed)

        return draw_seed

    def _generator(self) -> str:
        """Return the generator that seeds the function of Keras that is drawing now; empty outside such a function."""
        caller, generator = getattr(self._here, "seeded", None) or (None, "")
        frame: FrameType | None = sys._getframe(1)
        while generator and frame is not None and frame is not caller:
            frame = frame.f_back
        return generator if frame is caller else ""

    def _watching(self, name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        def draw(*args: Any, **kwargs: Any) -> Any:
            result = original(*args, **kwargs)
            replica = getattr(self._here, "replica", None)
            if replica is None or creating():
                return result  # not a draw of a replica function
            try:
                return self._drawn(replica, name, result, original, args, kwargs)
            except Exception as error:  # an exception here would be raised in the program
                self._hidden = True
                self.recorder.note(
                    NoteKind.DRAWS, f"a random operation could not be observed: {type(error).__name__}: {error}"
                )
                if self._neutral:
                    self.recorder.note(NoteKind.NOT_REPLACED, name)
                return result

        draw.__name__, draw.__doc__, draw.__module__ = name, original.__doc__, original.__module__
        return draw

    def _drawn(self, replica: _Replica, name: str, result: Any, original: Any, args: Any, kwargs: Any) -> Any:
        import tensorflow as tf

        eager = tf.executing_eagerly()
        if eager != (replica.graph is None):
            return result  # lifted out of the function, or in a graph that an eager replica function calls
        body = self._bodies.now()
        if body is not None and body.graph is not tf.compat.v1.get_default_graph():
            # A branch or function inside the body of a tf.vectorized_map: its numbers are no output of the body.
            self._hidden = self._drew_unseen = True
            if self._neutral:
                self.recorder.note(NoteKind.NOT_REPLACED, name)
            return result
        position, replica.draws = replica.draws, replica.draws + 1
        self.recorder.lines.add(DRAW.format(position))
        if self._neutral:
            common = replaced_draws.replaced(name, result, original, args, kwargs, self._stream(replica, position))
            if common is None:
                self.recorder.note(NoteKind.NOT_REPLACED, name)
            result = result if common is None else _shaped_like(common, result)
        numbers = result[0] if isinstance(result, tuple) else result
        label = name if eager else str(numbers.op.name)
        site = _Site(position, name, label, None, adapter.tf_seed() != self._global_seed, self._generator())
        seeds = _seeds(name, original, args, kwargs)
        given = [numbers] if seeds is None else [numbers, seeds]
        self._keep(replica, replace(site, stateless=seeds is not None), given)
        return result

    def _keep(self, replica: _Replica, site: _Site, given: list[Any]) -> None:
        """Add operations that record the numbers, and the seeds if there are some."""

        body = self._bodies.now()
        if body is not None:
            body.then(lambda stacked: self._keep(replica, site, stacked), given)
            return
        numbers, *seeds = given
        site, tensors = _described(site, numbers)
        tensors += seeds
        if replica.graph is not None and numbers.graph is replica.graph:
            replica.sites.append(site)
            replica.tensors += tensors
        elif not adapter.within_xla():
            self._add_callback([replace(site, nested=replica.graph is not None)], tensors)
        else:
            self._hidden = True
            lengths = numbers.shape.as_list() if numbers.shape.rank is not None else ()
            self._unseen[site.position] = site.op, tuple(-1 if length is None else length for length in lengths)

    def _stream(self, replica: _Replica, position: int) -> Stream:
        """Return the numbers of an operation. In a loop, each execution has other numbers."""
        import tensorflow as tf

        placement = Unplaced() if self._places is None else self._places.draws.get(position, Unplaced())
        executed: Any = tf.constant(0, tf.int64)
        entry = None
        body = self._bodies.now()
        in_loop = not tf.executing_eagerly() and tf.compat.v1.get_default_graph() is not replica.graph
        if body is not None:
            placement, entry, executed = self._of_an_entry(placement, body)
        elif in_loop and not adapter.within_xla():

            def count(number: Any) -> Any:
                with self._lock:
                    self._counts[int(number), position] += 1
                    return np.int64(self._counts[int(number), position] - 1)

            executed = tf.numpy_function(count, [tf.cast(replica_id(), tf.int32)], tf.int64, stateful=True)
            executed.set_shape([])
        if body is None and isinstance(placement, Rows) and placement.looped:
            entry, executed = executed, tf.zeros_like(executed)
        head = tf.stack([replica.head[0], executed, replica.head[1], replica.head[2]])
        spans = () if self._places is None else self._places.spans()
        first = replica.head[3 + spans.index(position)] if position in spans else 0
        in_order = neutral.IN_ORDER in self.settings.neutralize
        return Stream(position, placement, head, replica.rows, first, entry, in_order)

    def _of_an_entry(self, placement: Placement, body: Body) -> tuple[Placement, Any, Any]:
        """Return the placement inside the body of a map, the index of its example if it has one, and its execution."""
        import tensorflow as tf

        nothing = tf.constant(0, tf.int64)
        if isinstance(placement, Unplaced):
            return placement, None, nothing
        if isinstance(placement, Rows) and (placement.looped or placement.parts > 1):
            self.recorder.note(NoteKind.NOT_REPLACED, "a random operation of a tf.vectorized_map in a loop")
            return Unplaced(), None, nothing
        entry, indices = None, body.indices()
        if not isinstance(placement, Shared):
            axis, placement = placement.axis, replace(placement, axis=max(placement.axis - len(indices), 0))
            entry = indices.pop(axis) if axis < len(indices) else None
        executed = nothing
        for index in indices:
            executed = executed * _FAR + index
        return placement, entry, executed

    def _add_callback(self, sites: list[_Site], tensors: list[Any]) -> None:
        def record(replica: Any, *arrays: Any) -> None:
            try:
                rest = list(arrays)
                for site in sites:
                    values = rest.pop(0)
                    shape = tuple(int(size) for size in rest.pop(0)) if site.shape is None else site.shape
                    seeds = rest.pop(0) if site.stateless else None
                    self._record(int(replica), site, values, shape, seeds)
            except Exception as error:  # an exception here would be raised in the program
                self._hidden = True
                self.recorder.note(NoteKind.DRAWS, f"a draw could not be recorded: {type(error).__name__}: {error}")

        add_callback(record, tensors)

    def _record(self, replica: int, site: _Site, values: Array, shape: tuple[int, ...], seeds: Array | None) -> None:
        flat = np.asarray(values).reshape(-1)
        if not flat.size:
            return
        digest = _digest(flat)
        distinct = _distinct(flat[:256])
        dtype = str(values.dtype)
        place = replica, site.position
        made = DrawRecord(
            *place,
            op=site.op,
            name=site.name,
            digest=digest,
            size=flat.size,
            shape=shape,
            dtype=dtype,
            distinct=distinct,
            seeded=site.seeded,
            nested=site.nested,
            generator=site.generator,
            seeds=None if seeds is None else _digest(seeds),
        )
        with self._lock:
            self._seen.setdefault(place, []).append(made)


def _digest(numbers: Array) -> int:
    return int(fingerprint.hash_rows(numbers.reshape(1, -1), 0)[0])


def _seeds(name: str, original: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """Return all seeds of a stateless operation as one int64 tensor; ``None`` for an operation with a state."""
    import tensorflow as tf

    if not name.startswith("stateless"):
        return None
    given = inspect.signature(original).bind(*args, **kwargs).arguments
    seeds = [tf.convert_to_tensor(given[operand]) for operand in ("seed", "key", "counter") if operand in given]
    return tf.concat([tf.reshape(tf.cast(part, tf.int64), [-1]) for part in seeds], axis=0) if seeds else None


def _shaped_like(common: Any, result: Any) -> Any:
    """Give numbers the static shape of those that they replace."""
    for part, drawn in zip(common, result, strict=True) if isinstance(result, tuple) else [(common, result)]:
        part.set_shape(drawn.shape)
    return common


def _distinct(numbers: Array) -> float:
    """Return the inverse of the probability that two of the numbers are equal: rare numbers hardly count."""
    counts = np.unique(numbers, return_counts=True)[1]
    return float(counts.sum() ** 2 / np.sum(counts**2))


def _described(site: _Site, result: Any) -> tuple[_Site, list[Any]]:
    """Return a site with its shape, and the tensors to report."""
    import tensorflow as tf

    elements = result.shape.num_elements()
    if elements is not None and elements <= HASHED:
        return replace(site, shape=tuple(result.shape.as_list())), [result]
    return site, [tf.reshape(result, [-1])[:HASHED], tf.shape(result)]


def _folded(draws: list[DrawRecord]) -> DrawRecord:
    """Merge the records of all executions of an operation on a replica in a step, in a loop or in several calls."""
    first = draws[0]
    if len(draws) == 1:
        return first
    digest = _combined([draw.digest for draw in draws])
    seeds = [draw.seeds for draw in draws if draw.seeds is not None]
    size, distinct = sum(draw.size for draw in draws), max(draw.distinct for draw in draws)
    if first.size == 1:
        distinct = _distinct(np.array([draw.digest for draw in draws[:256]], np.uint64))
    generator = first.generator if all(draw.generator == first.generator for draw in draws) else ""
    made = _combined(seeds) if len(seeds) == len(draws) else None
    return replace(first, digest=digest, size=size, distinct=distinct, generator=generator, seeds=made)


def _combined(digests: list[int]) -> int:
    return fingerprint.combine([np.array([digest], np.uint64) for digest in digests])[0]
