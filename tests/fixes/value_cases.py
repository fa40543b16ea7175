"""Mistakes in what a program shows, in its variables, and in its random numbers."""

from __future__ import annotations

from pytest_ddl.equivalence.causes.cause import Form
from tests.fixes.case import Case
from tests.fixes.templates import FIT, LAYER, LOOP, MODULE, TRAIN_STEP

_STATE = {"scope": "state = tf.Variable(0.0, trainable=False, name='state')", "watched": "run.watch(variables=[state])"}
_APPLY = "optimizer.apply_gradients(zip(gradients, model.trainable_variables))"
_NUMBERED = {
    "create": """
    with strategy.scope():
        start = tf.zeros((1,))
        <variable>
        model = make_model()
        model.bias = variable
    """,
    "after": """
    replica = tf.distribute.get_replica_context().replica_id_in_sync_group
    model.bias.assign(model.bias + 0.01 * tf.cast(replica, model.bias.dtype))
    """,
}
"""Each replica adds its number to a weight."""
CASES = (
    Case("reported-loss-wrong", LOOP, "reduced", 'return strategy.reduce("MEAN", losses, axis=None)'),
    Case("reported-loss-wrong", MODULE, "reduced", 'return strategy.reduce("MEAN", losses, axis=None)'),
    Case(
        "reported-loss-wrong",
        FIT,
        "loss",
        "return keras.ops.mean(loss, axis=-1) + keras.ops.stop_gradient(keras.ops.max(loss))",
        Form.FIT,
    ),
    Case("reported-loss-wrong", TRAIN_STEP, "shown", "self.loss_tracker.update_state(loss)", Form.TRAIN_STEP),
    Case(
        "metric-wrong",
        LOOP,
        "after",
        "metric.update_state(y[:2], prediction[:2])",
        given={
            "scope": "metric = keras.metrics.MeanAbsoluteError()",
            "watched": "run.watch(metrics=[metric])",
            "record": "run.record(loss=loss, error=metric.result())",
        },
    ),
    Case(
        "initial-weights-differ",
        LOOP,
        "before",
        "keras.utils.set_random_seed(seed + worker)",
        given={"made": "for v in model.weights:\n    v.assign(np.random.normal(size=v.shape))"},
        strategy="multi_worker_mirrored",
    ),
    Case("replicas-diverged", MODULE, "variable", "variable = tf.Variable(start)", given=_NUMBERED),
    Case(
        "state-not-aggregated",
        MODULE,
        "between",
        "pass",
        given={**_STATE, "after": "value = tf.reduce_mean(x)\n<between>\nstate.assign(value)"},
    ),
    Case(
        "state-not-aggregated",
        LAYER,
        "between",
        "pass",
        Form.LAYER,
        given={"call": "value = tf.reduce_mean(x)\n<between>\nself.state.assign(value)"},
    ),
    Case(
        "state-scaled-by-replica-count",
        LOOP,
        "scope",
        "state = tf.Variable(0, trainable=False, aggregation=tf.VariableAggregation.SUM)",
        given={"watched": _STATE["watched"], "after": "state.assign_add(tf.cast(1, state.dtype))"},
        cause="iteration-count-wrong",
    ),
    Case(
        "state-scaled-by-replica-count",
        LAYER,
        "state",
        """
        settings = {"dtype": "int32", "trainable": False, "aggregation": "sum"}
        self.state = self.add_weight(shape=(), initializer="zeros", **settings)
        """,
        Form.LAYER,
        given={"call": "self.state.assign_add(1)"},
        cause="iteration-count-wrong",
    ),
    Case(
        "optimizer-state-mismatch",
        LOOP,
        "apply",
        f"""
        {_APPLY}
        for slot in optimizer.variables[2:]:
            slot.assign(slot * strategy.num_replicas_in_sync)
        """,
        given={
            "scope": """
            optimizer = keras.optimizers.SGD(learning_rate, momentum=0.9)
            optimizer.build(model.trainable_variables)
            """
        },
    ),
    Case(
        "iteration-count-wrong",
        LOOP,
        "apply",
        f"{_APPLY}\noptimizer.iterations.assign_add(strategy.num_replicas_in_sync - 1)",
    ),
    Case(
        "learning-rate-differs",
        LOOP,
        "made",
        "optimizer.learning_rate = learning_rate * strategy.num_replicas_in_sync",
    ),
    Case(
        "learning-rate-differs",
        FIT,
        "optimizer",
        "optimizer = keras.optimizers.SGD(learning_rate * strategy.num_replicas_in_sync)",
        Form.FIT,
    ),
    Case(
        "variable-did-not-move",
        LOOP,
        "apply",
        """
        pairs = list(zip(gradients, model.trainable_variables))
        optimizer.apply_gradients(pairs if strategy.num_replicas_in_sync == 1 else pairs[:-1])
        """,
    ),
    Case(
        "frozen-variable-moved",
        LOOP,
        "apply",
        f"""
        gradients = tape.gradient(loss, model.trainable_variables)
        {_APPLY}
        if strategy.num_replicas_in_sync > 1:
            model.layers[0].bias.assign_add(0.1 * tf.ones((3,)))
        """,
        given={"gradients": "", "made": "model.layers[0].trainable = False"},
    ),
    Case(
        "variable-outside-scope",
        LOOP,
        "create",
        "model, optimizer = make_model(), keras.optimizers.SGD(learning_rate)",
    ),
    Case("variable-outside-scope", MODULE, "create", "model = make_model()", Form.MODULE),
    Case(
        "variable-outside-scope",
        FIT,
        "create",
        'model = make_model()\nwith strategy.scope():\n    model.compile(keras.optimizers.SGD(learning_rate), "mse")',
        Form.FIT,
    ),
    Case(
        "layout-wrong",
        LOOP,
        "layout",
        'layout_map["densse/kernel"] = (None, "model")',
        given={
            "before": "layout_map = getattr(run, 'layout_map', {})\n<layout>",
            "layers": "return keras.Sequential([keras.Input((4,)), keras.layers.Dense(4), keras.layers.Dense(1)])",
        },
        strategy="model_parallel",
    ),
)
_DRAWN = """
seed = tf.stack([run.seed, tf.cast(optimizer.iterations, tf.int32)])
<fold>
x += 0.3 * tf.cast(tf.random.stateless_normal(tf.shape(x), seed), x.dtype)
"""
RANDOM_CASES = (
    Case("random-stream-repeated-across-replicas", LOOP, "fold", "pass", given={"inputs": _DRAWN}),
    Case(
        "random-stream-repeated-across-steps",
        LOOP,
        "fold",
        "pass",
        given={
            "inputs": """
            replica = tf.distribute.get_replica_context().replica_id_in_sync_group
            seed = tf.random.experimental.stateless_fold_in(tf.constant([run.seed, 0]), replica)
            <fold>
            x += 0.3 * tf.cast(tf.random.stateless_normal(tf.shape(x), seed), x.dtype)
            """
        },
    ),
    Case(
        "random-stream-differs-across-workers",
        LOOP,
        "examples",
        "pass",
        given={
            "batched": """
            order = np.random.permutation(48)
            dataset = tf.data.Dataset.from_tensor_slices((features[order], labels[order])).batch(global_batch_size)
            """
        },
        strategy="multi_worker_mirrored",
    ),
    Case(
        "per-replica-normalization",
        LOOP,
        "normalization",
        "keras.layers.BatchNormalization()",
        given={
            "layers": """
            normalization = (
                <normalization>
            )
            return keras.Sequential([keras.Input((4,)), keras.layers.Dense(3), normalization, keras.layers.Dense(1)])
            """
        },
        strict=True,
    ),
    Case(
        "moving-statistics",
        LOOP,
        "normalization",
        "keras.layers.BatchNormalization()",
        given={
            "layers": """
            inputs = keras.Input((4,))
            normalization = (
                <normalization>
            )
            return keras.Model(inputs, keras.layers.Dense(1)(inputs + 0.0 * normalization(inputs)))
            """
        },
        cause="state-not-aggregated",
        strict=True,
    ),
)
