"""Find the lines at which a program distributes its data and enters a merge of its replicas."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any

from pytest_ddl.training import frames
from pytest_ddl.training.coordinator import uses_coordinator
from pytest_ddl.training.lines import DATA
from pytest_ddl.training.observer import Observer
from pytest_ddl.training.replacing import Replacements

_DISTRIBUTING = ("experimental_distribute_dataset", "distribute_datasets_from_function")


class LineObserver(Observer):
    """Observer that fills facts about lines of the program. Other observers add the lines of the calls they watch."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._shards: list[tuple[int, int]] = []
        self._parts: list[tuple[int, int]] | None = None
        self._has_data_of_workers = False

    _converted: Mapping[object, object] = MappingProxyType({})
    """Lines of the program in which ``strategy.run`` was called, by the lines that AutoGraph made of them."""

    @contextmanager
    def installed(self) -> Iterator[None]:
        import tensorflow as tf

        strategy = self.context.strategy
        with Replacements() as replaced:
            for name in _DISTRIBUTING:
                original = getattr(strategy, name, None)
                if original is not None:
                    replaced.put(strategy, name, self._distributing(original))
            if not uses_coordinator(strategy):  # whose closures merge in the threads in which they run
                merge = tf.distribute.ReplicaContext.merge_call
                replaced.put(tf.distribute.ReplicaContext, "merge_call", _merging(merge))
            yield

    def before_dispatch(self, traced: bool) -> None:
        self._converted = frames.converted_lines()

    def before_replica(self, given: Any) -> None:
        frames.add_converted_lines(self._converted)

    def _distributing(self, original: Callable[..., Any]) -> Callable[..., Any]:
        # functools.wraps copies the module name, by which AutoGraph leaves the method and its settings as they are.
        @functools.wraps(original)
        def distribute(dataset: Any, *args: Any, **kwargs: Any) -> Any:
            if not (callable(dataset) and self.recorder.lines.add_function(DATA, dataset)):
                self.recorder.lines.add(DATA)
            if self.context.num_ranks > 1 and _is_sharded_again(dataset):
                self._shards += _shards_in(dataset)
            self._parts = [*(self._parts or ()), *_shards_in(dataset)]
            # The input context of a coordinator's worker is that of a single pipeline: it cannot shard.
            of_workers = callable(dataset) and uses_coordinator(self.context.strategy)
            self._has_data_of_workers |= of_workers
            made = self._making(dataset) if callable(dataset) and not of_workers else dataset
            return original(made, *args, **kwargs)

        return distribute

    def _making(self, make: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function that makes the data of a worker, and keeps its shards."""

        @functools.wraps(make)
        def made(*args: Any, **kwargs: Any) -> Any:
            dataset = make(*args, **kwargs)
            self._parts = [*(self._parts or ()), *_shards_in(dataset)]
            return dataset

        return made

    def end_run(self) -> Mapping[str, Any]:
        facts = self.recorder.lines.facts()
        if self._shards:
            facts["shards"] = tuple(self._shards)
        if self._parts is not None:
            facts["parts"] = tuple(self._parts)
        if self._has_data_of_workers:
            facts["data_of_workers"] = True
        return {"facts": facts}


def _is_sharded_again(dataset: Any) -> bool:
    """Return whether a strategy with several workers shards a dataset that it distributes."""
    import tensorflow as tf

    if not isinstance(dataset, tf.data.Dataset):
        return False
    policies = tf.data.experimental.AutoShardPolicy
    return dataset.options().experimental_distribute.auto_shard_policy not in (policies.OFF, policies.HINT)


def _shards_in(dataset: Any) -> Iterator[tuple[int, int]]:
    """Yield ``(number of shards, index)`` of each shard that a dataset is made of.

    A shard of repeated data is none: its next pass may begin at another example, and read what this one leaves out.
    """
    import tensorflow as tf

    found = [dataset] if isinstance(dataset, tf.data.Dataset) else []
    while found:
        one = found.pop()
        inputs = _inputs_of(one)
        found += inputs
        if type(one).__name__ == "_ShardDataset" and not any(map(_repeats, inputs)):
            number, index = (tf.get_static_value(value) for value in (one._num_shards, one._index))
            if number is not None and index is not None:
                yield int(number), int(index)


def _repeats(dataset: Any) -> bool:
    return type(dataset).__name__ == "_RepeatDataset" or any(map(_repeats, _inputs_of(dataset)))


def _inputs_of(dataset: Any) -> list[Any]:
    inputs: list[Any] = getattr(dataset, "_inputs", list)()
    return inputs


def _merging(original: Callable[..., Any]) -> Callable[..., Any]:
    """Return a ``merge_call`` that keeps the replica's lines. The merge itself runs in the thread of strategy.run."""

    @functools.wraps(original)
    def merge_call(context: Any, *args: Any, **kwargs: Any) -> Any:
        with frames.merging():
            return original(context, *args, **kwargs)

    return merge_call
