"""Mistakes with numbers that are not finite, with loss scales, and with other numbers that do not add up."""

from __future__ import annotations

from pytest_ddl.equivalence.causes.cause import Form
from tests.fixes.case import Case
from tests.fixes.templates import LOOP, MODULE, TRAIN_STEP

_SUMMED = 'gradients = tf.distribute.get_replica_context().all_reduce("sum", gradients)'
_OWN_DECISION = """
finite = tf.reduce_all([tf.reduce_all(tf.math.is_finite(gradient)) for gradient in gradients])
gradients = [tf.where(finite, gradient, tf.zeros_like(gradient)) for gradient in gradients]
"""
_NO_GRADIENT = "features[11] = 0"
_SCALE = "scale = tf.Variable(64.0, trainable=False, name='loss_scale')"
_HALVED = "scale.assign(tf.where(finite, scale, scale / 2))"
_SCALING_OPTIMIZER = "keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(learning_rate), initial_scale=256.0)"
_FIRST_LAYER = "per_example_loss += 0.01 * tf.norm(tf.matmul(x, model.layers[0].kernel), axis=1)"
_WEIGHT = "per_example_loss += 0.01 * tf.norm(tf.matmul(x, model.weight), axis=1)"

CASES = (
    Case(
        "non-finite-not-synchronised",
        LOOP,
        "update",
        _OWN_DECISION,
        given={"examples": _NO_GRADIENT, "inside": _FIRST_LAYER},
    ),
    Case(
        "non-finite-not-synchronised",
        MODULE,
        "update",
        f"{_OWN_DECISION}{_SUMMED}",
        Form.MODULE,
        given={"examples": _NO_GRADIENT, "inside": _WEIGHT},
    ),
    Case(
        "loss-scale-of-keras",
        LOOP,
        "before",
        'keras.mixed_precision.set_global_policy("mixed_float16")',
        given={
            "examples": "labels[4:8] *= 30",
            "layers": """
            outputs = keras.layers.Dense(1, dtype="float32")
            return keras.Sequential([keras.Input((4,)), keras.layers.Dense(3, activation="tanh"), outputs])
            """,
            "create": """
            with strategy.scope():
                model = make_model()
                optimizer = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(learning_rate))
                optimizer.build(model.trainable_variables)
            """,
            "after_loss": "scaled = optimizer.scale_loss(loss)",
            "gradients": "gradients = tape.gradient(scaled, model.trainable_variables)",
        },
        cause="non-finite-not-synchronised",
    ),
    Case(
        "loss-scale-not-synchronised",
        LOOP,
        "update",
        """
        own = tf.reduce_all([tf.reduce_all(tf.math.is_finite(gradient)) for gradient in gradients])
        context = tf.distribute.get_replica_context()
        gradients = context.all_reduce("sum", gradients)
        every = tf.reduce_all([tf.reduce_all(tf.math.is_finite(gradient)) for gradient in gradients])
        gradients = [tf.where(every, g, tf.zeros_like(g)) / context.num_replicas_in_sync for g in gradients]
        finite = own
        """,
        given={
            "examples": _NO_GRADIENT,
            "inside": _FIRST_LAYER,
            "scope": _SCALE,
            "watched": "run.watch(variables=[scale])",
            "after": _HALVED,
        },
    ),
    Case(
        "loss-scale-not-synchronised",
        MODULE,
        "update",
        f"""
        own = tf.reduce_all([tf.reduce_all(tf.math.is_finite(gradient)) for gradient in gradients])
        {_SUMMED}
        every = tf.reduce_all([tf.reduce_all(tf.math.is_finite(gradient)) for gradient in gradients])
        gradients = [tf.where(every, gradient, tf.zeros_like(gradient)) for gradient in gradients]
        finite = own
        """,
        Form.MODULE,
        given={
            "examples": _NO_GRADIENT,
            "inside": _WEIGHT,
            "scope": _SCALE,
            "watched": "run.watch(variables=[scale])",
            "after": _HALVED,
        },
    ),
    Case(
        "sparse-gradient-mismatch",
        MODULE,
        "sparse",
        """
        context = tf.distribute.get_replica_context()
        gradient = tf.IndexedSlices(
            context.all_reduce("sum", gradient.values), gradient.indices, gradient.dense_shape
        )
        """,
        given={
            "module": """
            class Bag(tf.Module):
                def __init__(self):
                    super().__init__()
                    start = np.random.default_rng(3).normal(size=(12, 1)).astype("float32")
                    self.table = tf.Variable(start, name="table")

                def __call__(self, x, training=False):
                    return tf.reduce_sum(tf.gather(self.table, x), 1)
            """,
            "create": "with strategy.scope():\n    model = Bag()",
            "examples": "features = generator.integers(0, 12, size=(48, 2)).astype('int32')",
            "gradients": "gradient = tape.gradient(loss, model.table)",
            "update": "<sparse>",
            "apply": "model.table.assign_sub(learning_rate * tf.convert_to_tensor(gradient))",
        },
    ),
    Case(
        "reduction-overflow",
        MODULE,
        "update",
        """
        halves = [tf.cast(gradient, tf.float16) for gradient in gradients]
        halves = tf.distribute.get_replica_context().all_reduce("sum", halves)
        gradients = [tf.cast(half, gradient.dtype) for half, gradient in zip(halves, gradients)]
        """,
        given={
            "examples": "features, labels = np.abs(features) + 0.5, np.abs(labels) + 20_000.0",
            "loss": "loss = tf.reduce_mean(per_example_loss)",
            "apply": """
            for variable, gradient in zip(model.trainable_variables, gradients):
                variable.assign_sub(1e-3 * gradient / strategy.num_replicas_in_sync)
            """,
            "result": "return loss / strategy.num_replicas_in_sync",
        },
    ),
    Case(
        "gradient-unscaled-without-scale",
        LOOP,
        "after_loss",
        "pass",
        given={"scope": f"optimizer = {_SCALING_OPTIMIZER}\noptimizer.build(model.trainable_variables)"},
    ),
    Case(
        "gradient-unscaled-without-scale",
        TRAIN_STEP,
        "scaled",
        "pass",
        Form.TRAIN_STEP,
        given={
            "after_loss": "unscaled = loss\n<scaled>",
            "optimizer": f"optimizer = {_SCALING_OPTIMIZER}",
            "shown": """
            count = tf.distribute.get_strategy().num_replicas_in_sync
            self.loss_tracker.update_state(unscaled * count)
            """,
        },
    ),
    Case(
        "staleness-exceeded",
        LOOP,
        "apply",
        """
        now, gradients = gradients, [old.read_value() for old in kept]
        for old, gradient in zip(kept, now):
            old.assign(gradient)
        late = strategy.num_replicas_in_sync > 1
        optimizer.apply_gradients(zip(gradients if late else now, model.trainable_variables))
        """,
        given={
            "scope": """
            kept = [
                tf.Variable(
                    tf.zeros_like(v),
                    trainable=False,
                    synchronization=tf.VariableSynchronization.ON_READ,
                    aggregation=tf.VariableAggregation.SUM,
                )
                for v in model.trainable_variables
            ]
            """
        },
    ),
    Case(
        "shared-decision",
        LOOP,
        "decided",
        "loss_of_all = loss * strategy.num_replicas_in_sync",
        given={
            "update": """
            <decided>
            gradients = [tf.where(loss_of_all < 8, g, tf.zeros_like(g)) for g in gradients]
            """,
            "examples": "labels[:, 0] += 3.0 * (np.arange(48) % 8 >= 4)",
        },
        cause="gradient-not-aggregated",
    ),
    Case(
        "norms-of-parts",
        LOOP,
        "update",
        "gradients = [scaled(gradient) for gradient in gradients]",
        given={"before": "scaled = lambda gradient: gradient / (1.0 + tf.norm(gradient))"},
        cause="gradient-clipped-before-aggregation",
    ),
    Case(
        "shares-or-condition",
        MODULE,
        "shared",
        "pass",
        given={
            "scope": "state = tf.Variable(0.0, trainable=False, name='state')",
            "watched": "run.watch(variables=[state])",
            "examples": "features[:, 0] = np.where(np.arange(48) % 8 == 5, 3.0, 0.0)",
            "after": "share = tf.reduce_sum(x[:, 0])\n<shared>\nstate.assign_add(share)",
        },
        cause="state-not-aggregated",
    ),
)
