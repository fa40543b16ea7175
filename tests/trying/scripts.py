"""Scripts in the shapes of common tutorials, which :mod:`test_scripts` runs and breaks."""

FIT = """
import tensorflow as tf

strategy = tf.distribute.MirroredStrategy()
(x_train, y_train), (x_test, y_test) = tf.keras.datasets.mnist.load_data()
x_train, x_test = x_train[:400] / 255.0, x_test[:40] / 255.0
BATCH_SIZE = 4 * strategy.num_replicas_in_sync
train = tf.data.Dataset.from_tensor_slices((x_train, y_train[:400])).shuffle(100).batch(BATCH_SIZE)
test = tf.data.Dataset.from_tensor_slices((x_test, y_test[:40])).batch(BATCH_SIZE)

with strategy.scope():
    model = tf.keras.Sequential([tf.keras.layers.Flatten(), tf.keras.layers.Dense(10)])
    loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(loss=loss, optimizer=tf.keras.optimizers.SGD(0.1))

callback = tf.keras.callbacks.ModelCheckpoint("at_{epoch}.weights.h5", save_weights_only=True)
model.fit(train, epochs=12, callbacks=[callback])
model.evaluate(test)
model.save_weights("last.weights.h5")
with strategy.scope():
    model.load_weights("last.weights.h5")
"""

NO_STRATEGY = """
import keras
import numpy as np

rng = np.random.default_rng(0)
x = rng.normal(size=(200, 4)).astype("float32")

def main():
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile(optimizer=keras.optimizers.SGD(0.1), loss="mse")
    model.fit(x, x.sum(axis=1), batch_size=8, epochs=3, shuffle=False, validation_split=0.1, verbose=2)

if __name__ == "__main__":
    main()
"""

CLEARED = NO_STRATEGY.replace("import numpy", "import tensorflow as tf\nimport numpy").replace(
    "rng =", "tf.keras.backend.clear_session()\nkeras.utils.clear_session()\nrng ="
)

METRIC_BEFORE_LOSS = """
import numpy as np
import tensorflow as tf

strategy = tf.distribute.MirroredStrategy()
BATCH = 4 * strategy.num_replicas_in_sync
x = np.random.default_rng(0).normal(size=(64, 3)).astype("float32")
dataset = tf.data.Dataset.from_tensor_slices((x, x[:, :1])).batch(BATCH)
with strategy.scope():
    model = tf.keras.Sequential([tf.keras.Input((3,)), tf.keras.layers.Dense(1)])
    optimizer = tf.keras.optimizers.SGD(0.1)
    optimizer.build(model.trainable_variables)
    mean = tf.keras.metrics.Mean()

def step(x, y):
    with tf.GradientTape() as tape:
        losses = tf.square(model(x) - y)[:, 0]
        loss = tf.nn.compute_average_loss(losses, global_batch_size=BATCH)
    optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
    mean.update_state(losses)
    return loss

@tf.function
def train_step(x, y):
    return strategy.run(step, args=(x, y))

for features, targets in strategy.experimental_distribute_dataset(dataset):
    parts = train_step(features, targets)
    print("mean so far", float(mean.result()))
    print("this batch", float(strategy.reduce("SUM", parts, axis=None)))
"""

INNER_STEPS = (
    METRIC_BEFORE_LOSS[: METRIC_BEFORE_LOSS.index("@tf.function")].replace(".batch(", ".repeat().batch(")
    + """
@tf.function
def train_steps(iterator, steps):
    for _ in tf.range(steps):
        strategy.run(step, args=next(iterator))

iterator = iter(strategy.experimental_distribute_dataset(dataset))
for epoch in range(2):
    train_steps(iterator, tf.constant(8))
"""
)

DROPOUT_AND_SPLIT = """
import numpy as np
import tensorflow as tf

x = np.random.default_rng(0).normal(size=(200, 6)).astype("float32")
y = (x.sum(axis=1) > 0).astype("int32")
strategy = tf.distribute.MirroredStrategy()
with strategy.scope():
    layers = [tf.keras.layers.Dense(8), tf.keras.layers.Dropout(0.3), tf.keras.layers.Dense(2)]
    model = tf.keras.Sequential(layers)
    loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer="adam", loss=loss, metrics=["accuracy"])
history = model.fit(x, y, epochs=2, validation_split=0.1)
print(history.history["val_accuracy"][-1])
"""

OF_KAGGLE = """
import numpy as np
import tensorflow as tf

try:
    tpu = tf.distribute.cluster_resolver.TPUClusterResolver.connect()
    print("on", tpu.master())
    strategy = tf.distribute.TPUStrategy(tpu)
except ValueError:
    strategy = tf.distribute.get_strategy()

x = np.random.default_rng(0).normal(size=(64, 3)).astype("float32")
with strategy.scope():
    model = tf.keras.Sequential([tf.keras.Input((3,)), tf.keras.layers.Dense(1)])
    model.compile("sgd", "mse")
model.fit(x, x[:, :1], batch_size=8)
"""

RATE_OF_REPLICAS = """
import numpy as np
import tensorflow as tf

strategy = tf.distribute.MirroredStrategy()
BATCH = 4 * strategy.num_replicas_in_sync


def rate(epoch):
    top = 0.01 * strategy.num_replicas_in_sync
    return 0.001 if epoch < 1 else top


x = np.random.default_rng(0).normal(size=(64, 3)).astype("float32")
data = tf.data.Dataset.from_tensor_slices((x, x[:, :1])).batch(BATCH)
with strategy.scope():
    model = tf.keras.Sequential([tf.keras.Input((3,)), tf.keras.layers.Dense(1)])
    model.compile("sgd", "mse")
model.fit(data, validation_data=data, epochs=3, callbacks=[tf.keras.callbacks.LearningRateScheduler(rate)])
"""

CONSTANT_DATA = OF_KAGGLE.replace("x = np.random.default_rng(0).normal(size=(64, 3))", "x = np.ones((64, 3))")

OWN_LOOP_WITHOUT_STRATEGY = """
import keras
import tensorflow as tf

model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
optimizer = keras.optimizers.SGD(0.1)
for x in tf.data.Dataset.from_tensor_slices(keras.random.normal((40, 4), seed=1)).batch(4):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(model(x) ** 2)
    optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
"""

ASSIGNED = """
import tensorflow as tf

weight = tf.Variable(1.0)
for step in range(9):
    with tf.GradientTape() as tape:
        loss = (weight - 2.0) ** 2
    weight.assign_sub(0.1 * tape.gradient(loss, weight))
"""

LOOP = """
import numpy as np
import tensorflow as tf

strategy = tf.distribute.MirroredStrategy()
PER_REPLICA = 4
GLOBAL_BATCH_SIZE = PER_REPLICA * strategy.num_replicas_in_sync
rng = np.random.default_rng(0)
x = rng.normal(size=(200, 4)).astype("float32")
y = x.sum(axis=1, keepdims=True)
# data
dataset = tf.data.Dataset.from_tensor_slices((x, y)).batch(GLOBAL_BATCH_SIZE)
dist_dataset = strategy.experimental_distribute_dataset(dataset)
# end of data
with strategy.scope():
    dense = tf.keras.layers.Dense
    model = tf.keras.Sequential([tf.keras.Input((4,)), dense(8, activation="tanh"), dense(1)])
    optimizer = tf.keras.optimizers.SGD(0.1)
    optimizer.build(model.trainable_variables)
    checkpoint = tf.train.Checkpoint(model=model, optimizer=optimizer)

def train_step(inputs):
    x, y = inputs
    with tf.GradientTape() as tape:
        losses = tf.reduce_sum((model(x, training=True) - y) ** 2, axis=-1)
        loss = tf.nn.compute_average_loss(losses, global_batch_size=GLOBAL_BATCH_SIZE)
    gradients = tape.gradient(loss, model.trainable_variables)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables))
    return loss

def test_step(inputs):
    return tf.reduce_mean(model(inputs[0], training=False))

@tf.function
def distributed_train_step(inputs):
    return strategy.reduce(tf.distribute.ReduceOp.SUM, strategy.run(train_step, args=(inputs,)), axis=None)

@tf.function
def distributed_test_step(inputs):
    return strategy.run(test_step, args=(inputs,))

for epoch in range(3):
    total = 0.0
    for batch in dist_dataset:
        total += distributed_train_step(batch)
    for batch in dist_dataset:
        distributed_test_step(batch)
    checkpoint.save("training_checkpoints/ckpt")
    print(epoch, float(total))
"""

COUNTED = LOOP.replace(
    "    checkpoint =",
    "    seen = tf.Variable(0.0, trainable=False, aggregation=tf.VariableAggregation.SUM)\n    checkpoint =",
).replace("    return loss\n", "    seen.assign_add(tf.cast(tf.shape(x)[0], tf.float32))\n    return loss\n")
"""It counts its examples in a variable of its own."""

SHAPED = LOOP.replace(
    "PER_REPLICA * strategy.num_replicas_in_sync", "8\nPER_REPLICA = 8 // strategy.num_replicas_in_sync"
).replace("    x, y = inputs\n    with", "    x, y = inputs\n    x = tf.ensure_shape(x, (PER_REPLICA, 4))\n    with")
"""The size of a replica's batch is fixed, so that one device can only run it with its own number of replicas."""

AVERAGE = "tf.nn.compute_average_loss(losses, global_batch_size=GLOBAL_BATCH_SIZE)"
DATA = LOOP[LOOP.index("# data") : LOOP.index("# end of data")]

FROM_FUNCTION = LOOP.replace(
    DATA,
    """
def dataset_fn(context):
    batch_size = context.get_per_replica_batch_size(GLOBAL_BATCH_SIZE)
    dataset = tf.data.Dataset.from_tensor_slices((x, y))
    dataset = dataset.shard(context.num_input_pipelines, context.input_pipeline_id)
    return dataset.batch(batch_size)

dist_dataset = strategy.distribute_datasets_from_function(dataset_fn)
""",
)

TWO_WORKERS = """
import json, os
import tensorflow as tf

workers = len(json.loads(os.environ["TF_CONFIG"])["cluster"]["worker"])
""" + FROM_FUNCTION.replace("MirroredStrategy()", "MultiWorkerMirroredStrategy()").replace(
    '"training_checkpoints/ckpt"', '"worker%d/ckpt" % strategy.cluster_resolver.task_id'
)

OWN_ITERATOR = (
    LOOP[: LOOP.index("@tf.function")]
    + """
@tf.function
def distributed_train_step(iterator):
    return strategy.reduce("SUM", strategy.run(train_step, args=(next(iterator),)), axis=None)

iterator = iter(dist_dataset)
for step in range(1000):
    distributed_train_step(iterator)
"""
)

EAGER = LOOP.replace("@tf.function\n", "")

NOT_BUILT = (
    LOOP.replace("    optimizer.build(model.trainable_variables)\n", "")
    .replace("tf.keras.Input((4,)), ", "")
    .replace("SGD(0.1)", "Adam()")
)

COORDINATOR = """
import tensorflow as tf

strategy = tf.distribute.experimental.ParameterServerStrategy(None)
coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
"""

COORDINATOR_LOOP = (
    """
import portpicker
import tensorflow as tf

cluster = tf.train.ClusterSpec({"worker": ["localhost:%d" % portpicker.pick_unused_port()]})
tf.distribute.Server(cluster, job_name="worker", task_index=0)
"""
    + FROM_FUNCTION[: FROM_FUNCTION.index("@tf.function")].replace(
        "dist_dataset = strategy.distribute_datasets_from_function(dataset_fn)\n", ""
    )
    + """
@tf.function
def scheduled_step(iterator):
    return strategy.reduce("SUM", strategy.run(train_step, args=(next(iterator),)), axis=None)

@tf.function
def per_worker_dataset_fn():
    return strategy.distribute_datasets_from_function(dataset_fn)

coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
iterator = iter(coordinator.create_per_worker_dataset(per_worker_dataset_fn))
for step in range(10):
    loss = coordinator.schedule(scheduled_step, args=(iterator,))
coordinator.join()
print(loss.fetch())
"""
)

VALUES = LOOP.replace(
    "for epoch in range(3):",
    "strategy.experimental_distribute_values_from_function(lambda context: tf.constant(1.0))\nfor epoch in range(3):",
)

OWN_DEFAULT = FIT.replace(
    "BATCH_SIZE =", "print(tf.distribute.get_strategy().reduce('SUM', 1.0, axis=None))\nBATCH_SIZE ="
)

ONE_EXAMPLE = FIT.replace("4 * strategy.num_replicas_in_sync", "1")

RESTORES = """
import os
import tensorflow as tf

strategy = tf.distribute.MirroredStrategy()
with strategy.scope():
    model = tf.keras.Sequential([tf.keras.Input((4,)), tf.keras.layers.Dense(1)])
    model.compile(loss="mse", optimizer=tf.keras.optimizers.SGD(0.1))
if os.path.exists("/tmp/pytest-ddl-a-name-of-its-own.weights.h5"):
    model.load_weights("/tmp/pytest-ddl-a-name-of-its-own.weights.h5")
model.fit(tf.data.Dataset.range(32).map(lambda n: (tf.cast([n, 1, 2, 3], tf.float32) / 32, tf.ones(1))).batch(8))
model.save_weights("/tmp/pytest-ddl-a-name-of-its-own.weights.h5")
"""

UNEVEN_FROM_FUNCTION = FROM_FUNCTION.replace(
    "    return dataset.batch(batch_size)\n", "    return dataset.take(14).batch(batch_size).repeat()\n"
)
"""The fourth batch of the input pipeline is smaller, and two replicas get it together with a whole one."""

KERAS_2 = (
    FIT[: FIT.index("callback =")]
    + """
model.fit(train)
model.save("/tmp/saved_model")
with strategy.scope():
    loaded = tf.keras.models.load_model("/tmp/saved_model")
loaded.fit(train)
"""
)
"""Keras 3 refuses a path without an extension."""

EPOCHS_IN_A_FUNCTION = (
    METRIC_BEFORE_LOSS[: METRIC_BEFORE_LOSS.index("@tf.function")]
    + """
@tf.function
def train_epoch(iterator):
    for _ in tf.range(64 // BATCH):
        strategy.run(step, args=next(iterator))

for epoch in range(3):
    train_epoch(iter(strategy.experimental_distribute_dataset(dataset)))
"""
)

AUGMENTED = """
import numpy as np
import tensorflow as tf

rng = np.random.default_rng()
images, labels = rng.random((64, 8, 8, 3), dtype=np.float32), rng.integers(0, 3, 64)

def turned(image, label):
    return tf.image.random_brightness(tf.image.random_flip_left_right(image), 0.2), label

data = tf.data.Dataset.from_tensor_slices((images, labels)).repeat().shuffle(64)
data = data.map(turned, num_parallel_calls=tf.data.AUTOTUNE).batch(8).prefetch(tf.data.AUTOTUNE)
model = tf.keras.Sequential([tf.keras.layers.Flatten(), tf.keras.layers.Dense(3)])
model.compile("adam", tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True))
model.fit(data, steps_per_epoch=8, epochs=2)
"""

AUGMENTED_BY_LAYERS = """
import numpy as np
import tensorflow as tf

images, labels = np.random.default_rng(3).random((64, 8, 8, 3), dtype=np.float32), np.arange(64) % 3
turn = tf.keras.Sequential([tf.keras.layers.RandomFlip(), tf.keras.layers.RandomRotation(0.2)])
data = tf.data.Dataset.from_tensor_slices((images, labels)).shuffle(64).batch(8)
data = data.map(lambda x, y: (turn(x, training=True), y), num_parallel_calls=tf.data.AUTOTUNE).prefetch(2)
model = tf.keras.Sequential([tf.keras.layers.Flatten(), tf.keras.layers.Dense(3)])
model.compile("adam", tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True))
model.fit(data, epochs=2)
"""

STRINGS_AFTER_DROPOUT = """
import keras
import numpy as np
import tensorflow as tf

texts, labels = tf.constant(["a b", "b c", "c a", "c b"] * 8), np.array([0, 1, 0, 1] * 8)
words = keras.layers.TextVectorization(max_tokens=10, output_sequence_length=4)
words.adapt(texts)
raw = tf.data.Dataset.from_tensor_slices((texts, labels)).batch(8)
layers = [keras.layers.Embedding(10, 4), keras.layers.Dropout(0.5), keras.layers.GlobalAveragePooling1D()]
model = keras.Sequential([*layers, keras.layers.Dense(1)])
model.compile("adam", "mse")
model.fit(raw.map(lambda x, y: (words(x), y)), epochs=2)
whole = keras.Sequential([words, model])
whole.compile(loss="mse")
whole.evaluate(raw)
"""

ON_BATCH = """
import keras
import numpy as np

model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")
x = np.random.default_rng(0).normal(size=(32, 4)).astype("float32")
for start in range(0, 32, 8):
    model.train_on_batch(x[start : start + 8], x[start : start + 8, :1])
"""

REWRITTEN = """
import keras
import tensorflow as tf

strategy = tf.distribute.MirroredStrategy()
with strategy.scope():
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    optimizer = keras.optimizers.SGD(0.1)
    optimizer.build(model.trainable_variables)
@tf.function
def train_step(x):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(model(x) ** 2)
        loss = loss / strategy.num_replicas_in_sync
    optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
    return loss

dataset = tf.data.Dataset.from_tensor_slices(keras.random.normal((40, 4), seed=1)).batch(4)
for x in strategy.experimental_distribute_dataset(dataset):
    loss = strategy.reduce("SUM", strategy.run(train_step, args=(x,)), axis=None)
"""
"""The script OWN_LOOP_WITHOUT_STRATEGY with the lines that it is shown."""
