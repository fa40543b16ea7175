"""Give a script the strategy of the run in place of its own, and run what it schedules on a coordinator."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import Enum
from typing import Any

from pytest_ddl.training import frames
from pytest_ddl.training.replacing import Replacements
from pytest_ddl.trying.found import Found, NotSeenError, place


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


CONSTRUCTORS = (
    "MirroredStrategy",
    "MultiWorkerMirroredStrategy",
    "ParameterServerStrategy",
    "CentralStorageStrategy",
    "OneDeviceStrategy",
    "TPUStrategy",
)
_DEVICE_SETTINGS = (
    ("config", "set_visible_devices"),
    ("config", "set_logical_device_configuration"),
    ("config.experimental", "set_visible_devices"),
    ("config.experimental", "set_virtual_device_configuration"),
    ("config.experimental", "set_memory_growth"),
    ("config", "experimental_connect_to_cluster"),
    ("config", "experimental_connect_to_host"),
    ("tpu.experimental", "initialize_tpu_system"),
    ("config.threading", "set_inter_op_parallelism_threads"),
    ("config.threading", "set_intra_op_parallelism_threads"),
)


class Meaning(Enum):
    """Hypothesis about what a script computes with the number of replicas.

    A script computes its global batch size from this number. One device has one replica, so its batches would be
    smaller than those under the strategy. The reference therefore reads the number of the compared strategy. A loss
    that is divided by the number needs the opposite. Under the right hypothesis, one device runs an equal program.
    """

    BATCHES = "batches"
    """Outside replica functions the number of the compared strategy, and inside them the true number."""
    EVERYWHERE = "everywhere"
    """The number of the compared strategy everywhere. A loss that is divided twice also agrees under it."""
    NOTHING = "nothing"
    """The true number everywhere. Batches are joined to global batches."""
    OWN = "own"
    """The true number everywhere. Batches are what the script makes of it, and may be smaller."""


class _Constructor(type):
    """Type of a class that always returns the strategy of the run, and that ``isinstance`` still accepts."""

    def __call__(cls, *_args: Any, **_kwargs: Any) -> Any:
        return cls.give()  # type: ignore[attr-defined]

    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, cls.original)  # type: ignore[attr-defined]


def install(put: Replacements, strategy: Any, found: Found) -> None:
    """Replace the constructors of strategies, ``get_strategy`` and the settings of devices."""
    import tensorflow as tf

    servers = isinstance(strategy, tf.distribute.experimental.ParameterServerStrategy)
    for module in (tf.distribute, tf.distribute.experimental):
        for name in CONSTRUCTORS:
            original = getattr(module, name, None)
            if original is not None:
                put.put(module, name, _constructor(name, original, strategy, found))
    current = tf.distribute.get_strategy

    def get_strategy() -> Any:
        # Keras calls the same public function.
        if not _caller_is_program() or tf.distribute.has_strategy():
            return current()
        found.wants_default = True
        return strategy

    put.put(tf.distribute, "get_strategy", get_strategy)
    for path, name in _DEVICE_SETTINGS:
        owner = tf
        for part in path.split("."):
            owner = getattr(owner, part)
        if hasattr(owner, name):
            put.put(owner, name, _ignored(f"tf.{path}.{name}", found))
    coordinator = _no_coordinator if servers else stand_in(found)
    for owner in (tf.distribute.coordinator, tf.distribute.experimental.coordinator):
        put.put(owner, "ClusterCoordinator", coordinator)
    put.put(tf.distribute, "Server", _ignored("tf.distribute.Server", found))
    put.put(tf.distribute.cluster_resolver, "TPUClusterResolver", _TpuResolver)
    resolver = getattr(strategy, "cluster_resolver", None)
    if resolver is None:
        put.put(type(strategy), "cluster_resolver", property(lambda _self: _resolver()))
    elif isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy):
        # A script may remove TF_CONFIG before it makes its strategy. Then each rank would be its own chief.
        fixed = tf.distribute.cluster_resolver.SimpleClusterResolver(
            resolver.cluster_spec(), task_type=resolver.task_type, task_id=resolver.task_id
        )
        put.put(type(strategy), "cluster_resolver", property(lambda _self: fixed))


def keep_scope(put: Replacements, keras: Any, found: Found) -> None:
    """Ignore ``clear_session``: it replaces the default graph, and the graph knows in which ``scope()`` the script is.

    Scripts call it first, to remove what earlier runs in a notebook have made.
    """
    import tensorflow as tf

    for owner in (keras.backend, keras.utils, tf.keras.backend, tf.keras.utils):
        if hasattr(owner, "clear_session"):
            put.put(owner, "clear_session", _ignored(f"{keras.__name__}.clear_session", found))


def _constructor(name: str, original: Any, strategy: Any, found: Found) -> Any:
    def give() -> Any:
        found.add("strategies", f"{name} at {place()}")
        return strategy

    return _Constructor(name, (), {"original": original, "give": staticmethod(give)})


def _ignored(name: str, found: Found) -> Any:
    def ignore(*_args: Any, **_kwargs: Any) -> None:
        found.add("ignored", name)

    return ignore


def _no_coordinator(*_args: Any, **_kwargs: Any) -> Any:
    raise NotSeenError(
        f"{place()}: the loop of a ClusterCoordinator is not followed under parameter servers. Use another "
        "strategy, or write it as `for loss in run.steps(train_step, dataset)` in a function train(run), and use "
        "`pytest-ddl check`"
    )


class _TpuResolver:
    """Stand-in for the class that finds a TPU. Its instances are resolvers of a single worker."""

    def __new__(cls, *_args: Any, **_kwargs: Any) -> Any:
        return _resolver()

    @staticmethod
    def connect(*_args: Any, **_kwargs: Any) -> Any:
        """Return a resolver, as the class method of TensorFlow does after it has initialized the TPU."""
        return _resolver()


def _resolver() -> Any:
    """Return the resolver of a single worker, for a script that asks for its task under a strategy without tasks."""
    import tensorflow as tf

    cluster = tf.train.ClusterSpec({"worker": ["localhost:1"]})
    return tf.distribute.cluster_resolver.SimpleClusterResolver(cluster, task_type="worker", task_id=0)


def tell_replicas(put: Replacements, strategy: Any, told: int, meaning: Meaning, found: Found) -> None:
    """Let the script read ``told`` as the number of replicas. TensorFlow and Keras still read the true number."""
    import tensorflow as tf

    original = type(strategy).num_replicas_in_sync

    def num_replicas_in_sync(self: Any) -> Any:
        true = original.fget(self)
        if not _caller_is_program():
            return true
        found.counts_replicas = True
        inside = tf.distribute.has_strategy() and not tf.distribute.in_cross_replica_context()
        if meaning in (Meaning.NOTHING, Meaning.OWN) or (inside and meaning is Meaning.BATCHES):
            return true
        found.told.setdefault(place())
        return told

    put.put(type(strategy), "num_replicas_in_sync", property(num_replicas_in_sync))


def _caller_is_program() -> bool:
    return not sys._getframe(2).f_code.co_filename.startswith(frames.frameworks())


@contextmanager
def cluster_of_one_worker(code: str) -> Iterator[None]:
    """Set ``TF_CONFIG`` for a script that reads it, if the rank has none."""
    if "TF_CONFIG" not in code or "TF_CONFIG" in os.environ:
        yield
        return
    task = {"type": "worker", "index": 0}
    os.environ["TF_CONFIG"] = json.dumps({"cluster": {"worker": ["localhost:1"]}, "task": task})
    try:
        yield
    finally:
        os.environ.pop("TF_CONFIG", None)
