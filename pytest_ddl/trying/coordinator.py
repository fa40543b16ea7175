"""Run the functions that a script schedules on a ``ClusterCoordinator``, at once and in order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pytest_ddl.trying.found import Found, place


def stand_in(found: Found) -> Callable[..., Any]:
    """Return a function that makes coordinators whose scheduled functions are steps of the strategy of the run."""

    def make(strategy: Any) -> Coordinator:
        found.add("coordinator", f"at {place()}: a scheduled function is a synchronous step")
        return Coordinator(strategy)

    return make


class Coordinator:
    """Coordinator with the interface of ``ClusterCoordinator``, for a strategy whose replicas run synchronously."""

    def __init__(self, strategy: Any) -> None:
        self.strategy = strategy

    def create_per_worker_dataset(self, dataset_fn: Any) -> Any:
        """Return a distributed dataset. Each replica consumes the dataset that a worker would."""
        import tensorflow as tf

        # A tf.function cannot return a distributed dataset to eager code.
        made = getattr(dataset_fn, "python_function", dataset_fn)() if callable(dataset_fn) else dataset_fn
        if not isinstance(made, tf.data.Dataset):
            return made
        return self.strategy.distribute_datasets_from_function(lambda _context: made)

    def schedule(self, fn: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None) -> RemoteValue:
        """Call a function now."""
        return RemoteValue(fn(*args, **(kwargs or {})))

    def join(self) -> None:
        """Do nothing, because every function has ended."""

    def done(self) -> bool:
        """Return True, because every function has ended."""
        return True

    def fetch(self, values: Any) -> Any:
        """Return the results that a structure holds, as NumPy values."""
        import tensorflow as tf

        return tf.nest.map_structure(lambda item: item.fetch() if isinstance(item, RemoteValue) else item, values)


class RemoteValue:
    """Result of a function that was scheduled."""

    def __init__(self, result: Any) -> None:
        self._result = result

    def get(self) -> Any:
        """Return the result."""
        return self._result

    def fetch(self) -> Any:
        """Return the result as NumPy values."""
        import tensorflow as tf

        return tf.nest.map_structure(lambda item: item.numpy() if hasattr(item, "numpy") else item, self._result)
