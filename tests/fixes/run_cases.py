"""Mistakes in concurrent steps, in collectives, and in the run itself."""

from __future__ import annotations

from pytest_ddl.equivalence.causes.cause import Form
from tests.fixes.case import Case
from tests.fixes.templates import LOOP, MODULE, TRAIN_STEP

CASES = (
    Case(
        "collective-order-mismatch",
        MODULE,
        "ordered",
        "names = sorted(names, reverse=worker == 1)",
        given={
            "update": """
            names = ["weight", "second"]
            named = {"weight": gradients[0], "second": tf.reduce_sum(x, 0)[:, None]}
            names = list(names)
            <ordered>
            context = tf.distribute.get_replica_context()
            summed = {name: context.all_reduce("sum", named[name]) for name in names}
            gradients = [summed["weight"] + 0.0 * summed["second"]]
            """,
            "gradients": "gradients = [tape.gradient(loss, model.weight)]",
            "apply": "model.weight.assign_sub(learning_rate * gradients[0])",
        },
        strategy="multi_worker_mirrored",
    ),
    Case(
        "collective-shape-mismatch",
        MODULE,
        "together",
        'values = tf.distribute.get_replica_context().all_reduce("sum", values)',
        given={
            "after": """
            values = tf.ones((3 + worker,))
            <together>
            loss += 0.0 * tf.cast(tf.reduce_sum(values), loss.dtype)
            """
        },
        strategy="multi_worker_mirrored",
    ),
    Case(
        "collective-per-variable",
        MODULE,
        "update",
        """
        context = tf.distribute.get_replica_context()
        gradients = [context.all_reduce("sum", gradient) for gradient in gradients]
        """,
        given={
            "module": """
            class Deep(tf.Module):
                def __init__(self):
                    super().__init__()
                    random = np.random.default_rng(6)
                    starts = random.normal(size=(5, 4, 4)).astype("float32") * 0.4
                    self.kernels = [tf.Variable(start) for start in starts]
                    self.biases = [tf.Variable(tf.zeros((4,))) for _ in range(5)]

                def __call__(self, x, training=False):
                    for kernel, bias in zip(self.kernels, self.biases):
                        x = tf.tanh(tf.matmul(x, kernel) + bias)
                    return tf.reduce_mean(x, 1, keepdims=True)
            """,
            "create": "with strategy.scope():\n    model = Deep()",
        },
    ),
    Case(
        "retraced-every-step",
        LOOP,
        "number",
        "pass",
        given={
            "reduced": 'return strategy.reduce("SUM", losses, axis=None) + 0.0 * tf.cast(number, losses_dtype)',
            "before": "losses_dtype = keras.config.floatx()",
            "compiled": """
            def numbered_step(batch, number):
                losses = strategy.run(replica_step, args=(batch,))
                return strategy.reduce("SUM", losses, axis=None) + 0.0 * tf.cast(number, losses_dtype)

            train_step = tf.function(numbered_step)
            """,
            "loop": """
            for number, batch in enumerate(run.batches(dataset)):
                <number>
                loss = train_step(batch, number)
                run.record(loss=loss)
            """,
        },
    ),
    Case("eager-step", LOOP, "compiled", "pass"),
    Case(
        "optimizer-not-built",
        LOOP,
        "made",
        "pass",
        given={"scope": "optimizer = keras.optimizers.Adam(learning_rate)"},
    ),
    Case(
        "optimizer-not-built",
        TRAIN_STEP,
        "made",
        "pass",
        Form.TRAIN_STEP,
        given={
            "scope": "model.second_optimizer = keras.optimizers.Adam(learning_rate)",
            "apply": "self.second_optimizer.apply_gradients(zip(gradients, self.trainable_variables))",
        },
    ),
)
