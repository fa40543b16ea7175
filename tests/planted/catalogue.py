"""All planted bugs, and why the rest of the visible corpus cannot be shown."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module

from tests.planted.planted import Planted

__all__ = ["KNOWN_MISSES", "NOT_SHOWABLE", "PLANTED", "Planted"]

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

KNOWN_MISSES: Mapping[tuple[str, str], str] = {
    ("accumulator_is_reset_on_the_first_replica_alone", "mirrored"): "caught, cause not known",
    ("accumulator_is_reset_on_the_first_replica_alone", "multi_worker_mirrored"): "caught, cause not known",
    ("accumulator_keeps_the_first_replica_alone", "mirrored"): "caught, cause not known",
    ("backbone_thaws_under_a_strategy", "mirrored"): "caught, cause not known",
    ("backbone_thaws_under_a_strategy", "multi_worker_mirrored"): "caught, cause not known",
    ("clip_and_decay_run_in_every_micro_step", "mirrored"): "caught, cause not known",
    ("clip_and_decay_run_in_every_micro_step", "multi_worker_mirrored"): "caught, cause not known",
    ("counter_is_made_outside_the_scope", "mirrored"): "named state-not-aggregated",
    ("counter_is_made_outside_the_scope", "mirrored[replicas=4]"): "named state-not-aggregated",
    (
        "every_step_draws_the_same_features_to_drop",
        "mirrored",
    ): "not caught: it may be meant",
    (
        "every_step_draws_the_same_features_to_drop",
        "multi_worker_mirrored",
    ): "not caught: it may be meant",
    ("frozen_layer_is_updated", "mirrored"): "not caught",
    ("frozen_layer_is_updated", "multi_worker_mirrored"): "not caught",
    ("gradients_are_taken_on_an_old_copy", "mirrored"): "named reported-loss-wrong",
    ("late_part_of_a_tied_gradient_is_not_reduced", "mirrored"): "named replicas-diverged",
    ("late_part_of_a_tied_gradient_is_not_reduced", "multi_worker_mirrored"): "named workers-diverged",
    ("limit_grows_with_the_replicas", "mirrored"): "caught, cause not known",
    ("limit_grows_with_the_replicas", "multi_worker_mirrored"): "caught, cause not known",
    ("loss_is_not_scaled_under_a_strategy", "mirrored"): "caught, cause not known",
    ("loss_is_not_scaled_under_a_strategy", "multi_worker_mirrored"): "caught, cause not known",
    ("momentum_of_the_optimizer_is_scaled", "mirrored"): "named gradient-scaled-by-inverse-replica-count",
    (
        "momentum_of_the_optimizer_is_scaled",
        "multi_worker_mirrored",
    ): "named gradient-scaled-by-inverse-replica-count",
    (
        "negatives_are_those_of_the_replica",
        "multi_worker_mirrored",
    ): "named masked-loss-normalised-per-replica",
    ("optimizer_steps_once_per_replica", "mirrored"): "named global-batch-wrong",
    ("optimizer_steps_once_per_replica", "multi_worker_mirrored"): "named global-batch-wrong",
    ("power_iteration_broadcasts_in_every_step", "mirrored"): "not caught",
    ("replicas_add_their_number", "mirrored"): "named regularization-scaled-by-replica-count",
    ("replicas_add_their_number", "mirrored[replicas=4]"): "named regularization-scaled-by-replica-count",
    ("rows_of_several_replicas_overwrite_each_other", "mirrored"): "caught, cause not known",
    ("rows_of_several_replicas_overwrite_each_other", "multi_worker_mirrored"): "caught, cause not known",
    ("squared_gradients_are_averaged_over_replicas", "mirrored"): "caught, cause not known",
    ("squared_gradients_are_averaged_over_replicas", "multi_worker_mirrored"): "caught, cause not known",
    ("tail_of_the_packed_gradients_is_not_reduced", "mirrored"): "named replicas-diverged",
    ("tail_of_the_packed_gradients_is_not_reduced", "multi_worker_mirrored"): "named workers-diverged",
    ("two_models_share_one_accumulation_counter", "mirrored"): "not caught",
    ("two_models_share_one_accumulation_counter", "multi_worker_mirrored"): "not caught",
}
"""(name, strategy) of a planted bug that is not caught, or whose cause is not named first, with the reason."""
