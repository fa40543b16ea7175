"""Mistakes in the loss, in gradients and in their reduction."""

from __future__ import annotations

from pytest_ddl.equivalence.causes.cause import Form
from tests.fixes.case import Case
from tests.fixes.templates import FIT, LOOP, MODULE, TRAIN_STEP

_MEAN_LOSS = "loss = tf.reduce_mean(per_example_loss)"
_N = "tf.distribute.get_strategy().num_replicas_in_sync"
_APPLY = "optimizer.apply_gradients(zip(gradients, model.trainable_variables))"
_DIVIDED_TWICE = f"loss = tf.reduce_mean(per_example_loss) / {_N} ** 2"
_CLIPPED = "gradients, _norm = tf.clip_by_global_norm(gradients, limit)"
_SKIPPED_IF_ONE = f"""
if strategy.num_replicas_in_sync == 1:
    {_CLIPPED}
"""
_SEVERAL = 'gradients = tf.distribute.get_replica_context().all_reduce("sum", gradients)'
_SEVERAL_CLIPPED = f"""
context = tf.distribute.get_replica_context()
gradients = context.all_reduce("sum", gradients)
if context.num_replicas_in_sync == 1:
    {_CLIPPED}
gradients = [gradient / context.num_replicas_in_sync for gradient in gradients]
"""
_REGULARIZED = """
regularizer = keras.regularizers.L2(0.1)
return keras.Sequential([keras.Input((4,)), keras.layers.Dense(1, kernel_regularizer=regularizer)])
"""
_UNEVEN = "features, labels = features[:21], labels[:21]"
_MASKS = "features[:, 0] = np.isin(np.arange(48) % 8, [0, 1, 2, 5])"
_MASK = "mask = x[:, 0]\nlosses = per_example_loss"
CASES = (
    Case("gradient-scaled-by-replica-count", LOOP, "loss", _MEAN_LOSS),
    Case("gradient-scaled-by-replica-count", MODULE, "loss", _MEAN_LOSS),
    Case("gradient-scaled-by-replica-count", FIT, "loss", "return keras.ops.mean(loss)", Form.FIT),
    Case(
        "gradient-scaled-by-replica-count",
        TRAIN_STEP,
        "after_loss",
        "pass",
        Form.TRAIN_STEP,
        given={"loss": _MEAN_LOSS},
    ),
    Case("gradient-scaled-by-inverse-replica-count", LOOP, "loss", _DIVIDED_TWICE),
    Case(
        "gradient-scaled-by-inverse-replica-count",
        MODULE,
        "loss",
        _DIVIDED_TWICE,
    ),
    Case(
        "gradient-scaled-by-inverse-replica-count",
        FIT,
        "loss",
        f"return keras.ops.mean(loss, axis=-1) / {_N}",
        Form.FIT,
    ),
    Case(
        "gradient-scaled-by-inverse-replica-count",
        TRAIN_STEP,
        "loss",
        f"loss = self.compute_loss(x=x, y=y, y_pred=y_pred) / {_N}",
        Form.TRAIN_STEP,
    ),
    Case("gradient-not-aggregated", MODULE, "update", "pass"),
    Case(
        "gradient-not-aggregated",
        LOOP,
        "update",
        "pass",
        given={"apply": "for v, g in zip(model.trainable_variables, gradients):\n    v.assign_sub(learning_rate * g)"},
    ),
    Case(
        "gradient-not-aggregated",
        TRAIN_STEP,
        "update",
        "pass",
        given={"apply": "for v, g in zip(self.trainable_variables, gradients):\n    v.assign_sub(learning_rate * g)"},
    ),
    Case("gradient-clipped-before-aggregation", LOOP, "update", _CLIPPED),
    Case(
        "gradient-clipped-before-aggregation",
        MODULE,
        "update",
        f"{_CLIPPED}\n{_SEVERAL}",
        Form.MODULE,
    ),
    Case("gradient-clipped-before-aggregation", TRAIN_STEP, "update", _CLIPPED, Form.TRAIN_STEP),
    Case(
        "gradient-clipped-before-aggregation",
        FIT,
        "optimizer",
        "optimizer = keras.optimizers.SGD(learning_rate, global_clipnorm=limit)",
        Form.FIT,
    ),
    Case("clipping-lost", LOOP, "update", _SEVERAL_CLIPPED),
    Case("clipping-lost", MODULE, "update", f"{_SEVERAL}\n{_SKIPPED_IF_ONE}", Form.MODULE),
    Case(
        "clipping-lost",
        FIT,
        "optimizer",
        """
        clips = {"global_clipnorm": limit} if strategy.num_replicas_in_sync == 1 else {}
        optimizer = keras.optimizers.SGD(learning_rate, **clips)
        """,
        Form.FIT,
    ),
    Case(
        "regularization-scaled-by-replica-count",
        LOOP,
        "after_loss",
        "loss += tf.add_n(model.losses)",
        given={"layers": _REGULARIZED},
    ),
    Case(
        "regularization-scaled-by-replica-count",
        LOOP,
        "after_loss",
        "loss += tf.add_n(model.losses)",
        given={"layers": _REGULARIZED.replace("kernel_regularizer", "activity_regularizer")},
    ),
    Case(
        "regularization-scaled-by-replica-count",
        MODULE,
        "after_loss",
        "loss += penalty",
        Form.MODULE,
        given={"inside": "penalty = 0.1 * tf.reduce_sum(tf.square(model.weight))"},
    ),
    Case(
        "regularization-scaled-by-replica-count",
        TRAIN_STEP,
        "loss",
        f"loss = tf.reduce_mean(per_example_loss) / {_N} + tf.add_n(self.losses)",
        Form.TRAIN_STEP,
        given={"layers": "hidden = keras.layers.Dense(3, kernel_regularizer=keras.regularizers.L2(0.1))(inputs)"},
    ),
    Case(
        "mean-of-replica-means",
        LOOP,
        "loss",
        f"loss = tf.reduce_mean(per_example_loss) / {_N}",
        given={"examples": _UNEVEN, "batched": "dataset = dataset.batch(global_batch_size - 1)"},
        strict=True,
    ),
    Case(
        "mean-of-replica-means",
        FIT,
        "batched",
        "dataset = dataset.batch(global_batch_size)",
        Form.FIT,
        given={"examples": _UNEVEN},
        steps=None,
        strict=True,
    ),
    Case(
        "empty-replica",
        LOOP,
        "loss",
        f"loss = tf.reduce_mean(per_example_loss) / {_N}",
        given={"examples": "features, labels = features[:17], labels[:17]"},
    ),
    Case(
        "empty-replica",
        FIT,
        "batched",
        "dataset = dataset.batch(global_batch_size)",
        Form.FIT,
        given={"examples": "features, labels = features[:17], labels[:17]"},
        steps=None,
    ),
    Case(
        "masked-loss-normalised-per-replica",
        LOOP,
        "loss",
        f"loss = tf.reduce_sum(losses * mask) / tf.reduce_sum(mask) / {_N}",
        given={"examples": _MASKS, "inside": _MASK},
    ),
    Case(
        "masked-loss-normalised-per-replica",
        MODULE,
        "loss",
        f"loss = tf.reduce_sum(losses * mask) / tf.reduce_sum(mask) / {_N}",
        given={"examples": _MASKS, "inside": _MASK},
    ),
    Case(
        "masked-loss-normalised-per-replica",
        FIT,
        "loss",
        f"return tf.reduce_sum(losses * mask) / tf.reduce_sum(mask) / {_N}",
        Form.FIT,
        given={
            "examples": "labels[:, 0] = labels[:, 0] * np.isin(np.arange(48) % 8, [0, 1, 2, 5])",
            "inside": "losses, mask = loss, tf.cast(y_true != 0, loss.dtype)",
        },
    ),
    Case(
        "batch-coupled-loss",
        LOOP,
        "loss",
        "loss = loss_function(y, prediction)",
        given={
            "before": "loss_function = lambda y, p: tf.math.reduce_std(y - p) + tf.reduce_max(p)",
            # Labels and predictions of different shapes: on one device, all_gather of both at once would fail.
            "layers": "return keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)])",
        },
    ),
    Case(
        "batch-coupled-loss",
        MODULE,
        "loss",
        "loss = loss_function(y, prediction)",
        given={"before": "loss_function = lambda y, p: tf.math.reduce_std(y - p) + tf.reduce_max(p)"},
    ),
    Case(
        "batch-coupled-loss",
        FIT,
        "loss",
        "return loss_of_the_batch(y_true, y_pred)",
        Form.FIT,
        given={
            "before": """
            def loss_of_the_batch(y, p):
                p = tf.sigmoid(p)
                return 1 - (2 * tf.reduce_sum(y * p) + 1) / (tf.reduce_sum(y) + tf.reduce_sum(p) + 1)
            """,
            "examples": 'labels = (labels > 0.3).astype("float32")',
        },
    ),
    Case(
        "gathered-positions-wrong",
        LOOP,
        "positions",
        "pass",
        given={
            "before": """
            def contrast(own, everything, positions):
                return tf.nn.sparse_softmax_cross_entropy_with_logits(positions, own @ tf.transpose(everything))
            """,
            "layers": "return keras.Sequential([keras.Input((4,)), keras.layers.Dense(3)])",
            "inside": """
            everything = tf.distribute.get_replica_context().all_gather(prediction, axis=0)
            positions = tf.range(tf.shape(prediction)[0])
            <positions>
            per_example_loss = contrast(prediction, everything, positions)
            """,
        },
    ),
    Case(
        "gradient-accumulation-wrong",
        MODULE,
        "made",
        """
        with strategy.scope():
            first = {"trainable": False, "aggregation": tf.VariableAggregation.ONLY_FIRST_REPLICA}
            totals = [tf.Variable(tf.zeros_like(v), **first) for v in model.trainable_variables]
        """,
        given={
            "update": "for total, gradient in zip(totals, gradients):\n    total.assign_add(gradient / 2)",
            "apply": "pass",
            "loop": """
            def apply_totals():
                for total, variable in zip(totals, model.trainable_variables):
                    mean = tf.distribute.get_replica_context().all_reduce("sum", total.read_value())
                    variable.assign_sub(learning_rate * mean)
                    total.assign(tf.zeros_like(total))

            apply = tf.function(lambda: strategy.run(apply_totals))
            for number, batch in enumerate(run.batches(dataset), start=1):
                loss = train_step(batch)
                if number % 2 == 0:
                    apply()
                run.record(loss=loss)
            """,
        },
        steps=4,
    ),
    Case(
        "clipped-micro-batches",
        MODULE,
        "update",
        _CLIPPED,
        given={
            "made": """
            with strategy.scope():
                own = {"synchronization": tf.VariableSynchronization.ON_READ, "trainable": False}
                totals = [
                    tf.Variable(tf.zeros_like(v), aggregation=tf.VariableAggregation.SUM, **own)
                    for v in model.trainable_variables
                ]
            """,
            "apply": "for total, gradient in zip(totals, gradients):\n    total.assign_add(gradient / 2)",
            "loop": """
            def apply_totals():
                for total, variable in zip(totals, model.trainable_variables):
                    whole = tf.distribute.get_replica_context().all_reduce("sum", total.read_value())
                    variable.assign_sub(learning_rate * whole)
                    total.assign(tf.zeros_like(total))

            apply = tf.function(lambda: strategy.run(apply_totals))
            for number, batch in enumerate(run.batches(dataset), start=1):
                loss = train_step(batch)
                if number % 2 == 0:
                    apply()
                run.record(loss=loss)
            """,
        },
        cause="gradient-clipped-before-aggregation",
        steps=4,
    ),
    Case(
        "term-added-by-every-replica",
        LOOP,
        "update",
        "pass",
        given={
            "inside": "term = tf.constant(0.05)",
            "apply": "optimizer.apply_gradients([(g + term, v) for g, v in zip(gradients, model.trainable_variables)])",
        },
    ),
    Case(
        "factors-of-parts",
        LOOP,
        "update",
        "loss_of_all = loss",
        given={
            "gradients": f"""
            gradients = tape.gradient(loss, model.trainable_variables)
            {_SEVERAL}
            gradients = [gradient / {_N} for gradient in gradients]
            """,
            "apply": "optimizer.apply_gradients([(loss_of_all * g, v) for g, v in zip(gradients, model.variables)])",
        },
        cause="gradient-scaled-by-inverse-replica-count",
    ),
)
