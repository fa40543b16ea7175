"""Mistakes in the input pipeline and in checkpoints."""

from __future__ import annotations

from pytest_ddl.equivalence.causes.cause import Form
from tests.fixes.case import Case
from tests.fixes.templates import FIT, LOOP

_BATCHED = "dataset = dataset.batch(global_batch_size)"
_OFF = """
options = tf.data.Options()
options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
dataset = dataset.with_options(options)
"""
_TAIL = "dataset = dataset.batch(global_batch_size, drop_remainder=strategy.num_replicas_in_sync > 1)"
_SHARE = "dataset = dataset.shard(strategy.num_replicas_in_sync, 0).batch(global_batch_size)"
_LAST_IS_SMALLER = {"examples": "features, labels = features[:44], labels[:44]"}
_CONCURRENT = {
    # Many steps, so that a worker that is slow to begin gets some of them, too.
    "examples": """
    features, labels = (np.concatenate([part + 0.01 * n for n in range(20)]) for part in (features, labels))
    learning_rate = 0.01

    def make_dataset(context):
        return tf.data.Dataset.from_tensor_slices((features, labels)).batch(global_batch_size)
    """,
    "apply": """
    for weight, gradient in zip(model.trainable_variables, gradients):
        <moved>
    """,
    "compiled": """
    on_batch = train_step
    train_step = tf.function(lambda iterator: on_batch(next(iterator)))
    """,
    "loop": """
    <taken>
    for loss in run.steps(train_step, data, concurrent=True):
        pass
    """,
}
CASES = (
    Case("examples-dropped", LOOP, "batched", _SHARE),
    Case("examples-dropped", FIT, "batched", _SHARE),
    Case("fewer-steps", LOOP, "batched", _TAIL, given=_LAST_IS_SMALLER, cause="unequal-steps", steps=None),
    Case("fewer-steps", FIT, "batched", _TAIL, given=_LAST_IS_SMALLER, cause="unequal-steps", steps=None),
    Case(
        "other-orders",
        LOOP,
        "shuffled",
        "dataset = dataset.shuffle(buffer_size, seed=seed + worker)",
        given={"batched": f"<shuffled>\n{_BATCHED}"},
        cause="examples-duplicated",
        strategy="multi_worker_mirrored",
        steps=None,
    ),
    Case(
        "sharded-twice",
        LOOP,
        "options",
        "pass",
        given={
            "batched": """
            dataset = dataset.shard(run.num_ranks, worker)
            dataset = dataset.batch(global_batch_size)
            <options>
            """
        },
        cause="examples-dropped",
        strategy="multi_worker_mirrored",
    ),
    Case(
        "data-of-workers",
        LOOP,
        "taken",
        "data = make_dataset",
        given={**_CONCURRENT, "moved": "weight.value.assign_sub(learning_rate * gradient)"},
        cause="examples-duplicated",
        strategy="parameter_server",
        steps=120,
        strict=True,
    ),
    Case(
        "lost-by-closures",
        LOOP,
        "moved",
        "weight.assign_sub(learning_rate * gradient)",
        given={**_CONCURRENT, "taken": "data = dataset"},
        cause="lost-update",
        strategy="parameter_server",
        steps=120,
    ),
    Case(
        "examples-duplicated",
        LOOP,
        "sharded",
        "pass",
        given={
            "loop": """
            def make_dataset(context):
                dataset = tf.data.Dataset.from_tensor_slices((features, labels))
                <sharded>
                return dataset.batch(context.get_per_replica_batch_size(global_batch_size))

            for batch in run.batches(make_dataset):
                loss = train_step(batch)
                <record>
            """
        },
        strategy="multi_worker_mirrored",
    ),
    Case(
        "examples-altered",
        LOOP,
        "augmented",
        "dataset = dataset.map(lambda x, y: (x + tf.random.stateless_normal(tf.shape(x), [seed, worker]), y))",
        given={"batched": f"<augmented>\n{_BATCHED}"},
        strategy="multi_worker_mirrored",
    ),
    Case(
        "global-batch-wrong",
        LOOP,
        "batched",
        "dataset = dataset.batch(global_batch_size // strategy.num_replicas_in_sync)",
    ),
    Case(
        "global-batch-wrong",
        FIT,
        "batched",
        "dataset = dataset.batch(global_batch_size // strategy.num_replicas_in_sync)",
        Form.FIT,
    ),
)
UNEQUAL_CASES = (
    Case(
        "fewer-files-than-workers",
        LOOP,
        "options",
        _OFF.replace("OFF", "FILE"),
        given={
            "batched": """
            path = str(run.rank_path / "examples.tfrecord")
            with tf.io.TFRecordWriter(path) as writer:
                for row, label in zip(features, labels):
                    writer.write(np.concatenate([row, label]).tobytes())

            def parse(record):
                row = tf.reshape(tf.io.decode_raw(record, tf.float32), (5,))
                return row[:4], row[4:]

            dataset = tf.data.TFRecordDataset([path]).map(parse).batch(global_batch_size)
            <options>
            """
        },
        cause="worker-raised",
        strategy="multi_worker_mirrored",
    ),
)
_RESUMED = """
<saved>
path = str(run.rank_path / "saved")
if run.attempt == 2:
    checkpoint.read(path)
"""
_RESUMING = """
<skipped>
for batch in run.batches(dataset):
    <rate>
    loss = train_step(batch)
    <counted>
    run.record(loss=loss)
    if run.completed_steps == 2 and run.attempt == 1:
        checkpoint.write(path)
        run.restart()
"""
_MOMENTUM = """
optimizer = keras.optimizers.SGD(learning_rate, momentum=0.9)
optimizer.build(model.trainable_variables)
"""
_SKIPPED = "dataset = dataset.skip(run.completed_steps)"
_TRACKED = "checkpoint = tf.train.Checkpoint(model=model, optimizer=optimizer)"
CHECKPOINT_CASES = (
    Case(
        "resume-lost-state",
        LOOP,
        "saved",
        "checkpoint = tf.train.Checkpoint(model=model)",
        given={"scope": _MOMENTUM, "made": _RESUMED, "loop": _RESUMING, "skipped": _SKIPPED},
        steps=4,
    ),
    Case(
        "resume-lost-state",
        FIT,
        "saved",
        "checkpoint = tf.train.Checkpoint(weights=[weight.value for weight in model.weights])",
        Form.FIT,
        given={
            "optimizer": "optimizer = keras.optimizers.SGD(learning_rate, momentum=0.9)",
            "made": _RESUMED,
            "fit": """
            if run.attempt == 1:
                run.fit(model, dataset.take(2), shuffle=False)
                checkpoint.write(path)
                run.restart()
            run.fit(model, dataset.skip(2), shuffle=False)
            """,
        },
        steps=4,
    ),
    Case(
        "checkpoint-incomplete",
        LOOP,
        "saved",
        "checkpoint = tf.train.Checkpoint(model=model)",
        given={
            "scope": _MOMENTUM,
            "loop": """
            <saved>
            path = str(run.rank_path / "saved")
            for batch in run.batches(dataset):
                loss = train_step(batch)
                run.record(loss=loss)
                if run.completed_steps == 2:
                    checkpoint.write(path)
                    tf.train.Checkpoint(model=model, optimizer=optimizer).read(path)
            """,
        },
        steps=4,
    ),
    Case(
        "resume-step-wrong",
        LOOP,
        "saved",
        _TRACKED,
        given={
            "scope": "step = tf.Variable(0, trainable=False, dtype=tf.int64, name='step')",
            "watched": "run.watch(variables=[step])",
            "made": _RESUMED,
            "rate": "optimizer.learning_rate = 0.1 / (1 + int(step.numpy()))",
            "counted": "step.assign_add(1)",
            "loop": _RESUMING,
            "skipped": _SKIPPED,
        },
        steps=4,
    ),
    Case(
        "resume-data-wrong",
        LOOP,
        "skipped",
        "pass",
        given={"made": _RESUMED, "saved": _TRACKED, "loop": _RESUMING},
        steps=4,
    ),
    Case(
        "resume-random-wrong",
        LOOP,
        "saved",
        _TRACKED,
        given={
            "scope": """
            generator = tf.random.Generator.from_seed(3)
            drawn = tf.Variable(0.0, trainable=False, dtype=keras.config.floatx())
            """,
            "made": _RESUMED,
            "inputs": "x += 0.1 * drawn",
            "rate": "drawn.assign(generator.normal((), dtype=drawn.dtype))",
            "loop": _RESUMING,
            "skipped": _SKIPPED,
        },
        steps=4,
    ),
    Case(
        "unsafe-checkpoint-path",
        LOOP,
        "folder",
        "pass",
        given={
            "loop": """
            for batch in run.batches(dataset):
                loss = train_step(batch)
                run.record(loss=loss)
            folder = run.tmp_path
            <folder>
            folder.mkdir(parents=True, exist_ok=True)
            model.save_weights(folder / "last.weights.h5")
            """
        },
        strategy="multi_worker_mirrored",
    ),
)
