"""Damage a file of a save: loading it must raise, and the message must name the file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

# Keras reads its variables in a way that NumPy 2 warns about.
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")
alone = pytest.mark.ddl(strategies="one_device")
SUFFIXES = [
    pytest.param("", marks=pytest.mark.ddl_item("saving.tf_checkpoint"), id="checkpoint"),
    pytest.param(".weights.h5", marks=pytest.mark.ddl_item("saving.weights_h5"), id="weights"),
    pytest.param(".keras", marks=pytest.mark.ddl_item("saving.keras_file"), id="keras"),
]
KERNEL = np.array([[0.5], [-1.25], [2.0]], "float32")


def build() -> Any:
    from suites.subject import keras

    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    model.layers[-1].kernel.assign(KERNEL)
    return model


def saved(suffix: str, folder: Path) -> Path:
    """Save a model, and return the file with its values."""
    import tensorflow as tf

    path = folder / f"model{suffix}"
    if not suffix:
        tf.train.Checkpoint(model=build()).write(str(path))
        return folder / "model.data-00000-of-00001"
    (build().save if suffix == ".keras" else build().save_weights)(str(path))
    return path


def load(suffix: str, folder: Path) -> None:
    import tensorflow as tf

    from suites.subject import keras

    path = str(folder / f"model{suffix}")
    if not suffix:
        tf.train.Checkpoint(model=build()).read(path).assert_existing_objects_matched()
    elif suffix == ".keras":
        keras.models.load_model(path)
    else:
        build().load_weights(path)


@alone
@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_flipped_bit_is_noticed(suffix, ddl_strategy, tmp_path):
    """The sign of a weight changes."""
    file = saved(suffix, tmp_path)
    data = bytearray(file.read_bytes())
    data[data.index(KERNEL.tobytes()) + 3] ^= 0x80
    file.write_bytes(data)
    raised = False
    try:
        load(suffix, tmp_path)
    except Exception:
        raised = True
    assert raised, "a model with a wrong weight was loaded"


@alone
@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_cut_file_is_refused_by_its_name(suffix, ddl_strategy, tmp_path):
    file = saved(suffix, tmp_path)
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    try:
        load(suffix, tmp_path)
    except Exception as error:
        if str(tmp_path / f"model{suffix}") not in str(error):
            raise
    else:
        pytest.fail("half of a file was loaded")
