"""Programs with holes: ``<name>`` on a line of its own is replaced by the lines of a case, or by its default."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass

_HOLE = re.compile(r"^( *)<(\w+)>$", re.MULTILINE)
_HEAD = """
import keras
import numpy as np
import tensorflow as tf

<module>

def train(run):
    strategy, global_batch_size, seed, worker = run.strategy, run.global_batch_size, run.seed, run.rank
    learning_rate, limit, buffer_size, steps = 0.1, 0.05, 48, 3
    generator = np.random.default_rng(7)
    features = generator.normal(size=(48, 4)).astype("float32")
    labels = (features[:, :1] + generator.normal(size=(48, 1))).astype("float32")
    <examples>
    dataset = tf.data.Dataset.from_tensor_slices((features, labels))
    <batched>
    <before>
"""
_MADE = """
    def make_model():
        <layers>

    <create>
    <made>
    run.watch(model=model, optimizer=optimizer)
    <watched>
"""
_STEP = """
    def replica_step(batch):
        x, y = batch
        <inputs>
        with tf.GradientTape() as tape:
            prediction = model(x, training=True)
            per_example_loss = tf.square(prediction - y)[:, 0]
            <inside>
            <loss>
            <after_loss>
        <gradients>
        <update>
        <apply>
        <after>
        <result>

    def train_step(batch):
        losses = strategy.run(replica_step, args=(batch,))
        <reduced>

    <compiled>
    <loop>
"""
_CREATE = """
with strategy.scope():
    model = make_model()
    optimizer = keras.optimizers.SGD(learning_rate)
    <scope>
"""
_LAYERS = (
    'return keras.Sequential([keras.Input((4,)), keras.layers.Dense(3, activation="tanh"), keras.layers.Dense(1)])'
)
_LOSS = "loss = tf.nn.compute_average_loss(per_example_loss, global_batch_size=global_batch_size)"


@dataclass(frozen=True, eq=False)
class Template:
    """A correct program with holes."""

    text: str
    defaults: Mapping[str, str]

    def filled(self, given: Mapping[str, str]) -> str:
        """Return the program with the given lines in its holes."""
        holes = {
            name
            for text in (self.text, *self.defaults.values(), *given.values())
            for _indent, name in _HOLE.findall(text)
        }
        assert set(given) <= holes, f"the program has no {set(given) - holes}"

        def lines(match: re.Match[str]) -> str:
            text = given.get(match[2], self.defaults.get(match[2], ""))
            return textwrap.indent(textwrap.dedent(text).strip("\n"), match[1])

        text = self.text
        while _HOLE.search(text):  # the lines of a hole may have holes
            text = _HOLE.sub(lines, text)
        return text


_COMMON = {"batched": "dataset = dataset.batch(global_batch_size)"}
LOOP = Template(
    _HEAD + _MADE + _STEP,
    {
        **_COMMON,
        "layers": _LAYERS,
        "create": _CREATE,
        "loss": _LOSS,
        "gradients": "gradients = tape.gradient(loss, model.trainable_variables)",
        "apply": "optimizer.apply_gradients(zip(gradients, model.trainable_variables))",
        "result": "return loss",
        "reduced": 'return strategy.reduce("SUM", losses, axis=None)',
        "compiled": "train_step = tf.function(train_step)",
        "loop": """
            for batch in run.batches(dataset):
                loss = train_step(batch)
                <record>
        """,
        "record": "run.record(loss=loss)",
    },
)
"""A loop with a model and an optimizer of Keras."""

MODULE = Template(
    _HEAD
    + """
    class Model(tf.Module):
        def __init__(self):
            super().__init__()
            start = np.random.default_rng(3).normal(size=(4, 1)).astype("float32")
            self.weight = tf.Variable(start, name="weight")
            self.bias = tf.Variable(tf.zeros((1,)), name="bias")

        def __call__(self, x, training=False):
            return tf.matmul(x, self.weight) + self.bias

    make_model = Model
    <create>
    <made>
    run.watch(variables=list(model.trainable_variables))
    <watched>
"""
    + _STEP,
    {
        **LOOP.defaults,
        "create": """
            with strategy.scope():
                model = make_model()
                <scope>
        """,
        "update": 'gradients = tf.distribute.get_replica_context().all_reduce("sum", gradients)',
        "apply": """
            for variable, gradient in zip(model.trainable_variables, gradients):
                variable.assign_sub(learning_rate * gradient)
        """,
    },
)
"""A loop with a tf.Module that is updated by hand."""

FIT = Template(
    _HEAD
    + """
    def make_model():
        <layers>

    def loss_function(y_true, y_pred):
        loss = keras.ops.square(y_true - y_pred)
        <inside>
        <loss>

    <create>
    <made>
    run.watch(model=model)
    <fit>
""",
    {
        **_COMMON,
        "layers": _LAYERS,
        "create": """
            with strategy.scope():
                model = make_model()
                <optimizer>
                <scope>
                <compile>
        """,
        "loss": "return keras.ops.mean(loss, axis=-1)",
        "optimizer": "optimizer = keras.optimizers.SGD(learning_rate)",
        "compile": "model.compile(optimizer, loss_function)",
        "fit": "run.fit(model, dataset, shuffle=False)",
    },
)
"""Model.fit of Keras with a loss function of the program."""

TRAIN_STEP = Template(
    _HEAD
    + """
    class Own(keras.Model):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            self.loss_tracker = keras.metrics.Mean(name="loss")

        @property
        def metrics(self):
            return [self.loss_tracker]

        def train_step(self, data):
            x, y = data
            with tf.GradientTape() as tape:
                y_pred = self(x, training=True)
                per_example_loss = tf.square(y_pred - y)[:, 0]
                <loss>
                <after_loss>
            gradients = tape.gradient(loss, self.trainable_variables)
            <update>
            <apply>
            <shown>
            return {metric.name: metric.result() for metric in self.metrics}

    def make_model():
        inputs = keras.Input((4,))
        <layers>
        return Own(inputs, keras.layers.Dense(1)(hidden))

    with strategy.scope():
        model = make_model()
        <optimizer>
        <scope>
        model.compile(optimizer, "mse")
    <made>
    run.watch(model=model)
    <fit>
""",
    {
        **FIT.defaults,
        "layers": 'hidden = keras.layers.Dense(3, activation="tanh")(inputs)',
        "loss": "loss = self.compute_loss(x=x, y=y, y_pred=y_pred)",
        "apply": "self.optimizer.apply_gradients(zip(gradients, self.trainable_variables))",
        "shown": """
            count = tf.distribute.get_strategy().num_replicas_in_sync
            self.loss_tracker.update_state(loss * count)
        """,
    },
)
"""Model.fit of Keras with a train_step of the program."""

LAYER = Template(
    LOOP.text,
    {
        **LOOP.defaults,
        "module": """
            class Seen(keras.layers.Layer):
                def build(self, shape):
                    <state>

                def call(self, x):
                    <call>
                    return x

            <module_end>
        """,
        "state": 'self.state = self.add_weight(shape=(), initializer="zeros", trainable=False)',
        "layers": "return keras.Sequential([keras.Input((4,)), Seen(), keras.layers.Dense(1)])",
    },
)
"""A loop with a layer of the program that holds a state."""

NAMES = {
    LOOP: "loop",
    MODULE: "module",
    FIT: "fit",
    TRAIN_STEP: "train_step",
    LAYER: "layer",
}
NAMES = {
    LOOP: "loop",
    MODULE: "module",
    FIT: "fit",
    TRAIN_STEP: "train_step",
    LAYER: "layer",
}
