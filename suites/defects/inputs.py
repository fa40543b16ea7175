"""Defects of distributed input."""

from __future__ import annotations

from typing import Any

from suites.defects.registry import defect, put, replace


@defect(r"test_input_sharding\.py::test_(the_context.*multi_worker|workers_make)")
def every_worker_is_the_first() -> None:
    """A dataset function gets the input context of the first worker on each worker."""
    import tensorflow as tf

    put(tf.distribute.InputContext, "input_pipeline_id", property(lambda self: 0))


@defect(r"test_input_sharding\.py::test_(the_context|a_pipeline)")
def batch_size_without_remainder() -> None:
    """The batch size of a replica is rounded down."""
    import tensorflow as tf

    def make(original: Any) -> Any:
        return lambda self, size: max(1, size // (self.num_replicas_in_sync + 1))

    replace(tf.distribute.InputContext, "get_per_replica_batch_size", make)


@defect(
    r"test_input\.py::test_every|test_input_iterators\.py::test_(an_iterator|a_loop|the_spec|an_infinite|shuf|struct|sparse)"
    r"|test_input_sharding\.py::test_workers_(share|read)"
    r"|test_input_sources\.py::test_(options|shapes|reduce|python|a_service)"
)
def first_batch_is_lost() -> None:
    """A distributed dataset omits the first element."""
    import tensorflow as tf

    def make(original: Any) -> Any:
        def distribute(self: Any, dataset: Any, options: Any = None) -> Any:
            return original(self, dataset.skip(1) if isinstance(dataset, tf.data.Dataset) else dataset, options)

        return distribute

    replace(tf.distribute.Strategy, "experimental_distribute_dataset", make)


@defect(r"test_input_sharding\.py::test_workers_make|test_input_sources\.py::test_a_pipeline")
def pipelines_lose_their_first_element() -> None:
    """A dataset of a dataset function omits its first element."""
    import tensorflow as tf

    def make(original: Any) -> Any:
        def distribute(self: Any, dataset_fn: Any, options: Any = None) -> Any:
            return original(self, lambda context: dataset_fn(context).skip(1), options)

        return distribute

    replace(tf.distribute.Strategy, "distribute_datasets_from_function", make)


@defect(r"test_input_sharding\.py::test_(workers_share|fewer)")
def no_sharding() -> None:
    """No dataset is sharded: each worker reads all."""
    from tensorflow.python.data.experimental.ops import distribute

    def make(original: Any) -> Any:
        return lambda dataset, *args, **kwargs: dataset

    replace(distribute, "_AutoShardDataset", make)


@defect(r"test_input(_iterators)?\.py::test_(every|an_iterator|struct)")
def examples_in_reverse() -> None:
    """The parts of a batch go to the replicas in reverse order."""
    from tensorflow.python.distribute import input_lib

    def make(original: Any) -> Any:
        def get_next(self: Any, *args: Any, **kwargs: Any) -> Any:
            import tensorflow as tf

            def turned(value: Any) -> Any:
                parts = getattr(value, "values", None)
                return type(value)(tuple(reversed(parts))) if isinstance(parts, tuple) else value

            found = original(self, *args, **kwargs)
            return tf.nest.map_structure(turned, found) if isinstance(found, tuple | dict) else turned(found)

        return get_next

    replace(input_lib.DistributedIteratorBase, "get_next", make)
    replace(input_lib.DistributedIteratorBase, "__next__", make)


@defect(r"test_input_iterators\.py::test_(an_iterator|shuffled)")
def iterators_never_begin_again() -> None:
    """Each loop over a distributed dataset takes up the first iterator again."""
    from tensorflow.python.distribute import input_lib

    def make(original: Any) -> Any:
        def iterate(self: Any) -> Any:
            if not hasattr(self, "_first_iterator"):
                self._first_iterator = original(self)
            return self._first_iterator

        return iterate

    for kind in (input_lib.DistributedDataset, input_lib.DistributedDatasetsFromFunction):
        replace(kind, "__iter__", make)


@defect(r"test_input\.py::test_(batch_sizes|replicas_get)")
def first_replica_takes_what_the_last_should() -> None:
    """The first replica gets its part of a batch, and that of the last one."""
    import tensorflow as tf
    from tensorflow.python.data.experimental.ops import distribute

    def make(original: Any) -> Any:
        def sizes(*args: Any, **kwargs: Any) -> Any:
            found = original(*args, **kwargs)
            moved = tf.one_hot(0, tf.size(found), dtype=found.dtype) - tf.one_hot(
                tf.size(found) - 1, tf.size(found), dtype=found.dtype
            )
            return found + moved * found[-1]

        return sizes

    replace(distribute, "batch_sizes_for_worker", make)


@defect(r"test_input_iterators\.py::test_an_empty")
def one_element_more() -> None:
    """A distributed dataset has one element of zeros at its end."""
    import tensorflow as tf

    def make(original: Any) -> Any:
        def distribute(self: Any, dataset: Any, options: Any = None) -> Any:
            zeros = tf.data.Dataset.from_tensors(tf.zeros([1], dataset.element_spec.dtype))
            return original(self, dataset.concatenate(zeros), options)

        return distribute

    replace(tf.distribute.Strategy, "experimental_distribute_dataset", make)


@defect(r"test_input_iterators\.py::test_structures_are_kept\w*\[.*numpy")
def numbers_of_numpy_are_larger() -> None:
    """as_numpy_iterator gives each number plus one."""
    import tensorflow as tf
    from tensorflow.python.data.ops import dataset_ops

    def make(original: Any) -> Any:
        def larger(self: Any) -> Any:
            return tf.nest.map_structure(lambda one: None if one is None else one + 1, original(self))

        return larger

    replace(dataset_ops.NumpyIterator, "__next__", make)


@defect(r"test_utilities\.py")
def helpers_answer_otherwise() -> None:
    """Helpers of Keras return leaves in reverse order, one number too much, or doubled values."""
    from suites.subject import keras

    replace(keras.tree, "flatten", lambda original: lambda tree: original(tree)[::-1])
    replace(keras.utils, "pad_sequences", lambda original: lambda *args, **options: original(*args, **options) + 1)
    replace(keras.utils, "normalize", lambda original: lambda *args, **options: 2 * original(*args, **options))
