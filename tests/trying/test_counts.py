"""Lines of a script that compute with the number of replicas."""

from __future__ import annotations

import pytest

from pytest_ddl.trying.counts import line_with_bare_count, line_with_copied_count, line_with_other_count

COPY = "n = strategy.num_replicas_in_sync\n"
REPLICA = "def step(x):\n    return mean(x){}\nstrategy.run(step, args=(x,))\n"


@pytest.mark.parametrize(
    "code",
    [
        "batch = 16 * n\n",
        "batch = 16 * strategy.num_replicas_in_sync\n",
        "part = batch // n\n",
        "part = int(batch / n)\n",
        "def data():\n    return dataset.batch(16 * n)\n",
        "def batches(count):\n    return 16 * count\nbatch = batches(n)\n",
        "print(f'{n} replicas', n)\nassert n == 2\n",
        "if n > 1:\n    print('several')\n",
        REPLICA.format(" / strategy.num_replicas_in_sync"),
        "count = int(strategy.num_replicas_in_sync)\nbatch = 8 * count\n",
        "model.optimizer.learning_rate.assign(0.1 * n)\n",
        "class Warm(Callback):\n    def on_epoch_begin(self, epoch):\n        self.model.optimizer.lr = 0.1 * n\n",
    ],
)
def test_the_size_of_a_batch_is_no_bare_use(code: str) -> None:
    assert line_with_bare_count(COPY + code, told=(1, 2)) is None


@pytest.mark.parametrize(
    ("code", "line"),
    [
        (REPLICA.format(" / n"), 3),
        (REPLICA.format(" * n"), 3),
        ("def scaled(x):\n    return x * n\n" + REPLICA.format(" + scaled(x)"), 3),
        ("def scaled(x, count):\n    return x\n" + REPLICA.format(" + scaled(x, n)"), 5),
        ("model.compile(loss_weights=[1 / n])\n", 2),
        ("dataset = dataset.shard(n, 0)\n", 2),
        ("rest = n // 2\n", 2),
        ("weight.assign(weight * n)\n", 2),
        ("def scale():\n    model.set_weights([w * n for w in model.get_weights()])\n", 3),
        ("class Own(Callback):\n    def on_train_batch_end(self, batch):\n        scaled = w * n\n", 4),
    ],
)
def test_other_uses_are_found(code: str, line: int) -> None:
    assert line_with_bare_count(COPY + code, told=(1, 2)) == line


TRAIN_STEP = """\
class Own(Model):
    def train_step(self, data):
        {}
        loss = self.loss_of(data) / {}
"""


@pytest.mark.parametrize("told", [(), (3,)], ids=["own number", "number of the strategy"])
@pytest.mark.parametrize(
    "uses",
    [
        ("n = get_strategy().num_replicas_in_sync", "n"),
        ("self.n = get_strategy().num_replicas_in_sync", "self.n"),
        ("pass", "(get_strategy()\n          .num_replicas_in_sync)"),
    ],
    ids=["copy", "attribute", "read"],
)
def test_a_number_that_is_true_is_no_bare_use(uses: tuple[str, str], told: tuple[int, ...]) -> None:
    told = (5,) if told and uses[0] == "pass" else told
    assert line_with_bare_count(TRAIN_STEP.format(*uses), told) == (4 if told else None)


@pytest.mark.parametrize(
    ("code", "line"),
    [
        ("n = s.num_replicas_in_sync\ndef f(x):\n    return x / n\n", 3),
        ("n = float(s.num_replicas_in_sync)\ndef f(x):\n    return x / n\n", 3),
        ("n = 4 * s.num_replicas_in_sync\ndef f(x):\n    return x / n\n", None),
        ("n = s.num_replicas_in_sync\nb = 4 * n\n", None),
    ],
)
def test_a_copy_of_the_number_of_replicas_is_found_in_functions(code: str, line: int | None) -> None:
    assert line_with_copied_count(code, told=(1,)) == line


@pytest.mark.parametrize(
    ("code", "line"),
    [
        ("rate = 0.1 * n\n", 2),
        ("rate = 0.1\nrate *= n\n", 3),
        ("sgd = SGD(learning_rate=0.1 * n)\n", 2),
        ("BATCH_SIZE = 16 * n\n", None),
        ("global_bs = 16\nglobal_bs *= n\n", None),
        ("dataset = dataset.batch(16 * n)\n", None),
        ("model.fit(x, batch_size=16 * n)\n", None),
        ("self.steps_per_epoch = rows // (16 * n)\n", None),
    ],
)
def test_products_without_the_name_of_a_size_are_asked_about(code: str, line: int | None) -> None:
    assert line_with_other_count(COPY + code, told=(1, 2)) == line
    assert line_with_bare_count(COPY + code, told=(1, 2)) is None
