"""Recipes of the documentation that save and restore with callbacks of ``Model.fit``."""

from __future__ import annotations

from typing import Any

from suites.faults.training import EPOCH, STEPS, data, layers, made

EPOCHS = STEPS // EPOCH


def compiled(run: Any) -> Any:
    """Return a model whose optimizer has its variables."""
    with run.strategy.scope():
        model = layers()
        model.compile(made("momentum"), "mse")
        model.optimizer.build(model.trainable_variables)
    return model


def backup_by_epoch(run: Any) -> None:
    """Back up after each epoch, with the default arguments."""
    _backed_up(run)


def double_backup_by_epoch(run: Any) -> None:
    """Back up after each epoch, and keep the backup before it too."""
    _backed_up(run, double_checkpoint=True)


def backup_by_batch(run: Any) -> None:
    """Back up after every second batch."""
    _backed_up(run, save_freq=2)


def _backed_up(run: Any, **arguments: Any) -> None:
    from suites.subject import keras

    model = compiled(run)
    run.watch(model=model, optimizer=model.optimizer)
    backup = keras.callbacks.BackupAndRestore(str(run.tmp_path / "backup"), **arguments)
    run.fit(model, data(run, EPOCH), epochs=EPOCHS, callbacks=[backup])


def saved_models(run: Any) -> None:
    """Save the whole model after each epoch, and load the newest file."""
    from suites.subject import keras

    folder = run.tmp_path / "saved"
    found = sorted(folder.glob("*.keras"))
    if found:
        with run.strategy.scope():
            model = keras.models.load_model(str(found[-1]))
    else:
        model = compiled(run)
    run.watch(model=model, optimizer=model.optimizer)
    save = keras.callbacks.ModelCheckpoint(str(folder / "{epoch}.keras"))
    begun = int(found[-1].stem) if found else 0
    folder.mkdir(exist_ok=True)
    run.fit(model, data(run, EPOCH), epochs=EPOCHS, initial_epoch=begun, callbacks=[save])
