"""The medical study: its models, their scores, and the options that it gives to the evaluation."""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np
import pytest

from asv_bench.studies import images, medical
from asv_bench.studies.__main__ import main
from asv_bench.studies.medical_study import MODELS, QUICK
from pytest_ddl.commands import evaluate as command

pytest.importorskip("sklearn")


@pytest.mark.parametrize("model", MODELS)
def test_the_study_is_an_evaluation_of_its_model(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[argparse.Namespace] = []

    def remember(options: argparse.Namespace) -> int:
        given.append(options)
        return 7

    monkeypatch.setattr(command, "main", remember)
    options = [f"--model={model}", "--strategies=mirrored", "--output=here", "--quick"]
    assert main(["medical", *options]) == 7
    (found,) = given
    assert (found.target, found.strategy, found.output) == (MODELS[model], "mirrored", "here")
    assert (found.replicas, found.seeds, found.restart) == ("1,2", 3, False)
    assert len(QUICK) == 5


@pytest.mark.slow
def test_scores_are_those_of_keras() -> None:
    import keras

    _, _, inputs, labels = images.digits()
    layers = [keras.layers.Conv2D(8, 3, activation="relu"), keras.layers.Flatten(), keras.layers.Dense(10)]
    _agree(keras.Sequential([keras.Input((8, 8, 1)), *layers]), "categorical", inputs, labels, images.scores)
    data = medical.patients()
    layers = [keras.layers.Dense(4, activation="relu"), keras.layers.Dense(1)]
    _agree(keras.Sequential([keras.Input((30,)), *layers]), "binary", data.x_test, data.y_test, medical.scores)


def _agree(model: Any, kind: str, inputs: Any, labels: Any, scores: Any) -> None:
    import keras

    logits = model(inputs).numpy()
    loss = getattr(keras.losses, f"{kind}_crossentropy")(labels, logits, from_logits=True)
    found = scores([np.asarray(one) for one in model.get_weights()], inputs, labels)
    right = logits.argmax(1) == labels.argmax(1) if kind == "categorical" else (logits > 0) == (labels > 0.5)
    assert found == (pytest.approx(right.mean()), pytest.approx(float(np.mean(loss)), rel=1e-5))
