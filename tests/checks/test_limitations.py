"""Exceptions that TensorFlow 2.21 and Keras 3.15.1 raised in the suite are known limits; a program's own are not."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pytest_ddl.equivalence.diagnosis.limitations import known_limitation
from pytest_ddl.records import ErrorRecord

TF = "/venv/site-packages/tensorflow/python/eager/execute.py"
KERAS = "/venv/site-packages/keras/src/utils/traceback_utils.py"
USER = "/project/train.py"

NOT_BUILT = """Graph execution error:

Detected at node cond/Placeholder defined at (most recent call last):
  File "<frozen runpy>", line 198, in _run_module_as_main
  File "/project/train.py", line 8, in train

  (0) INVALID_ARGUMENT:  You must feed a value for placeholder tensor 'cond/else/_1/cond/Placeholder' with dtype int32
\t [[{{node cond/Placeholder}}]]"""

SEEN = {
    "optimizer not built": (NOT_BUILT, [USER, TF], "optimizer.build"),
    "fit under parameter servers": (
        "To use this dataset, you need to pass this dataset to ClusterCoordinator.create_per_worker_dataset.",
        [USER, KERAS, "/venv/site-packages/tensorflow/python/distribute/input_lib.py"],
        "without the coordinator",
    ),
    "fit of workers, called by ddl_fit": (
        "Attempt to convert a value (PerReplica:{0: 1.0}) with an unsupported type to a Tensor.",
        [KERAS],  # the plugin calls fit, and its frames are not shown
        "hands a per-replica value",
    ),
    "fit of workers with several inputs": (
        "Attempt to convert a value ({'title': PerReplica:{\n  0: <tf.Tensor: shape=(2,)>\n}}) with an unsupported",
        [USER, KERAS],
        "hands a per-replica value",
    ),
    "fit of workers with a train_step that returns a number": (
        "Invalid reduction dimension 0 for input with 0 dimensions. for '{{node Sum}} = Sum[T=DT_FLOAT, Tidx=DT_INT32]",
        [USER, KERAS, "/venv/site-packages/optree/ops.py"],
        "hands a per-replica value",
    ),
    "fit under DTensor": (
        "<frozen runpy>:198:1: error: 'tf.IteratorGetNext' op ComputeLayoutForward error: Could not find `tf._elem",
        [USER, KERAS, TF],
        "custom loop",
    ),
    "fit under DTensor, in a nightly build": (
        "The op/function __inference_one_step_on_data_718 got a regular tensor for input 0 (shape [8,30])",
        [USER, KERAS, TF],
        "custom loop",
    ),
    "embedding under DTensor": (
        "input shape[0] expected type int64 != int32, the type of tf.Const_1:0\n\tIn {{node rm_sprop/cond/ScatterNd}}",
        [USER, TF],
        "sparse gradient",
    ),
    "LSTM under DTensor": (
        "<frozen runpy>:198:1: error: 'tf.EmptyTensorList' op does not implement layout propagation. Please file",
        [USER, TF],
        "unroll=True",
    ),
}


def raised(message: str, files: list[str]) -> ErrorRecord:
    frames = "".join(f'  File "{file}", line 1, in function\n    model.fit(data)\n' for file in files)
    trace = f"Traceback (most recent call last):\n{frames}SomeError: {message}\n"
    return ErrorRecord(type="SomeError", message=message, traceback=trace, step=0)


@pytest.mark.parametrize("name", SEEN)
def test_what_the_suite_has_seen_is_known(name):
    message, files, told = SEEN[name]
    limitation = known_limitation(raised(message, files))
    assert limitation is not None
    assert told in limitation.reason
    assert limitation.link


@pytest.mark.parametrize("name", SEEN)
def test_the_same_words_from_the_program_are_its_own(name):
    message, files, _told = SEEN[name]
    assert known_limitation(raised(message, [*files, USER])) is None


def test_a_missing_placeholder_of_the_program_is_its_own():
    message = "You must feed a value for placeholder tensor 'learning_rate' with dtype float"
    assert known_limitation(raised(message, [USER, TF])) is None


def test_an_assignment_without_aggregation_names_a_way_for_each_kind_of_variable():
    message = "You must specify an aggregation method to update a AggregatingVariable in Replica Context. You can do"
    limitation = known_limitation(raised(message, [USER, TF]))
    assert limitation is not None
    assert "weights" in limitation.reason
    assert limitation.advice is not None
    assert "aggregation=" in limitation.advice.text
    assert "after strategy.run" in limitation.advice.text


def test_an_error_without_words_is_not_known():
    assert known_limitation(raised("", [TF])) is None


def test_an_abort_of_the_compiler_is_known_and_one_of_the_program_is_not():
    compiler = "    @  0x7f  mlir::Operation::fold()\n    @  0x7f  (unknown)\nFatal Python error: Aborted\n"
    ended = ErrorRecord(type="died", message="was killed by SIGABRT", traceback="", step=0, output=compiler)
    limitation = known_limitation(ended)
    assert limitation is not None
    assert "aborts the process" in limitation.reason
    assert known_limitation(replace(ended, output="Fatal Python error: Aborted\n")) is None
