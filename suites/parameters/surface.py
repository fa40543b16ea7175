"""The public classes and functions that training touches, as the installed packages have them, and their parameters."""

from __future__ import annotations

import inspect
from collections.abc import Iterator

from suites.parameters.spaces import find, parameters

MODULES = (
    "optimizers",
    "optimizers.schedules",
    "losses",
    "metrics",
    "callbacks",
    "initializers",
    "regularizers",
    "constraints",
    "random",
    "mixed_precision",
)
"""Modules of Keras of which every public class and function is read."""
LAYERS = (
    *("Dense", "Embedding", "Masking", "SimpleRNN", "LSTM", "GRU", "RNN", "Bidirectional", "TimeDistributed"),
    *("BatchNormalization", "LayerNormalization", "GroupNormalization", "UnitNormalization", "RMSNormalization"),
    *("SpectralNormalization", "Dropout", "SpatialDropout1D", "GaussianDropout", "GaussianNoise", "AlphaDropout"),
    *("ActivityRegularization", "MultiHeadAttention", "GroupQueryAttention", "Normalization", "StringLookup"),
    *("IntegerLookup", "TextVectorization", "Discretization", "RandomFlip", "RandomRotation", "RandomCrop"),
)
"""Layers with state, masks or randomness, and those that the suite trains."""
METHODS = (
    *(f"Model.{name}" for name in ("compile", "fit", "evaluate", "predict")),
    *(f"Model.{name}_on_batch" for name in ("train", "test", "predict")),
    *("Model.save", "Model.save_weights", "Model.load_weights", "Model.export", "saving.load_model"),
    *("optimizers.Optimizer.apply", "optimizers.Optimizer.apply_gradients"),
    *("utils.set_random_seed", "Optimizer.exclude_from_weight_decay"),
)
TENSORFLOW = (
    *("MirroredStrategy", "MultiWorkerMirroredStrategy", "OneDeviceStrategy", "ParameterServerStrategy"),
    *("experimental.CentralStorageStrategy", "experimental.CommunicationOptions", "RunOptions", "InputOptions"),
    *("Strategy.run", "Strategy.reduce", "Strategy.gather", "Strategy.experimental_distribute_dataset"),
    *("Strategy.distribute_datasets_from_function", "InputContext", "NcclAllReduce", "HierarchicalCopyAllReduce"),
    *("ReductionToOneDevice", "experimental.partitioners.MinSizePartitioner", "ReplicaContext.all_reduce"),
    *("experimental.partitioners.MaxSizePartitioner", "experimental.partitioners.FixedShardsPartitioner"),
    *("coordinator.ClusterCoordinator", "experimental.PreemptionCheckpointHandler", "experimental.TerminationConfig"),
)
OTHERS = ("tf.train.CheckpointOptions", "tf.train.CheckpointManager", "tf.train.Checkpoint")


def apis() -> Iterator[str]:
    """Yield the path of each class and function that the installed packages have."""
    for module in MODULES:
        seen: list[object] = []
        for name, one in sorted(vars(find(module) or object()).items() if find(module) else ()):
            # An object can have several names, such as MSE. It is listed under its own name.
            if name.startswith("_") or not callable(one) or getattr(one, "__name__", name) != name or one in seen:
                continue
            seen.append(one)
            yield f"{module}.{name}"
    paths = (
        *(f"layers.{name}" for name in LAYERS),
        *METHODS,
        *(f"tf.distribute.{name}" for name in TENSORFLOW),
        *OTHERS,
    )
    yield from (path for path in paths if find(path) is not None)


def surface() -> dict[str, tuple[str, ...]]:
    """Return the parameters of each class and function that has any."""
    found = {api: parameters(api) for api in apis()}
    return {api: names for api, names in found.items() if names and not inspect.ismodule(find(api))}
