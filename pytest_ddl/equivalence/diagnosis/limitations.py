"""Known limits of TensorFlow and Keras: exceptions that mean "not possible" rather than "your mistake".

An entry matches the message and the file in which the traceback ends. So an error of user code is not mistaken for
one of the framework.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from pytest_ddl.equivalence.causes.cause import Fix
from pytest_ddl.equivalence.causes.special import SPECIAL
from pytest_ddl.hints import Hint
from pytest_ddl.records import ErrorRecord, OptimizerRecord


@dataclass(frozen=True)
class Limitation:
    """Something that the installed framework cannot do, and the pattern of its exception."""

    pattern: str
    """Regular expression searched for in the exception's message."""
    reason: str
    link: str = ""
    advice: Fix | None = None
    """Alternative for the program, if the reason does not say it."""
    where: str = r"[/\\](keras|tf_keras|tensorflow|optree)[/\\]"
    """Regular expression that the file of the traceback's last frame must match."""
    traceback: str = ""
    """Regular expression that must occur somewhere in the traceback."""
    output: str = ""
    """Regular expression for the last output of a process that died. It replaces the other patterns."""
    cause: str = "unsupported-by-framework"
    """Another cause if a program can avoid it."""
    of_keras: bool = False
    """True if it is one of Keras 3, so that tf_keras may not have it."""
    in_keras_loop: bool = False
    """True if only the framework's code may run inside fit, evaluate or predict when the exception is raised."""
    setting: str = ""
    """Setting that a watched optimizer must have."""


SYMBOLIC_BUILD = Limitation(
    r"Unable to automatically build the model",
    "Keras calls a model with a symbolic batch before it trains it under any strategy, and this model cannot be "
    "called with what fit is given; without a strategy Keras does not do that (seen up to Keras 3.15.1). Give the "
    "model a call() that takes the batch. If compile() is given neither a loss nor metrics, it is enough to build "
    "the model's parts and to set self.built = True at the end of its __init__",
    "https://keras.io/guides/custom_train_step_in_tensorflow/",
    of_keras=True,
)

_FRAMEWORK = re.compile(r"[/\\](keras|tf_keras|tensorflow|optree|pytest_ddl)[/\\]")
_PLUGIN = re.compile(r"[/\\]pytest_ddl[/\\]")
_FRAME = re.compile(r'File "([^"]+)", line \d+, in [^\n]*\n([^\n]*)')
_CALLS_KERAS = re.compile(r"\.(fit|evaluate|predict|train_on_batch|test_on_batch|predict_on_batch)\(")
_KERAS_LOOP = re.compile(
    r"\.(fit|evaluate|predict|train_on_batch|test_on_batch)\(.{0,600}File \"[^\"]*[/\\]keras[/\\]", re.DOTALL
)

UNEQUAL_PARTS = Limitation(
    r"Inputs to operation AddN.{0,80}must have the same size and shape",
    "Keras 3 Model.fit adds up the replicas' parts of its first batch to learn the shapes, which fails if the parts "
    "differ in size, for example if the batch has fewer examples than replicas",
    "https://github.com/keras-team/keras/issues/19246",
    # Without its filter of tracebacks, Keras shows the first of these, and with it only the second one.
    traceback=r"keras/src/(backend/tensorflow/trainer|utils/traceback_utils)\.py",
    in_keras_loop=True,
    of_keras=True,
)
AVERAGED_INDICES = Limitation(
    r"Unable to automatically build the model.{0,2000}DataType float\d+ not in list of allowed values: [^\n]{0,80}int",
    "Keras 3 Model.fit averages the replicas' parts of its first batch to learn the shapes. That turns integers into "
    "floating point numbers, which this model cannot use as indices",
    in_keras_loop=True,
    of_keras=True,
)
SEVERAL_STEPS = Limitation(
    # The loop and the condition are those of fit: a placeholder of another loop has another path.
    r"placeholder tensor 'while/body/_\d+/while/cond/then/_\d+/while/cond/Placeholder",
    "Keras 3 Model.fit with steps_per_execution above 1 puts the optimizer into a loop, in which TensorFlow cannot "
    "join the replicas",
    "https://github.com/keras-team/keras/issues/19246",
    in_keras_loop=True,
    of_keras=True,
)
STRINGS = Limitation(
    r"Value for attr 'T' of string is not in the list of allowed values.{0,600}AddN",
    "Keras 3 Model.fit adds up the replicas' parts of its first batch to learn the shapes, which fails for strings",
    "https://github.com/tensorflow/tensorflow/issues/80951",
    in_keras_loop=True,
    of_keras=True,
)
XLA_REPLICAS = Limitation(
    r"Trying to access resource .{0,300}located in device .{0,200}from device",
    "XLA (jit_compile=True) cannot use the variables of a replica on another device of the same process",
    "https://www.tensorflow.org/xla/known_issues#tfvariable_on_a_different_device",
)
FIT_OF_WORKERS = Limitation(
    r"PerReplica.{0,400}unsupported type|unsupported type.{0,200}PerReplica|"
    r"PerReplica object is not|Attempt to convert a value \(.{0,200}PerReplica|"
    # Keras averages what a train_step returns over the examples, also a number.
    r"Invalid reduction dimension 0 for input with 0 dimensions",
    "Model.fit does not work in Keras 3 under this strategy: it hands a per-replica value to code that expects a "
    "tensor",
    "https://github.com/keras-team/keras/issues/20585",
    in_keras_loop=True,
    of_keras=True,
)
FIT_OF_COORDINATOR = Limitation(
    r"To use this dataset, you need to pass this dataset to ClusterCoordinator\.create_per_worker_dataset",
    "Model.fit does not work in Keras 3 under this strategy: it reads the dataset without the coordinator (seen in "
    f"Keras 3.15.1). Use a ClusterCoordinator loop{Hint.OF_RUN_STEPS} or tf_keras",
    "https://keras.io/guides/distributed_training_with_tensorflow/",
    # Keras removes its own frames from the traceback, except this one.
    traceback=r"keras/src/utils/traceback_utils\.py",
    in_keras_loop=True,
    of_keras=True,
)
FIT_OF_DTENSOR = Limitation(
    # TensorFlow 2.23.0.dev says the second one.
    r"'tf\.IteratorGetNext' op ComputeLayoutForward error|__inference_one_step_on_\w+ got a regular tensor for input",
    "DTensor cannot lay out what an iterator yields inside a tf.function, which is how Keras' Model.fit and "
    f"evaluate read their data (TensorFlow 2.21, Keras 3.15.1); train in a custom loop{Hint.OF_RUN_STEPS}",
    "https://www.tensorflow.org/guide/dtensor_overview",
    of_keras=True,
)
TENSOR_LISTS = Limitation(
    r"'tf\.\w+' op does not implement layout propagation",
    "DTensor cannot lay out this operation (the TensorList operations of a recurrent layer's loop; "
    "unroll=True avoids them)",
    "https://www.tensorflow.org/guide/dtensor_overview",
)

# The message quotes the functions of the condition.
_BRANCH_OF_KERAS = (
    r"merge_call.{0,3} called while defining a new graph.{0,3000}BaseOptimizer\._backend_apply_gradients\.<locals>"
)
AVERAGES_IN_A_BRANCH = Limitation(
    _BRANCH_OF_KERAS,
    "Keras 3 optimizers with ema_overwrite_frequency overwrite the weights by their averages inside a condition, in "
    "which TensorFlow cannot join the replicas",
    "https://github.com/keras-team/keras/issues/21366",
    of_keras=True,
    setting="ema_overwrite_frequency",
)
ACCUMULATION_IN_A_BRANCH = Limitation(
    _BRANCH_OF_KERAS,
    "Keras 3 Model.fit with gradient_accumulation_steps applies gradients inside a condition, in which TensorFlow "
    "cannot join the replicas",
    "https://github.com/keras-team/keras/issues/20582",
    in_keras_loop=True,
    of_keras=True,
    setting="gradient_accumulation_steps",
)
SYNCHRONIZED_IN_A_BRANCH = Limitation(
    r"merge_call.{0,3} called while defining a new graph",
    "an update or an all-reduce sits inside a condition, a loop or a nested tf.function of the replica function "
    "(gradient accumulation, loss scaling, jit_compile): TensorFlow cannot join the replicas (merge_call) there",
    "https://github.com/keras-team/keras/issues/21366",
    advice=SPECIAL["synchronized-in-a-branch"],
    # TensorFlow leaves out its own frames, so the last one can be that of a converted function.
    where=r"[/\\](keras|tf_keras|tensorflow)[/\\]|[/\\]__autograph_generated_file",
)

LIMITATIONS: tuple[Limitation, ...] = (
    AVERAGES_IN_A_BRANCH,
    ACCUMULATION_IN_A_BRANCH,
    SYNCHRONIZED_IN_A_BRANCH,
    UNEQUAL_PARTS,
    STRINGS,
    AVERAGED_INDICES,
    SYMBOLIC_BUILD,
    SEVERAL_STEPS,
    Limitation(
        # A session raises this if a placeholder is not fed. TensorFlow chooses this name of a conditional when it lifts
        # the creation of variables. So a missing placeholder of the program itself does not match.
        r"You must feed a value for placeholder tensor '[^']*cond/Placeholder",
        "Keras 3 creates the slots and counters of an optimizer in the first tf.function that applies gradients, which "
        "TensorFlow cannot trace for several replicas: call optimizer.build(model.trainable_variables) in the "
        "strategy's scope first (seen up to Keras 3.15.1)",
        "https://github.com/keras-team/keras/issues/23085",
        cause="optimizer-not-built",
        of_keras=True,
    ),
    XLA_REPLICAS,
    FIT_OF_WORKERS,
    FIT_OF_COORDINATOR,
    Limitation(
        r"ParameterServerStrategy.{0,200}(not supported|unsupported|requires|must be)",
        "Keras 3 does not train with Model.fit under ParameterServerStrategy; use a ClusterCoordinator loop"
        " or tf_keras",
        "https://keras.io/guides/distributed_training_with_tensorflow/",
        of_keras=True,
    ),
    Limitation(
        r"must specify an aggregation method to update an? AggregatingVariable",
        "the replicas assign a variable that has no aggregation, which CentralStorageStrategy does not do; Keras 3 "
        "gives none to its weights, moving statistics and averages",
        "https://www.tensorflow.org/api_docs/python/tf/distribute/experimental/CentralStorageStrategy",
        advice=SPECIAL["assigned-without-aggregation"],
        of_keras=True,
    ),
    TENSOR_LISTS,
    Limitation(
        r"expected type int64 != int32, the type of .{0,200}ScatterNd",
        "DTensor cannot add up the sparse gradient of an embedding inside a conditional, which is where Keras' "
        "optimizers use it (TensorFlow 2.21, Keras 3.15.1); make the gradient dense with tf.convert_to_tensor first",
        "https://www.tensorflow.org/guide/dtensor_overview",
        of_keras=True,
    ),
    FIT_OF_DTENSOR,
    Limitation(
        "",
        "TensorFlow's compiler (MLIR, which lays out a function for DTensor) aborts the process while it rewrites this "
        "program (TensorFlow 2.21)",
        "https://github.com/tensorflow/tensorflow/tree/master/tensorflow/dtensor",
        output=r"mlir::.{0,4000}Fatal Python error: Aborted",
    ),
    Limitation(
        r"(not (yet )?supported|unsupported|not implemented).{0,120}(strateg|distribut|replica|DTensor|mesh)|"
        r"(strateg|distribut|replica|DTensor|mesh).{0,120}(not (yet )?supported|unsupported|not implemented)",
        "the framework declares that it does not support this under the strategy",
    ),
    Limitation(
        r"Layout.{0,200}(not supported|unsupported)|SPMD.{0,200}not implemented",
        "DTensor has no rule for this operation and layout",
        "https://github.com/tensorflow/tensorflow/tree/master/tensorflow/dtensor",
    ),
)


def known_limitation(error: ErrorRecord, optimizers: Iterable[OptimizerRecord] = ()) -> Limitation | None:
    """Return the limitation that an exception shows, or ``None`` if it is not a known one.

    :param optimizers: watched optimizers of the rank that raised it.
    """
    if error.type == "died":
        return next((one for one in LIMITATIONS if one.output and re.search(one.output, error.output, re.DOTALL)), None)
    # Graph errors quote the lines that made the nodes, in the format of a traceback.
    quoted = error.message and error.message in error.traceback
    frames = error.traceback.rpartition(error.message)[0] if quoted else error.traceback
    # Functions of the plugin replace methods that the framework calls.
    files = [file for file in re.findall(r'File "([^"]+)"', frames) if not _PLUGIN.search(file)]
    settings = {name for optimizer in optimizers for name, value in optimizer.settings.items() if value}
    for limitation in (one for one in LIMITATIONS if not one.output and one.setting in {"", *settings}):
        in_framework = bool(files) and re.search(limitation.where, files[-1]) is not None
        message = re.search(limitation.pattern, error.message, re.DOTALL | re.IGNORECASE)
        at_fault = re.search(limitation.traceback, error.traceback) and not (
            limitation.in_keras_loop and not is_of_keras_loop(frames)
        )
        if in_framework and message and at_fault:
            return limitation
    return None


def is_of_keras_loop(frames: str) -> bool:
    """Return whether the last frame of a traceback outside of the frameworks calls fit, evaluate or predict.

    Without such a frame, the plugin itself called fit, for ``ddl_fit``: a training function of a user is always one.
    """
    outside = [source for file, source in _FRAME.findall(frames) if not _FRAMEWORK.search(file)]
    return not outside or _CALLS_KERAS.search(outside[-1]) is not None


def is_of_symbolic_build(error: ErrorRecord) -> bool:
    """Return whether the model raised while Keras called it symbolically: in fit, but not in a train_step.

    This holds only for a program that trains without a strategy. Keras hides its own frames, so they cannot show it.
    """
    within_fit = _KERAS_LOOP.search(error.traceback) is not None
    return error.step == 0 and within_fit and "in train_step\n" not in error.traceback
