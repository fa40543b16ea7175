"""All planted bugs, and why the rest of the visible corpus cannot be shown."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module

from tests.planted.planted import Planted

__all__ = ["ALIKE", "KNOWN_MISSES", "NOT_SHOWABLE", "PLANTED", "Planted"]

TOPICS = (
    "loss_scaling",
    "aggregation",
    "clipping",
    "accumulation",
    "sparse",
    "state",
    "schedules",
    "randomness",
    "metrics",
    "input_pipeline",
    "checkpoints",
    "parameter_server",
    "collectives",
    "setup",
    "model_parallel",
    "performance",
    "nonfinite",
    "endings",
    "translation",
    "misleading",
    "terms",
    "hidden_scales",
)

PLANTED: tuple[Planted, ...] = tuple(
    entry for topic in TOPICS for entry in import_module(f"tests.planted.{topic}").PLANTED
)

NOT_SHOWABLE: Mapping[str, str] = {
    "B17": "Keras 3.0.1 raised where clipnorm met tf.IndexedSlices; the installed release clips them",
    "D07": "a static shape of TensorFlow 2.0's rebatching, which raised; repaired long ago",
    "D15": "TensorFlow 2.0 raised for strings in a partial batch; repaired long ago",
    "E10": "restoring with another number of workers works with the installed releases",
    "F06": "an argument that the installed optimizers do not have",
    "G07": "an ordering token that the maintainers could not make fail either",
    "G08": "NCCL on GPUs",
    "G10": "NCCL on GPUs",
    "G11": "NCCL on GPUs",
    "G13": "a compiler's partitioner on a mesh of hundreds of devices",
    "H05": "Horovod's wrapper around optimizers; Horovod is not a strategy",
    "J02": "Megatron's attention over a split sequence; tf.distribute has no context parallelism",
    "J04": "a list of Megatron's combinations of parallelism, which TensorFlow does not have",
    "J05": "bugs of Megatron's own kernels and schedules",
    "J06": "a crash of DTensor on GPUs",
    "K03": "every embedding's gradient is gathered on CPUs; nothing that a program does makes it slow",
    "K04": "a look-up within TensorFlow's optimizers of 2.1, which the installed ones do not do",
    "K06": "reads within Keras' optimizers of 3.0, which the installed ones do not do",
}
"""Entries of the visible corpus that a CPU and the installed releases cannot show, with the reason."""

ALIKE: Mapping[str, str] = {
    "every_step_draws_the_same_features_to_drop": "a fixed random projection, and the part of the features that one "
    "model of an ensemble sees, are the same numbers for all examples in every step too",
    "two_models_share_one_accumulation_counter": "a model that is updated after more steps than the test has, as a "
    "generator after each fifth step of its critic, leaves the same records",
    "power_iteration_broadcasts_in_every_step": "all values are right. A replica function that assigns state of the "
    "first replica, which is TensorFlow's documented way, broadcasts it as well",
}
"""Name of a planted bug that is not caught -> the correct programs that do the same."""

KNOWN_MISSES: Mapping[tuple[str, str], str] = {
    (name, strategy): f"not caught: {reason}"
    for name, reason in ALIKE.items()
    for strategy in ("mirrored", "multi_worker_mirrored")
}
"""(name, strategy) of a planted bug that is not caught, or whose cause is not named first, with the reason."""
