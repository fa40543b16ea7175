"""Read what Keras prints, on every kind of output: progress bars, the progress of models, and their summaries."""

from __future__ import annotations

import contextlib
import io
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import pytest

from suites.linear import COPY_WARNING, strategy_of_many_fits
from suites.pairwise import pairwise
from suites.parameters.spaces import Arguments, Space, Wrong

pytestmark = [
    pytest.mark.ddl(strategies=["one_device"], keras="keras"),
    pytest.mark.filterwarnings(COPY_WARNING, "ignore:Your input ran out of data:UserWarning"),
]

OUTPUTS: Mapping[str, tuple[str, str | None, bool]] = {
    "UTF-8": ("utf-8", "utf-8", False),
    "a terminal": ("utf-8", "utf-8", True),
    "ASCII": ("ascii", "ascii", False),
    "Windows": ("cp1252", "cp1252", False),
    "nobody knows": ("ascii", None, False),
}
"""Name -> the characters that an output takes, the encoding that it says it has, and whether it is a terminal."""


class Output(io.TextIOWrapper):
    """A stdout that remembers what it got."""

    def __init__(self, kind: str) -> None:
        self.takes, self.says, self.terminal = OUTPUTS[kind]
        super().__init__(io.BytesIO(), encoding=self.takes, newline="")

    @property
    def encoding(self) -> Any:
        return self.says

    def isatty(self) -> bool:
        return self.terminal

    def text(self) -> str:
        """Return what was written, without colors and steps back."""
        self.flush()
        written: Any = self.buffer
        return re.sub(r"\x1b\[[\d;]*m|\x08", "", written.getvalue().decode(self.takes))


def shown(write: Callable[[], Any], kind: str = "UTF-8") -> str:
    """Return what a function prints."""
    output = Output(kind)
    with contextlib.redirect_stdout(output):
        write()
    return output.text()


def numbers(line: str) -> dict[str, float]:
    """Return the values that a line of progress shows by their names."""
    return {name: float(value) for name, value in re.findall(r" - (\w+): (-?[\d.]+(?:e[+-]\d+)?)", line)}


def places(text: str) -> list[tuple[int, str]]:
    """Return the counts that a bar shows, each with the total."""
    return [(int(count), total) for count, total in re.findall(r"(\d+)/(\d+|Unknown) ", text)]


BAR = Space(
    "utils.Progbar",
    {
        "target": (None, 0, 1, 3, 10, 12000),
        "width": (5, 20),
        "verbose": (0, 1, 2),
        "stateful_metrics": (None, ["level"]),
        "stateless_metrics": (None, ["other"]),
        "unit_name": ("step", "file"),
    },
    fixed={"interval": 0},
    allowed=lambda case: not (case.get("stateful_metrics") and case.get("stateless_metrics")),
)
VALUES = ((4.0, -2.0), (0.0, 1e-5), (8.0, 3.0))
"""Values of two numbers, one row for each step."""


def averaged(case: Arguments, name: str) -> bool:
    """Return whether a bar shows the average of all values of a number."""
    stateless = case.get("stateless_metrics")
    return name in stateless if stateless else name not in (case.get("stateful_metrics") or ())


def told(case: Arguments, steps: int) -> dict[str, float]:
    """Return what a bar shows after some steps."""
    columns = zip(("level", "other"), np.array(VALUES[:steps]).T, strict=True)
    return {name: float(column.mean() if averaged(case, name) else column[-1]) for name, column in columns}


@pytest.mark.ddl_item("fit.progress", shows="behavior")
def test_a_bar_shows_where_it_is(ddl_strategy):
    """It has any target, also none that is known, and no steps. What it is given with its end is shown as it is."""
    wrong, ends = Wrong(), {"level": 5.0, "other": -7.0}
    for case in BAR.cases():
        target, last = case["target"], 3 if case["target"] is None else case["target"]
        with wrong.of(case):
            bar, before = BAR.make(case), min(3, max(0, last - 1))

            def fill(bar: Any = bar, before: int = before, last: int = last) -> None:
                for row in VALUES[:before]:
                    bar.add(1, [*zip(("level", "other"), row, strict=True)])
                bar.update(last, [*ends.items()], finalize=True)

            lines = [line for line in re.split(r"[\r\n]", shown(fill)) if line.strip()]
            if not case["verbose"] or (case["verbose"] == 2 and not target):
                assert lines == []
                continue
            assert all(f"/{case['unit_name']}" in line for line in lines)
            assert numbers(lines[-1]) == pytest.approx(ends)
            steps = range(1, before + 1) if case["verbose"] == 1 else []
            assert places("\n".join(lines)) == [(step, str(target or "Unknown")) for step in (*steps, last)]
            for step, line in zip(steps, lines[:-1], strict=True):
                assert numbers(line) == pytest.approx(told(case, step), rel=1e-3)
    wrong.check()


@pytest.mark.ddl_item("fit.progress", shows="behavior")
def test_a_bar_that_reaches_its_target_shows_averages(ddl_strategy):
    """The documentation says that an average over time is shown, and nobody said that the bar ends."""
    wrong = Wrong()
    for case in BAR.cases(target=(3,), verbose=(1, 2)):
        with wrong.of(case):
            bar = BAR.make(case)

            def fill(bar: Any = bar) -> None:
                for row in VALUES:
                    bar.add(1, [*zip(("level", "other"), row, strict=True)])

            line = [line for line in re.split(r"[\r\n]", shown(fill)) if line.strip()][-1]
            assert numbers(line) == pytest.approx(told(case, 3), rel=1e-3)
    wrong.check()


BATCH, BATCHES = 2, 5
X = np.arange(2.0 * BATCH * BATCHES, dtype="float32").reshape(-1, 2) / 10
Y = X.sum(1, keepdims=True) * 3


def compiled(**arguments: Any) -> Any:
    """Return a model of one layer that is trained step by step, which is fast for few steps."""
    from suites.subject import keras

    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1, kernel_initializer="zeros")])
    model.compile(keras.optimizers.SGD(0.01), "mse", metrics=["mae"], run_eagerly=True, **arguments)
    model.evaluate(X, Y, verbose=0)  # the metrics know the outputs then, also if there will be no examples
    return model


def sources() -> Mapping[str, Callable[[], Any]]:
    """Return the ways to give all batches: those that know how many there are, and those that do not."""
    import tensorflow as tf

    known = tf.data.Dataset.from_tensor_slices((X, Y)).batch(BATCH)

    def yielded() -> Iterator[Any]:
        yield from known.as_numpy_iterator()

    return {
        "dataset": lambda: known,
        "dataset of an unknown size": lambda: known.filter(lambda *_one: True),
        "dataset of a generator": lambda: tf.data.Dataset.from_generator(yielded, output_signature=known.element_spec),
        "no batches": lambda: known.take(0),
        "no batches that are known": lambda: known.filter(lambda *_one: False),
    }


def run(model: Any, what: str, data: Any, verbose: int) -> dict[str, float]:
    """Call a method of a model. Return the numbers of its last epoch."""
    if what == "fit":
        history = model.fit(data, epochs=2, verbose=verbose, shuffle=False).history
        return {name: values[-1] for name, values in history.items()}
    if what == "evaluate":
        found: dict[str, float] = model.evaluate(data, verbose=verbose, return_dict=True)
        return found
    model.predict(data.map(lambda x, _y: x), verbose=verbose)
    return {}


@pytest.mark.ddl_item("fit.progress", "fit.fit.steps_per_execution", shows="behavior")
@pytest.mark.parametrize("what", ["fit", "evaluate", "predict"])
@pytest.mark.parametrize("size", ["known", "unknown", "unknown, several steps"])
def test_progress_of_any_data_ends_with_what_is_returned(size, what, ddl_strategy):
    """It shows the steps that are done, for each number of steps of an execution, and all of them in the end."""

    def allowed(case: Mapping[str, str]) -> bool:
        data = case.get("data", "")
        return not data or (
            (size[:7] == "unknown") == ("dataset of" in data) and not (what == "predict" and data.startswith("no"))
        )

    wrong = Wrong()
    steps_of_size = {"known": "123", "unknown": "1"}.get(size, "23")
    dimensions = {"data": [*sources()], "steps": steps_of_size, "verbose": "012"}
    with strategy_of_many_fits(ddl_strategy).scope():
        for case in pairwise(dimensions, allowed):
            steps, verbose, empty = int(case["steps"]), int(case["verbose"]), case["data"].startswith("no")
            with wrong.of(case):
                model, returned = compiled(steps_per_execution=steps), {}
                data = sources()[case["data"]]()
                text = shown(lambda m=model, d=data, v=verbose, r=returned: r.update(run(m, what, d, v)))
                assert bool(text) == (verbose == 1 or (verbose == 2 and (what == "fit" or not empty)))
                assert not verbose or re.findall(r"Epoch (\d)/2", text) == (["1", "2"] if what == "fit" else [])
                if verbose and not empty:
                    assert numbers(re.split(r"[\r\n]", text.strip())[-1]) == pytest.approx(returned, rel=1e-3)
                    counts = places(re.sub(r"Epoch .*", "", text))
                    assert counts[-1] == (BATCHES, str(BATCHES))
                    assert all(count % steps == 0 or count == BATCHES for count, _total in counts), counts
    wrong.check()


@pytest.mark.ddl_item("fit.predict", shows="behavior")
def test_there_are_no_predictions_for_no_examples(ddl_strategy):
    """They are an empty array, or a ``ValueError`` says that there are no examples."""
    from suites.subject import keras

    wrong = Wrong()
    with strategy_of_many_fits(ddl_strategy).scope():
        model = compiled()
        for name, data in (("array", X[:0]), ("dataset", sources()["no batches"]().map(lambda x, _y: x))):
            with wrong.of(name):
                try:
                    found = model.predict(data, verbose=0)
                except ValueError:
                    continue
                assert keras.ops.shape(found) == (0, 1)
    wrong.check()


def words(text: str) -> list[str]:
    """Return words and numbers that do not depend on time or on lines that are drawn."""
    text = re.sub(r"\d+[mun]?s(/step)?\b", "", text)
    return re.findall(r"[A-Za-z]\w*: [-\d.e]+|[A-Za-z][A-Za-z ]+|\(None, [\d, ]+\)", text)


@pytest.mark.ddl_item("fit.progress", shows="behavior")
@pytest.mark.parametrize("kind", [kind for kind in OUTPUTS if kind != "UTF-8"])
def test_any_output_gets_the_same_words(kind, ddl_strategy):
    """What an output cannot write is left out or drawn otherwise."""
    from suites.subject import keras

    wrong, rates = Wrong(), keras.callbacks.LearningRateScheduler(lambda _epoch: 0.01, verbose=1)
    with strategy_of_many_fits(ddl_strategy).scope():
        ways: Mapping[str, Callable[[Any], Any]] = {
            "summary": lambda model: model.summary(),
            "bars": lambda model: model.fit(X, Y, batch_size=20, verbose=1),
            "lines": lambda model: model.fit(X, Y, batch_size=20, verbose=2),
            "a callback": lambda model: model.fit(X, Y, batch_size=20, verbose=0, callbacks=[rates]),
        }
        for way, print_it in ways.items():
            if way == "summary" and OUTPUTS[kind][1] is None:
                continue  # another package writes the summary
            with wrong.of(way):
                models = [compiled(), compiled()]
                for model in models:
                    model.layers[0].name = model.name = "same"
                of_kind, expected = (
                    words(shown(lambda m=one, p=print_it: p(m), to))
                    for one, to in zip(models, (kind, "UTF-8"), strict=True)
                )
                assert expected
                assert of_kind == expected
    wrong.check()


@pytest.mark.ddl_item("fit.progress", shows="behavior")
def test_nothing_is_printed_without_interactive_logging(ddl_strategy):
    """The log gets the text in place of the output, for each thing that is printed."""
    from absl import logging

    from suites.subject import keras

    logged: list[str] = []
    wrong, taken = Wrong(), logging.info
    keras.utils.disable_interactive_logging()
    logging.info = lambda message, *_rest: logged.append(str(message))
    try:
        with strategy_of_many_fits(ddl_strategy).scope():
            model = compiled()
            for name, print_it in {
                "summary": lambda: model.summary(),
                "bars": lambda: model.fit(X, Y, verbose=1),
                "lines": lambda: model.fit(X, Y, verbose=2),
            }.items():
                with wrong.of(name):
                    logged.clear()
                    assert shown(print_it) == ""
                    assert words("\n".join(logged))
    finally:
        logging.info = taken
        keras.utils.enable_interactive_logging()
    wrong.check()
