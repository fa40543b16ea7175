"""Check which examples each worker reads: every policy of automatic sharding, with files, and with uneven workers."""

from __future__ import annotations

from itertools import chain

import pytest

from pytest_ddl import RankError, current_rank, current_strategy
from suites.properties.inputs import MODES, epoch, flat, ids, joined

WORKERS = "multi_worker_mirrored"
ROWS = (4, 3, 5, 2)
"""Number of examples in each file. Example 10 * f + r is row r of file f."""
FILES = [[10 * file + row for row in range(rows)] for file, rows in enumerate(ROWS)]
ALL = [example for rows in FILES for example in rows]
KINDS = ("tfrecord", "text", "fixed", "interleave")


def write(folder, kind, files=FILES):
    """Write the examples as text, one file for each list, and return the paths."""
    import tensorflow as tf

    paths = [str(folder / f"{kind}-{index}") for index in range(len(files))]
    for path, rows in zip(paths, files, strict=True):
        texts = [f"{example:04d}" for example in rows]
        if kind in ("tfrecord", "interleave"):
            with tf.io.TFRecordWriter(path) as writer:
                for text in texts:
                    writer.write(text)
        else:
            ending = "\n" if kind == "text" else ""
            with open(path, "w", encoding="ascii") as stream:
                stream.writelines(text + ending for text in texts)
    return paths


def read(kind, paths, batch=4):
    """Return a dataset of batches of the examples in the files."""
    import tensorflow as tf

    if kind == "tfrecord":
        dataset = tf.data.TFRecordDataset(paths)
    elif kind == "text":
        dataset = tf.data.TextLineDataset(paths)
    elif kind == "fixed":
        dataset = tf.data.FixedLengthRecordDataset(paths, 4)
    else:
        listed = tf.data.Dataset.from_tensor_slices(paths)
        dataset = listed.interleave(tf.data.TFRecordDataset, cycle_length=2, block_length=1)
    return dataset.map(lambda text: tf.strings.to_number(text, tf.int64)).batch(batch)


def sharded(dataset, policy):
    """Return the dataset with a policy of automatic sharding."""
    import tensorflow as tf

    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = getattr(tf.data.experimental.AutoShardPolicy, policy)
    return dataset.with_options(options)


def read_files(kind, paths, policy, how="eager"):
    """Return the epoch of a rank."""
    strategy = current_strategy()
    dataset = sharded(read(kind, paths), policy)
    return ids(epoch(strategy, strategy.experimental_distribute_dataset(dataset), how))


def policies(*names):
    """Return parameters that name the item of their policy."""
    return [pytest.param(name, marks=pytest.mark.ddl_item(f"input.dataset.cover.{name}")) for name in names]


@pytest.mark.ddl_item("input.tfrecord")
@pytest.mark.ddl(strategies=[WORKERS, f"{WORKERS}[workers=3]"])
@pytest.mark.parametrize("policy", policies("FILE", "AUTO"))
@pytest.mark.parametrize("kind", KINDS)
def test_workers_share_the_files(ddl_cluster, tmp_path, kind, policy):
    """Worker w of W reads the files w, w + W, ... as a whole."""
    shares = [flat(steps) for steps in ddl_cluster.run(read_files, kind, write(tmp_path, kind), policy)]
    for worker, share in enumerate(shares):
        expected = [example for rows in FILES[worker :: len(shares)] for example in rows]
        assert sorted(share) == sorted(expected)


@pytest.mark.ddl_item("input.tfrecord")
@pytest.mark.ddl(strategies=WORKERS)
@pytest.mark.parametrize("policy", policies("DATA"))
@pytest.mark.parametrize("kind", KINDS)
def test_workers_share_the_examples_of_files(ddl_cluster, tmp_path, kind, policy):
    paths = write(tmp_path, kind)
    steps = joined(ddl_cluster.run(read_files, kind, paths, policy))
    order = [int(example) for batch in read(kind, paths) for example in batch]
    assert sorted(order) == ALL
    assert flat(steps) == order


@pytest.mark.ddl(strategies=WORKERS)
@pytest.mark.ddl_item("input.dataset.cover.OFF")
def test_workers_read_everything(ddl_cluster, tmp_path):
    for steps in ddl_cluster.run(read_files, "text", write(tmp_path, "text"), "OFF"):
        assert flat(steps) == ALL


@pytest.mark.ddl(strategies=WORKERS)
@pytest.mark.parametrize("how", MODES)
@pytest.mark.parametrize("policy", policies("DATA"))
def test_workers_share_a_single_file(ddl_cluster, tmp_path, policy, how):
    paths = write(tmp_path, "tfrecord", [ALL])
    assert flat(joined(ddl_cluster.run(read_files, "tfrecord", paths, policy, how))) == ALL


@pytest.mark.ddl(strategies=WORKERS, timeout=60)
@pytest.mark.parametrize(
    "policy",
    [
        pytest.param(name, marks=pytest.mark.ddl_item(f"input.dataset.cover.{name}", shows="behavior"))
        for name in ("FILE", "AUTO")
    ],
)
def test_fewer_files_than_workers_is_an_error(ddl_cluster, tmp_path, policy):
    """AUTO does not fall back to sharding by data here. One worker raises; the other waits for it."""
    paths = write(tmp_path, "text", [ALL])
    with pytest.raises(RankError, match="not enough for the required 2 shards"):
        ddl_cluster.run(read_files, "text", paths, policy)


def read_memory(policy, how):
    """Return the epoch of a rank that reads 11 numbers in batches of 4, which only the policy may shard."""
    import tensorflow as tf

    strategy = current_strategy()
    dataset = tf.data.Dataset.range(11)
    if policy == "HINT":
        dataset = dataset.shard(tf.data.experimental.SHARD_HINT, tf.data.experimental.SHARD_HINT)
    dataset = sharded(dataset.batch(4), policy)
    return ids(epoch(strategy, strategy.experimental_distribute_dataset(dataset), how))


@pytest.mark.ddl(strategies=[WORKERS, f"{WORKERS}[workers=3]"])
@pytest.mark.parametrize("how", MODES)
@pytest.mark.parametrize("policy", policies("AUTO", "DATA", "HINT", "OFF"))
def test_workers_share_numbers(ddl_cluster, policy, how):
    shares = [flat(steps) for steps in ddl_cluster.run(read_memory, policy, how)]
    for worker, share in enumerate(shares):
        if policy == "HINT":
            assert share == list(range(11))[worker :: len(shares)]
        elif policy == "OFF":
            assert share == list(range(11))
    if policy != "OFF":
        assert sorted(chain(*shares)) == list(range(11))


def read_uneven(numbers, how):
    """Return the epoch of a rank whose pipeline has a number of examples of its own."""
    import tensorflow as tf

    strategy = current_strategy()

    def make(context):
        worker = context.input_pipeline_id
        examples = tf.data.Dataset.range(100 * worker, 100 * worker + numbers[worker])
        return examples.map(lambda example: (example, tf.fill([3], tf.cast(example, "float32")))).batch(2)

    steps = epoch(strategy, strategy.distribute_datasets_from_function(make), how)
    # The shape and the dtype show that an empty piece can be used as any other.
    return [[(x.tolist(), x.dtype.name, y.shape[1:], y.dtype.name) for x, y in parts] for parts in steps]


@pytest.mark.ddl_item("input.dataset.uneven_workers", "input.dataset.empty", "input.from_function")
@pytest.mark.ddl(strategies=WORKERS)
@pytest.mark.parametrize("how", MODES)
@pytest.mark.parametrize("numbers", [(5, 1), (0, 3), (2, 6), (0, 0)], ids=str)
def test_workers_make_the_same_number_of_steps(ddl_cluster, numbers, how):
    """A worker without examples gets empty pieces until the last worker has read its own."""
    ranks = ddl_cluster.run(read_uneven, numbers, how)
    for worker, steps in enumerate(ranks):
        assert len(steps) == -(-max(numbers) // 2)
        examples = [example for parts in steps for piece in parts for example in piece[0]]
        assert examples == list(range(100 * worker, 100 * worker + numbers[worker]))
        assert {piece[1:] for parts in steps for piece in parts} <= {("int64", (3,), "float32")}


@pytest.mark.ddl_item("input.input_context", "input.from_function", shows="behavior")
@pytest.mark.ddl(strategies=["one_device", "mirrored", "mirrored[replicas=3]", WORKERS, "central_storage"])
def test_the_context_of_a_pipeline(ddl_strategy):
    """One call in each worker, with the number of the worker and of all replicas."""
    import tensorflow as tf

    contexts = []

    def make(context):
        contexts.append(context)
        return tf.data.Dataset.range(4).batch(2)

    ddl_strategy.distribute_datasets_from_function(make)
    (context,) = contexts
    replicas = ddl_strategy.num_replicas_in_sync
    workers = current_rank().num_ranks
    assert (context.num_input_pipelines, context.input_pipeline_id) == (workers, current_rank().rank)
    assert context.num_replicas_in_sync == replicas
    assert context.get_per_replica_batch_size(replicas * 5) == 5
    if replicas > 1:
        with pytest.raises(ValueError, match="not divisible"):
            context.get_per_replica_batch_size(replicas * 5 + 1)


@pytest.mark.ddl_item("input.input_context", "input.from_function")
@pytest.mark.ddl(strategies=["one_device", "mirrored", "mirrored[replicas=3]", WORKERS, "central_storage"])
@pytest.mark.parametrize("how", MODES)
def test_a_pipeline_that_reads_its_own_shard(how, ddl_strategy):
    """Each worker takes every n-th number, and each of its replicas a batch of the size that the context says."""
    import tensorflow as tf

    replicas, workers, rank = ddl_strategy.num_replicas_in_sync, current_rank().num_ranks, current_rank().rank
    size, here = 2, replicas // workers

    def make(context):
        shard = tf.data.Dataset.range(4 * size * replicas).shard(context.num_input_pipelines, context.input_pipeline_id)
        return shard.batch(context.get_per_replica_batch_size(size * replicas))

    steps = epoch(ddl_strategy, ddl_strategy.distribute_datasets_from_function(make), how)
    own = list(range(rank, 4 * size * replicas, workers))
    expected = [
        [own[start + size * r : start + size * (r + 1)] for r in range(here)]
        for start in range(0, len(own), size * here)
    ]
    assert ids(steps) == expected
