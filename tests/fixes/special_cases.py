"""Mistakes of which a recomputation or an exception shows the particular shape."""

from __future__ import annotations

from pytest_ddl.equivalence.causes.cause import Form
from tests.fixes.case import Case
from tests.fixes.templates import FIT, LAYER, LOOP, MODULE

_STATE = {"scope": "state = tf.Variable(0.0, trainable=False, name='state')", "watched": "run.watch(variables=[state])"}
_SHARED = {"scope": _STATE["scope"].replace("0.0", "tf.ones((4,))"), "watched": _STATE["watched"]}
_MEAN_STATE = {
    "scope": _SHARED["scope"][:-1] + ", aggregation=tf.VariableAggregation.MEAN)",
    "watched": _STATE["watched"],
}
_SUM_STATE = {
    "scope": _SHARED["scope"][:-1] + ", aggregation=tf.VariableAggregation.SUM)",
    "watched": _STATE["watched"],
}
_SEVERAL = 'gradients = tf.distribute.get_replica_context().all_reduce("sum", gradients)'
CASES = (
    Case(
        "two-sums",
        LOOP,
        "divided",
        "pass",
        given={"update": f"{_SEVERAL}\n<divided>"},
        cause="gradient-scaled-by-replica-count",
    ),
    Case(
        "average-of-a-part",
        LOOP,
        "loss",
        """
        part = global_batch_size // strategy.num_replicas_in_sync
        loss = tf.nn.compute_average_loss(per_example_loss, global_batch_size=part)
        """,
        cause="gradient-scaled-by-replica-count",
    ),
    Case(
        "average-of-a-part",
        MODULE,
        "loss",
        """
        part = global_batch_size // strategy.num_replicas_in_sync
        loss = tf.nn.compute_average_loss(per_example_loss, global_batch_size=part)
        """,
        cause="gradient-scaled-by-replica-count",
    ),
    Case(
        "sum-switched-off",
        LOOP,
        "apply",
        "optimizer.apply_gradients(zip(gradients, model.trainable_variables), skip_gradients_aggregation=True)",
        given={
            "module": "import tf_keras as keras",
            "scope": "optimizer.build(model.trainable_variables)",
        },
        cause="gradient-not-aggregated",
    ),
    Case(
        "assigned-mean",
        MODULE,
        "update",
        "pass",
        given={
            "module": "MEAN = tf.VariableAggregation.MEAN",
            "create": """
            with strategy.scope():
                model = make_model()
                model.weight = tf.Variable(model.weight, name="weight", aggregation=MEAN)
                model.bias = tf.Variable(model.bias, name="bias", aggregation=MEAN)
            """,
        },
        cause="gradient-scaled-by-inverse-replica-count",
    ),
    Case(
        "assigned-sum",
        MODULE,
        "weight",
        "weight = tf.Variable(start, aggregation=tf.VariableAggregation.SUM)",
        given={
            "create": """
            with strategy.scope():
                model = make_model()
                start = np.full((4, 1), 0.3, "float32")
                <weight>
                model.weight = weight
            """,
        },
        cause="gradient-scaled-by-replica-count",
    ),
    Case(
        "divided",
        MODULE,
        "update",
        'gradients = tf.distribute.get_replica_context().all_reduce("mean", gradients)',
        cause="gradient-scaled-by-inverse-replica-count",
    ),
    Case(
        "mean-term",
        LOOP,
        "after_loss",
        "loss += tf.reduce_mean(term_per_example)",
        given={"inside": "term_per_example = tf.abs(prediction)[:, 0]"},
        cause="gradient-scaled-by-replica-count",
    ),
    Case(
        "divided-term",
        LOOP,
        "after_loss",
        "loss += tf.reduce_mean(term_per_example) / strategy.num_replicas_in_sync**2",
        given={"inside": "term_per_example = tf.abs(prediction)[:, 0]"},
        cause="gradient-scaled-by-inverse-replica-count",
    ),
    Case(
        "divided-term",
        FIT,
        "term",
        "self.add_loss(term / strategy.num_replicas_in_sync)",
        Form.FIT,
        given={
            "layers": """
            class Term(keras.layers.Layer):
                def call(self, x):
                    term = keras.ops.mean(keras.ops.square(x))
                    <term>
                    return x

            return keras.Sequential([keras.Input((4,)), keras.layers.Dense(3), Term(), keras.layers.Dense(1)])
            """,
        },
        cause="gradient-scaled-by-inverse-replica-count",
    ),
    Case(
        "summed-term",
        FIT,
        "multiplied",
        "pass",
        given={
            "layers": """
            class Term(keras.layers.Layer):
                def call(self, x):
                    term = 0.1 * keras.ops.sum(keras.ops.square(x))
                    <multiplied>
                    self.add_loss(term)
                    return x

            return keras.Sequential([keras.Input((4,)), keras.layers.Dense(3), Term(), keras.layers.Dense(1)])
            """,
        },
        cause="gradient-scaled-by-inverse-replica-count",
    ),
    Case(
        "share-with-decay",
        MODULE,
        "shared",
        "pass",
        given={
            **_MEAN_STATE,
            "after": """
            share = tf.reduce_sum(x, 0)
            <shared>
            state.assign(0.9 * state + share)
            """,
        },
        cause="state-not-aggregated",
    ),
    Case(
        "share-with-decay",
        LAYER,
        "shared",
        "pass",
        Form.LAYER,
        given={
            "state": """
            self.state = self.add_weight(shape=(4,), initializer="ones", trainable=False, aggregation="mean")
            """,
            "call": "share = tf.reduce_sum(x, 0)\n<shared>\nself.state.assign(0.9 * self.state + share)",
        },
        cause="state-not-aggregated",
    ),
    Case(
        "averaged-shares",
        MODULE,
        "shared",
        "pass",
        given={**_MEAN_STATE, "after": "share = tf.reduce_sum(x, 0)\n<shared>\nstate.assign_add(share)"},
        cause="state-not-aggregated",
    ),
    Case(
        "averaged-shares",
        LAYER,
        "shared",
        "pass",
        Form.LAYER,
        given={
            "state": """
            self.state = self.add_weight(shape=(4,), initializer="ones", trainable=False, aggregation="mean")
            """,
            "call": "share = tf.reduce_sum(x, 0)\n<shared>\nself.state.assign_add(share)",
        },
        cause="state-not-aggregated",
    ),
    Case(
        "averaged-shares",
        MODULE,
        "shared",
        "pass",
        given={
            **_MEAN_STATE,
            "scope": "state = tf.Variable(tf.ones((4,)), trainable=False, name='state')",
            "after": "share = tf.reduce_sum(x, 0)\n<shared>\nstate.assign_add(share)",
        },
        cause="state-not-aggregated",
    ),
    Case(
        "summed-values",
        MODULE,
        "declared",
        "state = tf.Variable(start, trainable=False, aggregation=tf.VariableAggregation.SUM)",
        given={
            "before": "start = tf.ones((4,))",
            "scope": "<declared>",
            "watched": _STATE["watched"],
            "after": "state.assign(0.9 * state + 0.1 * tf.reduce_mean(x, 0))",
        },
        cause="state-scaled-by-replica-count",
    ),
    Case(
        "summed-values",
        LAYER,
        "declared",
        'self.state = self.add_weight(shape=shape, trainable=False, aggregation="sum")',
        Form.LAYER,
        given={
            "state": "shape = (4,)\n<declared>",
            "call": "self.state.assign(0.9 * self.state + 0.1 * tf.reduce_mean(x, 0))",
        },
        cause="state-scaled-by-replica-count",
    ),
    Case(
        "sum-of-old-values",
        MODULE,
        "assigned",
        "state.assign(state + share)",
        given={**_SUM_STATE, "after": "share = tf.reduce_sum(x, 0)\n<assigned>"},
        cause="state-scaled-by-replica-count",
    ),
    Case(
        "sum-of-old-values",
        LAYER,
        "assigned",
        "self.state.assign(self.state + share)",
        Form.LAYER,
        given={
            "state": """
            self.state = self.add_weight(shape=(4,), initializer="ones", trainable=False, aggregation="sum")
            """,
            "call": "share = tf.reduce_sum(x, 0)\n<assigned>",
        },
        cause="state-scaled-by-replica-count",
    ),
    *(
        Case(
            name,
            MODULE,
            "gathered",
            "state.assign(state_of(x))",
            given={
                "before": "state_of = lambda x: tf.reduce_max(x, 0)",
                "scope": f"state = tf.Variable(tf.ones((4,)), trainable=False, name='state'{aggregation})",
                "watched": _STATE["watched"],
                "after": "<gathered>",
            },
            cause="state-not-aggregated",
        )
        for name, aggregation in (
            ("not-the-mean", ", aggregation=tf.VariableAggregation.MEAN"),
            ("not-the-sum", ", aggregation=tf.VariableAggregation.SUM"),
            ("not-the-first", ", aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA"),
            ("neither", ""),
        )
    ),
    *(
        Case(
            name,
            LAYER,
            "gathered",
            "self.state.assign(state_of(x))",
            Form.LAYER,
            given={
                "module_end": "state_of = lambda x: tf.reduce_max(x, 0)",
                "state": f"""
                self.state = self.add_weight(
                    shape=(4,), initializer="ones", trainable=False, aggregation="{aggregation}"
                )
                """,
                "call": "<gathered>",
            },
            cause="state-not-aggregated",
        )
        for name, aggregation in (
            ("not-the-mean", "mean"),
            ("not-the-sum", "sum"),
            ("not-the-first", "only_first_replica"),
            ("neither", "none"),
        )
    ),
    Case(
        "parts-read-from-one",
        LOOP,
        "scope",
        """
        on_read, first = tf.VariableSynchronization.ON_READ, tf.VariableAggregation.ONLY_FIRST_REPLICA
        state = tf.Variable(start, trainable=False, synchronization=on_read, aggregation=first)
        """,
        given={
            "before": "start = 0.0",
            "watched": _STATE["watched"],
            "after": "state.assign_add(tf.reduce_sum(tf.abs(x)))",
        },
        cause="state-not-aggregated",
    ),
    Case(
        "parts-of-a-value",
        LOOP,
        "value",
        'value = strategy.reduce("SUM", value, axis=None)',
        given={
            "result": "return loss, tf.reduce_mean(tf.abs(prediction - y))",
            "reduced": """
            value = losses[1]
            <value>
            return strategy.reduce("SUM", losses[0], axis=None), value
            """,
            "loop": """
            for batch in run.batches(dataset):
                loss, value = train_step(batch)
                run.record(loss=loss, error=value)
            """,
        },
        cause="metric-wrong",
    ),
    Case(
        "shares-of-a-value",
        LOOP,
        "value",
        'value = strategy.reduce("MEAN", value, axis=None)',
        given={
            "result": "return loss, tf.reduce_sum(tf.abs(prediction - y)) / global_batch_size",
            "reduced": """
            value = losses[1]
            <value>
            return strategy.reduce("SUM", losses[0], axis=None), value
            """,
            "loop": """
            for batch in run.batches(dataset):
                loss, value = train_step(batch)
                run.record(loss=loss, error=value)
            """,
        },
        cause="metric-wrong",
    ),
    Case(
        "value-of-all-examples",
        LOOP,
        "value",
        'total, count = total + strategy.reduce("MEAN", mean_of_part, axis=None), count + 1',
        given={
            "before": "total = count = 0.0",
            "inside": "errors = tf.abs(prediction - y)",
            "result": "return loss, tf.reduce_sum(errors), tf.cast(tf.size(errors), errors.dtype)",
            "reduced": "return strategy.reduce('SUM', losses[0], axis=None), *losses[1:]",
            "loop": """
            division = tf.function(lambda one, other: strategy.run(tf.divide, args=(one, other)))
            for batch in run.batches(dataset):
                loss, sum_of_examples, number_of_examples = train_step(batch)
                mean_of_part = division(sum_of_examples, number_of_examples)
                <value>
                run.record(loss=loss)
            run.value("error", total / count)
            """,
            "examples": "features, labels = features[:21], labels[:21]",
        },
        cause="metric-wrong",
    ),
    Case(
        "keras-loop-in-run",
        FIT,
        "trained",
        "for x, y in run.batches(dataset):\n    strategy.run(lambda x, y: whole.fit(x, y) and None, args=(x, y))",
        given={
            "fit": """
            whole, model = model, lambda: None
            model.fit = lambda data: run.fit(whole, data, shuffle=False)
            <trained>
            """
        },
        cause="worker-raised",
        verdict="inconclusive",
    ),
    Case(
        "value-of-every-replica",
        LOOP,
        "step",
        "loss = replica_step(batch)",
        given={
            "loop": """
            @tf.function
            def train_step(batch):
                <step>
                return loss

            for batch in run.batches(dataset):
                loss = train_step(batch)
                run.record(loss=loss)
            """
        },
        cause="worker-raised",
    ),
    Case(
        "stateful-layer",
        FIT,
        "input",
        "inputs = keras.Input(batch_shape=(global_batch_size, *shape))",
        given={
            "examples": "features = np.stack([features] * 3, axis=1)\nshape = (3, 4)",
            "layers": """
            <input>
            return keras.Sequential([inputs, keras.layers.GRU(4, stateful=True), keras.layers.Dense(1)])
            """,
        },
        cause="worker-raised",
    ),
)
