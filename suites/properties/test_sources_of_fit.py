"""Give ``fit`` the same batches from every source: it trains the same, counts each step once, and calls each hook."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from suites.linear import COPY_WARNING, check_weights, linear, strategy_of_many_fits
from suites.models.linear import data, train
from suites.parameters.spaces import Wrong

pytestmark = [
    pytest.mark.ddl(strategies=["one_device"], keras="keras"),
    pytest.mark.usefixtures("float64"),
    pytest.mark.filterwarnings(COPY_WARNING, "ignore:Your input ran out of data:UserWarning"),
]
BATCH, EPOCHS, RATE = 2, 2, 0.125
TRAIN = data(3 * BATCH)
BATCHES = [*TRAIN.unweighted.batches(BATCH)]


def sequence(keras: Any, **arguments: Any) -> Any:
    """Return batches that remember which of their hooks were called."""

    class Own(keras.utils.PyDataset):  # type: ignore[misc]
        called: list[str]

        def __len__(self) -> int:
            return len(BATCHES)

        def __getitem__(self, index: int) -> Any:
            return BATCHES[index].x, BATCHES[index].y

        def on_epoch_begin(self) -> None:
            self.called.append("begin")

        def on_epoch_end(self) -> None:
            self.called.append("end")

    found = Own(**arguments)
    found.called = []
    return found


def sources(keras: Any) -> Mapping[str, Callable[[], Any]]:
    import tensorflow as tf

    known = tf.data.Dataset.from_tensor_slices((TRAIN.x, TRAIN.y)).batch(BATCH)
    return {
        "known": lambda: known,
        "unknown": lambda: known.filter(lambda *_one: True),
        "generator": lambda: ((one.x, one.y) for _epoch in range(EPOCHS) for one in BATCHES),
        "sequence": lambda: sequence(keras),
        "sequence of workers": lambda: sequence(keras, workers=2, max_queue_size=2),
    }


NAMES = ("known", "unknown", "generator", "sequence", "sequence of workers")


@pytest.mark.ddl_item("fit.fit.pydataset", "fit.fit.steps_per_epoch", "fit.fit.steps_per_execution")
@pytest.mark.parametrize("name", NAMES)
def test_each_source_trains_the_same(name, ddl_strategy):
    """The optimizer counts the batches, whether their number is known or told, in executions of one and more steps."""
    from suites.subject import keras

    wrong, strategy = Wrong(), strategy_of_many_fits(ddl_strategy)
    expected = train(BATCHES, [RATE] * EPOCHS).weights
    for steps in (1, 2):
        for told in (None, len(BATCHES)):
            if name == "generator" and told is None:
                continue  # the first epoch would take all
            with wrong.of(f"steps_per_execution={steps}, steps_per_epoch={told}"):
                model = linear(strategy, rate=RATE, loss="mse", steps_per_execution=steps)
                given = sources(keras)[name]()
                repeated = given.repeat() if told and hasattr(given, "repeat") else given
                model.fit(repeated, epochs=EPOCHS, steps_per_epoch=told, shuffle=False, verbose=0)
                check_weights(strategy, model, expected)
                assert int(model.optimizer.iterations.numpy()) == EPOCHS * len(BATCHES)
                if "sequence" in name:
                    assert given.called == ["begin", "end"] * EPOCHS
    wrong.check()
