"""Give callbacks that watch a number scripted values, and compare what they do with their documentation."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from suites import subject
from suites.linear import COPY_WARNING, linear, strategy_of_many_fits
from suites.models.linear import data
from suites.parameters.spaces import Arguments, Space, Wrong

pytestmark = [pytest.mark.usefixtures("float64"), pytest.mark.filterwarnings(COPY_WARNING)]

SCORES = (4.0, 3.0, 3.5, 3.25, 2.75, 2.5, 5.0, 6.0, 6.0, 6.0)
"""The watched number after each epoch. It falls, stops, falls by less than one, and rises."""
BATCHES, RATE, SAVED = 2, 0.125, 6
"""The last: epochs of a training that writes files, which takes time."""
_MODES = {"mode": ("min", "max", "auto")}
_WATCHED = {"monitor": ("score", "other"), "verbose": (0, 1), **_MODES}
BOTH = ("one_device", "mirrored")


def _knows_the_direction(case: Arguments) -> bool:
    """Return whether the mode is given or can be found: tf_keras reads it from the name, Keras 3 asks the metric."""
    return case.get("mode") != "auto" or case.get("monitor") != "other" or subject.name() == subject.KERAS_3


STOPPING = Space(
    "callbacks.EarlyStopping",
    {
        **_WATCHED,
        "min_delta": (0, 0.5),
        "patience": (0, 2, 3),
        "baseline": (None, 3.0),
        "restore_best_weights": (False, True),
        "start_from_epoch": (0, 3),
    },
    allowed=_knows_the_direction,
)
PLATEAU = Space(
    "callbacks.ReduceLROnPlateau",
    {
        **_WATCHED,
        "factor": (0.5, 0.25),
        "patience": (1, 2),
        "min_delta": (0.0, 0.5),
        "cooldown": (0, 2),
        "min_lr": (0.0, RATE / 4),
    },
    allowed=_knows_the_direction,
)
SAVING = Space(
    "callbacks.ModelCheckpoint",
    {
        **_WATCHED,
        "save_best_only": (False, True),
        "save_weights_only": (False, True),
        "initial_value_threshold": (None, 3.0),
    },
    # Without save_best_only the mode has no effect, which would hide a wrong direction from pairs of values.
    allowed=lambda case: (
        _knows_the_direction(case) and (case.get("mode") != "auto" or case.get("save_best_only", True))
    ),
)
RATES = Space("callbacks.LearningRateScheduler", {"schedule": ("epoch", "epoch and rate"), "verbose": (0, 1)})
TABLE = Space("callbacks.CSVLogger", {"separator": (",", ";"), "append": (False, True)})
SPACES = dict.fromkeys((STOPPING, PLATEAU, SAVING, RATES, TABLE), BOTH)
"""Spaces of the properties of this file -> their strategies."""


def _metrics(strategy: Any) -> list[Any]:
    """Return metrics that are better if they are small, and if they are large."""
    from suites.subject import keras

    with strategy.scope():
        return [keras.metrics.MeanSquaredError(name="score"), keras.metrics.BinaryAccuracy(name="other")]


class Program:
    """A model that is trained again and again from the same weights; what it did is in lists by epoch."""

    def __init__(self, strategy: Any) -> None:
        strategy = strategy_of_many_fits(strategy)
        self._data = data(8 * BATCHES).unweighted
        self._model = linear(strategy, rate=RATE, metrics=_metrics(strategy))
        self._start = self._model.get_weights()
        self.weights: list[Any] = []
        self.rates: list[float] = []

    def train(self, *callbacks: Any, epochs: int = len(SCORES), every: Any = None) -> Any:
        """Return the weights that are left.

        :param every: epochs with a validation, as ``validation_freq`` has them. ``None`` for none.
        """
        from suites.subject import keras

        program = self

        class Script(keras.callbacks.Callback):
            def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
                # Not at the begin of the epoch, when other callbacks have still to set it.
                if batch == 0:
                    program.rates.append(float(np.asarray(self.model.optimizer.learning_rate)))

            def on_epoch_end(self, epoch: int, logs: Any) -> None:
                logs["score"], logs["other"] = SCORES[epoch], -SCORES[epoch]
                if "val_score" in logs:
                    logs["val_score"] = SCORES[epoch]
                program.weights.append(self.model.get_weights())

        self.weights, self.rates = [], []
        self._model.set_weights(self._start)
        self._model.optimizer.learning_rate = RATE
        given: dict[str, Any] = {"batch_size": 8, "shuffle": False, "verbose": 0, "epochs": epochs}
        if every is not None:
            given |= {"validation_data": (self._data.x, self._data.y), "validation_freq": every}
        self._model.fit(self._data.x, self._data.y, callbacks=[Script(), *callbacks], **given)
        return self._model.get_weights()


def watched(case: Arguments) -> list[float]:
    return [score if case["monitor"] == "score" else -score for score in SCORES]


def better(case: Arguments, one: float, than: float | None) -> bool:
    """Return whether a number improves on another one by more than ``min_delta``."""
    smaller = case["monitor"] == "score" if case["mode"] == "auto" else case["mode"] == "min"
    sign = 1 if smaller else -1
    return than is None or sign * (than - one) > case.get("min_delta", 0)


def stopping(case: Arguments) -> tuple[int, int]:
    """Return how many epochs are trained, and the epoch with the best number, or -1 for the last epoch."""
    best, waited, chosen = None, 0, -1
    for epoch, score in enumerate(watched(case)):
        if epoch < case["start_from_epoch"]:
            continue
        waited += 1
        if better(case, score, best):
            best, chosen = score, epoch
            if case["baseline"] is None or better(case, score, case["baseline"]):
                waited = 0
        elif waited >= case["patience"] and epoch > 0:
            return epoch + 1, chosen
    return len(SCORES), chosen


def plateau(case: Arguments) -> list[float]:
    """Return the learning rate of each epoch."""
    best, waited, cooling, rate, found = None, 0, 0, RATE, [RATE]
    for score in watched(case):
        if cooling:
            cooling, waited = cooling - 1, 0
        if better(case, score, best):
            best, waited = score, 0
        elif not cooling:
            waited += 1
            if waited >= case["patience"] and rate > case["min_lr"]:
                rate, cooling, waited = max(rate * case["factor"], case["min_lr"]), case["cooldown"], 0
        found.append(rate)
    return found[: len(SCORES)]


def saved(case: Arguments) -> list[int]:
    """Return the epochs after which a file is written, from 1 as names of files have them."""
    best, found = case["initial_value_threshold"], []
    for epoch, score in enumerate(watched(case)[:SAVED], 1):
        if not case["save_best_only"] or better(case, score, best):
            best = score
            found.append(epoch)
    return found


@pytest.mark.ddl(strategies=list(BOTH))
@pytest.mark.ddl_item("callback.EarlyStopping_agrees_on_all_workers")
def test_training_stops_where_the_number_does_not_improve(ddl_strategy):
    wrong, program = Wrong(), Program(ddl_strategy)
    for case in STOPPING.cases():
        with wrong.of(case):
            left = program.train(STOPPING.make(case))
            epochs, best = stopping(case)
            assert len(program.weights) == epochs
            expected = program.weights[best if case["restore_best_weights"] else -1]
            np.testing.assert_array_equal(left, expected)
    wrong.check()


@pytest.mark.ddl(strategies=list(BOTH))
@pytest.mark.ddl_item("callback.ReduceLROnPlateau_LearningRateScheduler")
def test_the_rate_falls_where_the_number_does_not_improve(ddl_strategy):
    wrong, program = Wrong(), Program(ddl_strategy)
    for case in PLATEAU.cases():
        with wrong.of(case):
            program.train(PLATEAU.make(case))
            np.testing.assert_allclose(program.rates, plateau(case), rtol=1e-6)  # rates are in float32
    wrong.check()


@pytest.mark.ddl(strategies=["one_device"])
@pytest.mark.ddl_item(
    "callback.EarlyStopping_agrees_on_all_workers", "callback.ReduceLROnPlateau_LearningRateScheduler"
)
def test_a_callback_of_a_second_training_begins_anew(ddl_strategy):
    """Its state from the first training, such as the best number, does not count in the second one."""
    wrong, program = Wrong(), Program(ddl_strategy)
    for case in STOPPING.cases()[::3]:
        with wrong.of(STOPPING.name, case):
            callback = STOPPING.make(case)
            for _ in range(2):
                program.train(callback)
                assert len(program.weights) == stopping(case)[0]
    for case in PLATEAU.cases()[::3]:
        with wrong.of(PLATEAU.name, case):
            callback = PLATEAU.make(case)
            for _ in range(2):
                program.train(callback)
                np.testing.assert_allclose(program.rates, plateau(case), rtol=1e-6)  # rates are in float32
    wrong.check()


@pytest.mark.ddl(strategies=list(BOTH))
@pytest.mark.ddl_item("callback.ReduceLROnPlateau_LearningRateScheduler")
def test_a_rate_is_that_of_the_function(ddl_strategy):
    wrong, program = Wrong(), Program(ddl_strategy)
    functions = {"epoch": lambda epoch: RATE / (1 + epoch), "epoch and rate": lambda _epoch, rate: rate / 2}
    for case in RATES.cases():
        with wrong.of(case):
            program.train(RATES.make({**case, "schedule": functions[case["schedule"]]}), epochs=4)
            expected = [RATE / (1 + epoch if case["schedule"] == "epoch" else 2 ** (epoch + 1)) for epoch in range(4)]
            np.testing.assert_allclose(program.rates, expected, rtol=1e-6)
    wrong.check()


def _wrapped(keras: Any, kind: str) -> tuple[Any, list[Any]]:
    """Return an optimizer that holds others, with the optimizers whose rates a callback sets."""
    first, second = keras.optimizers.SGD(RATE), keras.optimizers.SGD(2 * RATE)
    if kind == "loss scale":
        return keras.optimizers.LossScaleOptimizer(first), [first]
    chosen = keras.optimizers.OptimizerMap(first, {".*kernel": second})
    return keras.optimizers.MultiOptimizer(chosen), [first, second]


@pytest.mark.ddl(strategies=["one_device"])
@pytest.mark.ddl_item("callback.ReduceLROnPlateau_LearningRateScheduler")
@pytest.mark.parametrize("callback", ["LearningRateScheduler", "ReduceLROnPlateau"])
@pytest.mark.parametrize(
    "kind", [pytest.param("map", marks=pytest.mark.ddl_item("optimizer.multi_optimizer")), "loss scale"]
)
def test_a_rate_is_set_in_every_optimizer(kind, callback, ddl_strategy):
    """Each callback halves the rates at the end of an epoch or at the begin of one, but for the first."""
    from suites.subject import keras

    with ddl_strategy.scope():
        optimizer, inner = _wrapped(keras, kind)
    before = [float(np.asarray(one.learning_rate)) for one in inner]
    model = linear(ddl_strategy, optimizer=lambda _keras: optimizer)
    made = {
        "LearningRateScheduler": lambda: keras.callbacks.LearningRateScheduler(
            lambda epoch, rate: rate / 2 if epoch else rate
        ),
        # No number is better than the first one by so much.
        "ReduceLROnPlateau": lambda: keras.callbacks.ReduceLROnPlateau("loss", factor=0.5, patience=1, min_delta=1e9),
    }[callback]()
    given = data(8 * BATCHES).unweighted
    model.fit(given.x, given.y, batch_size=8, epochs=3, shuffle=False, verbose=0, callbacks=[made])
    found = [float(np.asarray(one.learning_rate)) for one in inner]
    np.testing.assert_allclose(found, [rate / 4 for rate in before], rtol=1e-6)  # rates are in float32


@pytest.mark.ddl(strategies=list(BOTH))
@pytest.mark.ddl_item("callback.ModelCheckpoint")
def test_files_are_written_where_the_number_improves(ddl_strategy, tmp_path):
    from suites.subject import keras

    wrong, program = Wrong(), Program(ddl_strategy)
    for number, case in enumerate(SAVING.cases()):
        folder = tmp_path / str(number)
        folder.mkdir()
        end = ".weights.h5" if case["save_weights_only"] else ".keras"
        with wrong.of(case):
            program.train(keras.callbacks.ModelCheckpoint(str(folder / f"{{epoch}}{end}"), **case), epochs=SAVED)
            found = sorted(int(file.name.removesuffix(end)) for file in folder.iterdir())
            assert found == saved(case)
    wrong.check()


@pytest.mark.ddl(strategies=list(BOTH))
@pytest.mark.ddl_item("callback.CSVLogger_TerminateOnNaN")
def test_a_table_of_two_trainings(ddl_strategy, tmp_path):
    """The second training begins the table again, or adds its rows under the same head."""
    from suites.subject import keras

    wrong, program = Wrong(), Program(ddl_strategy)
    for number, case in enumerate(TABLE.cases()):
        file = tmp_path / f"{number}.csv"
        with wrong.of(case):
            for _ in range(2):
                program.train(keras.callbacks.CSVLogger(str(file), **case), epochs=3)
            head, *rows = (line.split(case["separator"]) for line in file.read_text(encoding="utf-8").splitlines())
            assert head[0] == "epoch"
            assert [row[0] for row in rows] == ["0", "1", "2"] * (2 if case["append"] else 1)
            scores = [float(row[head.index("score")]) for row in rows]
            assert scores == [*SCORES[:3]] * (2 if case["append"] else 1)
    wrong.check()


EVERY = pytest.mark.parametrize("every", [2, 3, [2, 5]], ids=str)
"""Epochs with a validation, as ``validation_freq`` has them."""
SELDOM = pytest.mark.filterwarnings("ignore:.*(not available|val_score available)")


def with_validation(every: int | list[int]) -> list[int]:
    return [n for n in range(len(SCORES)) if ((n + 1) % every == 0 if isinstance(every, int) else n + 1 in every)]


@pytest.mark.ddl(strategies=list(BOTH))
@pytest.mark.ddl_item(
    "callback.CSVLogger_TerminateOnNaN",
    "callback.EarlyStopping_agrees_on_all_workers",
    "callback.ReduceLROnPlateau_LearningRateScheduler",
)
@SELDOM
@EVERY
def test_epochs_without_a_validation_do_not_count(every, ddl_strategy, tmp_path):
    """They are as if they were not there, and have no number in a table."""
    from suites.subject import keras

    program, file, told = Program(ddl_strategy), tmp_path / "table.csv", with_validation(every)
    # No number is better than the first one by so much.
    watched = {"monitor": "val_score", "mode": "min", "min_delta": 1e9}
    program.train(
        keras.callbacks.CSVLogger(str(file)),
        keras.callbacks.ReduceLROnPlateau(factor=0.5, patience=1, **watched),
        keras.callbacks.EarlyStopping(patience=2, **watched),
        every=every,
    )
    epochs = told[2] + 1 if len(told) > 2 else len(SCORES)
    assert len(program.weights) == epochs
    halved = [max(0, sum(one < epoch for one in told) - 1) for epoch in range(epochs)]
    np.testing.assert_allclose(program.rates, [RATE / 2**number for number in halved], rtol=1e-6)
    head, *rows = (line.split(",") for line in file.read_text(encoding="utf-8").splitlines())
    expected = [str(SCORES[epoch]) if epoch in told else "NA" for epoch in range(epochs)]
    assert [row[head.index("val_score")] for row in rows] == expected


@pytest.mark.ddl(strategies=list(BOTH))
@pytest.mark.ddl_item("callback.ModelCheckpoint")
@SELDOM
@EVERY
def test_the_best_is_of_an_epoch_with_a_validation(every, ddl_strategy, tmp_path):
    from suites.subject import keras

    best, saved = None, []
    for epoch in with_validation(every):
        if best is None or SCORES[epoch] < best:
            best = SCORES[epoch]
            saved.append(epoch + 1)
    given = {"monitor": "val_score", "mode": "min", "save_best_only": True, "save_weights_only": True}
    callback = keras.callbacks.ModelCheckpoint(str(tmp_path / "{epoch}.weights.h5"), **given)
    Program(ddl_strategy).train(callback, every=every)
    found = sorted(int(file.name.partition(".")[0]) for file in tmp_path.iterdir())
    assert found == saved, f"files of the epochs {found}, not of {saved}"
