"""Table of callbacks that change training or write files, with what they must lead to for a linear model."""

from __future__ import annotations

import csv
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from suites.models.linear import Trained

EPOCHS, RATE = 4, 0.125
Rates = tuple[float, ...]


@dataclass(frozen=True)
class Case:
    """A callback in a training of ``EPOCHS`` epochs, in which the validation loss falls in each epoch."""

    id: str
    item: str
    make: Callable[[Any, Path], Any]
    """Builds the callback with the Keras and the folder that it is given."""
    rates: Rates = (RATE,) * EPOCHS
    """Learning rate of each epoch. An epoch without one is not trained."""
    left: int = -1
    """Epoch whose weights are left at the end."""
    check: Callable[[Any, Path, Trained, dict[str, list[float]]], None] | None = None
    """Checks what else is left: Keras, the folder, the model's result and the history."""


def _is_in_history(rates: Rates) -> Callable[[Any, Path, Trained, dict[str, list[float]]], None]:
    def check(_keras: Any, _folder: Path, _trained: Trained, history: dict[str, list[float]]) -> None:
        (found,) = (history[name] for name in ("lr", "learning_rate") if name in history)
        # Keras keeps the rate in float32; all rates of this table are powers of two.
        np.testing.assert_array_equal(found, rates)

    return check


def _table_is_history(_keras: Any, folder: Path, trained: Trained, history: dict[str, list[float]]) -> None:
    rows = list(csv.DictReader((folder / "log.csv").read_text().splitlines(), delimiter=";"))
    assert [row["epoch"] for row in rows] == [str(epoch) for epoch in range(EPOCHS)]
    for name in ("loss", "val_loss"):
        # The file has all digits of a number, so that reading gives the same number.
        np.testing.assert_allclose([float(row[name]) for row in rows], history[name], rtol=1e-15)
    np.testing.assert_allclose([float(row["val_loss"]) for row in rows], trained.validation, rtol=1e-12)


def _halved(epoch: int, rate: float) -> float:
    return rate / 2 if epoch else rate


def _reduced(keras: Any, _folder: Path) -> Any:
    # In the mode "max", a loss that falls does not improve.
    return keras.callbacks.ReduceLROnPlateau(
        "val_loss", factor=0.5, patience=1, mode="max", min_delta=0, min_lr=RATE / 4
    )


HALVED = (RATE, RATE / 2, RATE / 4, RATE / 8)
REDUCED = (RATE, RATE, RATE / 2, RATE / 4)
COOLED = (RATE, RATE, RATE / 2, RATE / 2)

CASES = (
    Case(
        "schedule",
        "callback.ReduceLROnPlateau_LearningRateScheduler",
        lambda keras, _: keras.callbacks.LearningRateScheduler(_halved),
        rates=HALVED,
        check=_is_in_history(HALVED),
    ),
    Case(
        "plateau",
        "callback.ReduceLROnPlateau_LearningRateScheduler",
        _reduced,
        rates=REDUCED,
        check=_is_in_history(REDUCED),
    ),
    Case(
        "plateau_with_cooldown",
        "callback.ReduceLROnPlateau_LearningRateScheduler",
        lambda keras, _: keras.callbacks.ReduceLROnPlateau(
            "val_loss", factor=0.5, patience=1, mode="max", min_delta=0, cooldown=2
        ),
        rates=COOLED,
        check=_is_in_history(COOLED),
    ),
    Case(
        "stop_and_restore",
        "callback.EarlyStopping_agrees_on_all_workers",
        lambda keras, _: keras.callbacks.EarlyStopping("val_loss", mode="max", patience=2, restore_best_weights=True),
        rates=(RATE,) * 3,
        left=0,
    ),
    Case(
        "stop_for_small_changes",
        "callback.EarlyStopping_agrees_on_all_workers",
        lambda keras, _: keras.callbacks.EarlyStopping("loss", min_delta=1e6, patience=1),
        rates=(RATE,) * 2,
    ),
    Case(
        "table",
        "callback.CSVLogger_TerminateOnNaN",
        lambda keras, folder: keras.callbacks.CSVLogger(str(folder / "log.csv"), separator=";"),
        check=_table_is_history,
    ),
)
