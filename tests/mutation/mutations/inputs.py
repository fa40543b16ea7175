"""Mistakes in which examples a replica gets, and in what it makes of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.mutation.mutant import Mutant, mutation, replica_id

LOST, TWICE = "examples-dropped", "examples-duplicated"
SHARDED = ("multi_worker_mirrored",)


@mutation("DATA-COVER", LOST, TWICE)
def all_replicas_read_the_same_part(mutant: Mutant) -> None:
    """The first half of each global batch stands in its second half too."""
    import tensorflow as tf

    def halved(tensor: Any) -> Any:
        half = tensor[: (tf.shape(tensor)[0] + 1) // 2]
        return tf.concat([half, half], axis=0)

    mutant.dataset = _mapping(halved)


@mutation("DATA-COVER", LOST, "global-batch-wrong")
def drop_the_last_example(mutant: Mutant) -> None:
    """The last example of each global batch is left out."""
    mutant.dataset = _mapping(lambda tensor: tensor[:-1])


@mutation("DATA-COVER", TWICE, LOST)
def duplicate_an_example(mutant: Mutant) -> None:
    """The first example of each global batch stands in the place of the last."""
    import tensorflow as tf

    mutant.dataset = _mapping(lambda tensor: tf.concat([tensor[:-1], tensor[:1]], axis=0))


@mutation("BATCH", "global-batch-wrong", TWICE, LOST)
def add_an_example(mutant: Mutant) -> None:
    """The first example of each global batch comes twice."""
    import tensorflow as tf

    mutant.dataset = _mapping(lambda tensor: tf.concat([tensor, tensor[:1]], axis=0))


@mutation("DATA-COVER", LOST, "unequal-steps", programs="uneven")
def drop_the_remainder(mutant: Mutant) -> None:
    """The last batch, which is not full, is left out."""
    mutant.dataset = lambda dataset: dataset.unbatch().batch(mutant.run.global_batch_size, drop_remainder=True)


@mutation("DATA-COVER", LOST)
def skip_the_first_batch(mutant: Mutant) -> None:
    """Training begins with the second global batch."""
    mutant.dataset = lambda dataset: dataset.skip(1)


@mutation("DATA-COVER", TWICE, LOST)
def repeat_the_first_batch(mutant: Mutant) -> None:
    """Every step trains on the first global batch."""
    mutant.dataset = lambda dataset: dataset.take(1).repeat(2)


@mutation("DATA-COVER", LOST, TWICE)
def reverse_the_batches(mutant: Mutant) -> None:
    """The global batches come in another order."""
    mutant.dataset = lambda dataset: dataset.skip(1).concatenate(dataset.take(1))


@mutation("DATA-COVER", TWICE, LOST, strategies=SHARDED)
def every_worker_reads_everything(mutant: Mutant) -> None:
    """The dataset function forgets to shard: all workers train on the same examples."""
    mutant.dataset = _per_worker(mutant, lambda examples, _context: examples)


@mutation("DATA-COVER", TWICE, LOST, strategies=SHARDED)
def every_worker_reads_the_first_shard(mutant: Mutant) -> None:
    """The dataset function shards by a constant in place of the worker's index."""
    mutant.dataset = _per_worker(mutant, lambda examples, context: examples.shard(context.num_input_pipelines, 0))


@mutation("DATA-COVER", TWICE, LOST, strategies=SHARDED)
def every_worker_shuffles_for_itself(mutant: Mutant) -> None:
    """Each worker shuffles with a seed of its own before it takes its shard."""
    mutant.dataset = _per_worker(
        mutant,
        lambda examples, context: examples.shuffle(64, seed=7 + context.input_pipeline_id).shard(
            context.num_input_pipelines, context.input_pipeline_id
        ),
    )


@mutation("BATCH", "global-batch-wrong", LOST, TWICE, strategies=SHARDED)
def every_worker_takes_a_global_batch(mutant: Mutant) -> None:
    """The dataset function makes batches of the global size for each replica."""
    mutant.dataset = _per_worker(
        mutant,
        lambda examples, context: examples.shard(context.num_input_pipelines, context.input_pipeline_id),
        whole=True,
    )


@mutation("STEP-EQ", "examples-dropped")
def replica_ignores_an_example(mutant: Mutant) -> None:
    """Replica 1 leaves the last of its examples out, within its replica function."""
    import tensorflow as tf

    def batch(given: Any) -> Any:
        def cut(tensor: Any) -> Any:
            return tensor[: tf.shape(tensor)[0] - tf.cast(mutant.is_second_replica, tf.int32)]

        return tf.nest.map_structure(cut, given)

    mutant.batch = batch


@mutation("STEP-EQ", "examples-duplicated", LOST)
def replica_repeats_an_example(mutant: Mutant) -> None:
    """Replica 1 trains on its first example in place of its last."""
    import tensorflow as tf

    def batch(given: Any) -> Any:
        def replaced(tensor: Any) -> Any:
            changed = tf.concat([tensor[:-1], tensor[:1]], axis=0)
            return tf.cond(mutant.is_second_replica, lambda: changed, lambda: tensor)

        return tf.nest.map_structure(replaced, given)

    mutant.batch = batch


@mutation("STEP-EQ")
def replica_mixes_up_its_labels(mutant: Mutant) -> None:
    """Replica 1 gives each example the label of its neighbour."""
    import tensorflow as tf

    def batch(given: Any) -> Any:
        inputs, labels = given
        shift = tf.cast(mutant.is_second_replica, tf.int32)
        return inputs, tf.roll(labels, shift, axis=0)

    mutant.batch = batch


@mutation("SEED", "random-stream-repeated-across-replicas", in_reference=True, programs="mlp")
def same_mask_on_every_replica(mutant: Mutant) -> None:
    """Inputs are dropped by random numbers that all replicas draw alike."""
    mutant.batch = _masking(mutant, lambda _mutant: 0)


@mutation("SEED", "random-stream-repeated-across-steps", in_reference=True, programs="mlp")
def same_mask_in_every_step(mutant: Mutant) -> None:
    """Inputs are dropped by random numbers that differ over replicas, and are the same in every step."""
    mutant.batch = _masking(mutant, lambda _mutant: replica_id(), constant=True)


def _masking(mutant: Mutant, stream: Callable[[Mutant], Any], constant: bool = False) -> Callable[[Any], Any]:
    import tensorflow as tf

    optimizers: list[Any] = []
    mutant.built = lambda _model, optimizer: optimizers.append(optimizer)

    def batch(given: Any) -> Any:
        inputs, labels = given
        step = 0 if constant else tf.cast(tf.convert_to_tensor(optimizers[0].iterations), tf.int32)
        seed = tf.stack([tf.cast(stream(mutant), tf.int32), step])
        kept = tf.random.stateless_uniform(tf.shape(inputs), seed) < 0.5
        return tf.where(kept, 2 * inputs, tf.zeros_like(inputs)), labels

    return batch


def _mapping(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda dataset: dataset.map(lambda *element: tuple(function(tensor) for tensor in element))


def _per_worker(mutant: Mutant, chosen: Callable[[Any, Any], Any], whole: bool = False) -> Callable[[Any], Any]:
    """A dataset function of the program's dataset: the worker's examples by ``chosen``, in batches of a replica."""

    def replaced(dataset: Any) -> Any:
        def of_worker(context: Any) -> Any:
            size = mutant.run.global_batch_size
            per_replica = size if whole else context.get_per_replica_batch_size(size)
            return chosen(dataset.unbatch(), context).batch(per_replica)

        return of_worker

    return replaced
