"""A training function with one mistake in it: the objects that the program uses are wrapped, its text stays.

A mutation is a function that fills hooks of a :class:`Mutant`; the mutant stands in for ``run`` and
calls them when the program calls its optimizer, its strategy, or the run. It works in custom loops
and in Keras's own, because both call ``optimizer.apply_gradients`` and ``strategy.run``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

Pairs = list[tuple[Any, Any]]
"""Gradients with their variables."""


class Mutant:
    """The ``run`` that a mutated program is given. Hooks left at ``None`` change nothing."""

    def __init__(self, run: Any) -> None:
        self.run = run
        self.built: Callable[[Any, Any], None] | None = None
        """``(model, optimizer)``, before they are watched for the first time."""
        self.batch: Callable[[Any], Any] | None = None
        """A replica's batch, in the replica function."""
        self.gradients: Callable[[Pairs], Pairs] | None = None
        """What a replica hands to the optimizer."""
        self.aggregate: Callable[[Pairs, Callable[[Pairs], Pairs]], Pairs] | None = None
        """The optimizer's aggregation: ``(pairs, aggregate) -> pairs``."""
        self.apply: Callable[[Callable[[Pairs], Any], Pairs, Any], Any] | None = None
        """The optimizer's update: ``(apply, pairs, optimizer)``, in the replica function."""
        self.dataset: Callable[[Any], Any] | None = None
        self.reduced: Callable[[Any, Any, Any], Any] | None = None
        """The program's own ``strategy.reduce``: ``(reduce, operation, value)``."""
        self.loss: Callable[[Any], Any] | None = None
        """The loss that a step of a custom loop reports."""
        self.stepped: Callable[[Any, Any], None] | None = None
        """``(model, optimizer)``, after each step and before it is recorded."""
        self.at_end: list[Callable[[], None]] = []
        """Called when the program has ended, whatever the end."""
        self._model: Any = None
        self._optimizer: Any = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self.run, name)

    @property
    def is_second_replica(self) -> Any:
        """True if the replica that runs here is replica 1, which one device does not have."""
        import tensorflow as tf

        return tf.equal(replica_id(), 1)

    def watch(self, model: Any = None, optimizer: Any = None, **others: Any) -> None:
        if self._model is None and model is not None:
            self._model, self._optimizer = model, optimizer
            if self.built is not None:
                self.built(model, optimizer)
            self._instrument(optimizer)
        self.run.watch(model=model, optimizer=optimizer, **others)

    def steps(self, train_step: Any, dataset: Any, *args: Any, **kwargs: Any) -> Iterator[Any]:
        step = train_step if self.loss is None and self.stepped is None else _Step(train_step, self._after)
        yield from self.run.steps(step, self._dataset(dataset), *args, **kwargs)

    def fit(self, model: Any, dataset: Any, **kwargs: Any) -> Any:
        if self.stepped is not None:
            import keras

            stepped = keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs=None: self._after(None))
            kwargs = {**kwargs, "callbacks": [*(kwargs.get("callbacks") or ()), stepped]}
        return self.run.fit(model, self._dataset(dataset), **kwargs)

    @contextmanager
    def instrumented_strategy(self) -> Iterator[None]:
        """``strategy.run`` and ``strategy.reduce`` with the hooks, for the time of the program."""
        strategy = self.run.strategy
        run, reduce = strategy.run, strategy.reduce

        def mutated_run(fn: Any, args: Any = (), kwargs: Any = None, options: Any = None) -> Any:
            def replica_function(*given: Any, **named: Any) -> Any:
                assert self.batch is not None
                return fn(self.batch(given[0]), *given[1:], **named)

            return run(fn if self.batch is None else replica_function, args=args, kwargs=kwargs, options=options)

        def mutated_reduce(reduce_op: Any, value: Any, axis: Any = None) -> Any:
            if self.reduced is None:
                return reduce(reduce_op, value, axis=axis)
            return self.reduced(lambda operation, given: reduce(operation, given, axis=axis), reduce_op, value)

        before = dict(vars(strategy))
        strategy.run, strategy.reduce = mutated_run, mutated_reduce
        try:
            yield
        finally:
            for undo in self.at_end:
                undo()
            for name in ("run", "reduce"):
                if name in before:
                    setattr(strategy, name, before[name])
                else:
                    delattr(strategy, name)

    def _dataset(self, dataset: Any) -> Any:
        return dataset if self.dataset is None else self.dataset(dataset)

    def _after(self, loss: Any) -> Any:
        if self.stepped is not None:
            self.stepped(self._model, self._optimizer)
        return loss if self.loss is None or loss is None else self.loss(loss)

    def _instrument(self, optimizer: Any) -> None:
        apply = optimizer.apply_gradients
        # Keras 3 (3.8 to 3.15) sums gradients over replicas only in this method; its public API can only request it.
        aggregate = optimizer._all_reduce_sum_gradients

        def mutated_apply(grads_and_vars: Any) -> Any:
            pairs = list(grads_and_vars)
            if self.gradients is not None:
                pairs = self.gradients(pairs)
            return apply(pairs) if self.apply is None else self.apply(apply, pairs, optimizer)

        def mutated_aggregate(grads_and_vars: Any) -> Any:
            pairs = list(grads_and_vars)
            return aggregate(pairs) if self.aggregate is None else self.aggregate(pairs, aggregate)

        object.__setattr__(optimizer, "apply_gradients", mutated_apply)
        object.__setattr__(optimizer, "_all_reduce_sum_gradients", mutated_aggregate)


class _Step:
    """A train step with something after it, which is counted and scheduled as the step itself."""

    def __init__(self, step: Any, after: Callable[[Any], Any]) -> None:
        self._step = step
        self._after = after

    def __call__(self, iterator: Any) -> Any:
        return self._after(self._step(iterator))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._step, name)


@dataclass(frozen=True)
class Mutation:
    """One mistake."""

    name: str
    plant: Callable[[Mutant], None]
    breaks: str
    """The invariant that must notice it."""
    causes: tuple[str, ...]
    """Ids of causes; each of them is a right diagnosis."""
    in_reference: bool
    """True if one device runs the mistake too: it is a mistake with several replicas, and has no effect with one."""
    loops: tuple[str, ...]
    """``loop``, ``fit``."""
    programs: str
    """A part of the names of the programs that it can be planted in."""
    strategies: tuple[str, ...]

    @property
    def told(self) -> str:
        """Description of the mistake, in one line."""
        return str(self.plant.__doc__).strip().splitlines()[0]


DATA_PARALLEL = ("mirrored", "multi_worker_mirrored")


def mutation(
    breaks: str,
    *causes: str,
    in_reference: bool = False,
    loops: Sequence[str] = ("loop", "fit"),
    programs: str = "",
    strategies: Sequence[str] = DATA_PARALLEL,
) -> Callable[[Callable[[Mutant], None]], Mutation]:
    """Make a mutation of a function that fills a mutant's hooks."""

    def make(plant: Callable[[Mutant], None]) -> Mutation:
        name = plant.__name__.replace("_", "-")
        return Mutation(name, plant, breaks, causes, in_reference, tuple(loops), programs, tuple(strategies))

    return make


def train_mutated(run: Any, name: str, program: Callable[[Any], Any]) -> None:
    """The training function with a mistake in it; found by name, so that it can be sent to ranks."""
    from tests.mutation.mutations import MUTATIONS

    (found,) = (item for item in MUTATIONS if item.name == name)
    mutant = Mutant(run)
    if found.in_reference or not run.is_reference:
        found.plant(mutant)
    with mutant.instrumented_strategy():
        program(mutant)


def replica_id() -> Any:
    """The global id of the replica that runs here."""
    import tensorflow as tf

    context = tf.distribute.get_replica_context()
    return 0 if context is None else context.replica_id_in_sync_group


def mapped(pairs: Pairs, function: Callable[[Any, Any], Any]) -> Pairs:
    """Every gradient replaced; one that is ``None`` or sparse is handed over as it is, or made dense."""
    import tensorflow as tf

    return [
        (gradient if gradient is None else function(tf.convert_to_tensor(gradient), variable), variable)
        for gradient, variable in pairs
    ]
