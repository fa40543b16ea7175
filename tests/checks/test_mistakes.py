"""Exceptions that TensorFlow 2.21 and Keras 3.15.1 raise for a mistake say what to do, and at which line."""

from __future__ import annotations

from dataclasses import replace

import pytest
from simulated_training import Program, pair

from pytest_ddl.equivalence.diagnosis.limitations import (
    ACCUMULATION_IN_A_BRANCH,
    AVERAGES_IN_A_BRANCH,
    SYNCHRONIZED_IN_A_BRANCH,
    known_limitation,
)
from pytest_ddl.equivalence.diagnosis.mistakes import (
    DATASET_OF_THE_COORDINATOR,
    KERAS_LOOP_IN_RUN,
    STATE_OF_THE_GLOBAL_BATCH,
    VALUE_OF_EVERY_REPLICA,
    known_mistake,
)
from pytest_ddl.equivalence.verdict.judge import judge
from pytest_ddl.records import ErrorRecord, OptimizerRecord

USER = ("/project/train.py", "step")
RUN = ("/venv/site-packages/tensorflow/python/distribute/distribute_lib.py", "run")
NEXT = ("/venv/site-packages/tensorflow/python/distribute/input_lib.py", "get_next")
TRAINER = "/venv/site-packages/keras/src/backend/tensorflow/trainer.py"
FILTERED = ("/venv/site-packages/keras/src/utils/traceback_utils.py", "error_handler")
RNN = ("/venv/site-packages/keras/src/layers/rnn/rnn.py", "call")
OPTIMIZER = ("/venv/site-packages/keras/src/optimizers/base_optimizer.py", "apply")
CONVERTED = ("/tmp/__autograph_generated_file1.py", "if_body")

CROSS_REPLICA = "Method requires being in cross-replica context, use get_replica_context().merge_call()"
INNER_NEXT = "next(iterator) should be called from outside of replica_fn. e.g. strategy.run(replica_fn, args=(...))"
PARTS = (
    "PerReplica:{\n  0: tf.Tensor([1.]),\n  1: tf.Tensor([1.])\n} (of type <class 'tensorflow.python.x.PerReplica'>)"
)
STATEFUL = (
    "If an RNN is stateful, the batch size of the input sequences must be the same as the batch size of the state."
)
COPIED = (
    "Input has an error, the original exception is InvalidArgumentError(), error message is Failed copying input "
    "tensor from /job:chief/replica:0/task:0/device:CPU:0 to /job:worker/replica:0/task:1/device:CPU:0 in order to run "
    "__inference_<lambda>_181: Unable to parse tensor proto"
)
OUTSIDE = "you are using a PerReplica object while not inside a replica context, which is not supported."
MERGE = "`merge_call` called while defining a new graph or a tf.function."


def raised(message: str, *frames: tuple[str, str]) -> ErrorRecord:
    lines = "".join(f'  File "{file}", line 7, in {name}\n    code\n' for file, name in frames)
    trace = f"Traceback (most recent call last):\n{lines}ValueError: {message}\n"
    return ErrorRecord("ValueError", message, trace, 0, file=USER[0], line=7, function=USER[1], source="code")


KNOWN = {
    "a dataset of the coordinator": (
        raised(COPIED, ("/project/train.py", "train"), ("/venv/site-packages/tensorflow/a.py", "join")),
        DATASET_OF_THE_COORDINATOR,
    ),
    "train_on_batch": (raised(CROSS_REPLICA, RUN, USER, (TRAINER, "train_on_batch"), RUN), KERAS_LOOP_IN_RUN),
    "as the function of run": (raised(CROSS_REPLICA, USER, RUN, (TRAINER, "test_on_batch"), RUN), KERAS_LOOP_IN_RUN),
    "fit": (raised(INNER_NEXT, RUN, USER, FILTERED, NEXT), KERAS_LOOP_IN_RUN),
    "a model": (
        raised(f"Only input tensors may be passed as positional: {PARTS}", USER, FILTERED),
        VALUE_OF_EVERY_REPLICA,
    ),
    "an operation": (raised(f"It looks like {OUTSIDE}", USER), VALUE_OF_EVERY_REPLICA),
    "an operator": (
        raised("unsupported operand type(s) for -: 'PerReplica' and 'float'", USER),
        VALUE_OF_EVERY_REPLICA,
    ),
    "an attribute": (raised("'PerReplica' object has no attribute 'shape'", USER), VALUE_OF_EVERY_REPLICA),
    "an index": (raised("'PerReplica' object is not subscriptable", USER), VALUE_OF_EVERY_REPLICA),
    "a number": (
        raised("float() argument must be a string or a real number, not 'PerReplica'", USER),
        VALUE_OF_EVERY_REPLICA,
    ),
    "predict": (raised(f"Unrecognized data type: x={PARTS}", USER, FILTERED), VALUE_OF_EVERY_REPLICA),
    "a stateful layer": (raised(STATEFUL, USER, FILTERED, RNN), STATE_OF_THE_GLOBAL_BATCH),
}


@pytest.mark.parametrize("name", KNOWN)
def test_a_mistake_is_recognized_and_says_what_to_do_at_a_line_of_the_program(name: str) -> None:
    error, mistake = KNOWN[name]
    assert known_mistake(error) is mistake
    (finding,) = judge(*pair(Program(replicas=2), error=error, truncate=0)).findings
    assert finding.cause == "worker-raised"
    assert finding.fix == f"Look at /project/train.py:7. {mistake.fix}"


@pytest.mark.parametrize(
    "error",
    [
        raised(INNER_NEXT, RUN, USER, NEXT),
        raised(CROSS_REPLICA, RUN, USER, RUN),
        raised(STATEFUL, RNN, USER),
        raised("the value PerReplica is not allowed here", USER),
    ],
    ids=["its own next", "its own scope", "its own words", "another word"],
)
def test_an_exception_of_another_place_or_text_is_not_that_mistake(error: ErrorRecord) -> None:
    assert known_mistake(error) is None


def test_a_mistake_of_the_program_on_one_device_says_what_to_do_too() -> None:
    error, _mistake = KNOWN["train_on_batch"]
    reference, distributed = pair(Program(replicas=2), error=error, truncate=0)
    report = judge(replace(reference, ranks=(replace(reference.ranks[0], error=error),)), distributed)
    assert report.verdict == "inconclusive"
    assert "Look at /project/train.py:7. Call fit, evaluate, predict" in " ".join(str(report).split())


def test_the_condition_of_an_average_that_overwrites_is_that_of_keras() -> None:
    quoted = f"{MERGE}\nargs=('<function BaseOptimizer._backend_apply_gradients.<locals>.<lambda> at 0x7f>',)"
    average = OptimizerRecord("SGD", {"use_ema": True, "ema_overwrite_frequency": 2})
    kept = OptimizerRecord("SGD", {"use_ema": True, "ema_overwrite_frequency": None})
    assert known_limitation(raised(quoted, USER, OPTIMIZER), (average,)) is AVERAGES_IN_A_BRANCH
    accumulated = OptimizerRecord("SGD", {"gradient_accumulation_steps": 2})
    assert known_limitation(raised(quoted, USER, OPTIMIZER), (accumulated,)) is SYNCHRONIZED_IN_A_BRANCH
    assert known_limitation(raised(quoted, OPTIMIZER), (accumulated,)) is ACCUMULATION_IN_A_BRANCH
    assert known_limitation(raised(quoted, USER, OPTIMIZER), (kept,)) is SYNCHRONIZED_IN_A_BRANCH
    assert known_limitation(raised(MERGE, USER, OPTIMIZER), (average,)) is SYNCHRONIZED_IN_A_BRANCH


@pytest.mark.parametrize("frames", [(USER, OPTIMIZER), (USER, CONVERTED)], ids=["optimizer", "all-reduce"])
def test_an_update_in_a_condition_says_what_to_do(frames: tuple[tuple[str, str], ...]) -> None:
    error = raised(MERGE, *frames)
    assert known_limitation(error) is SYNCHRONIZED_IN_A_BRANCH
    (finding,) = judge(*pair(Program(replicas=2), error=error, truncate=0)).findings
    assert finding.cause == "unsupported-by-framework"
    assert finding.fix is not None
    assert finding.fix.startswith("Look at /project/train.py:7. Call strategy.run inside the condition")


@pytest.mark.parametrize(
    ("refused", "said"),
    [
        (None, "The same program ran on one device."),
        ("ValueError", "Without a strategy it succeeds, under any strategy it raises."),
        ("KeyError", "The same program ran without a strategy."),
    ],
)
def test_the_advice_says_where_the_program_ran(refused: str | None, said: str) -> None:
    error = raised("no", USER)
    reference, distributed = pair(Program(replicas=2), error=error, truncate=0)
    theirs = replace(error, type=refused) if refused else None
    (finding,) = judge(replace(reference, refused=theirs), distributed).findings
    assert finding.fix is not None
    assert finding.fix.startswith("Look at /project/train.py:7. The traceback below shows")
    assert finding.fix.endswith(said)


def test_a_variable_of_the_program_without_aggregation_says_what_to_give_it():
    message = "You must specify an aggregation method to update a AggregatingVariable in Replica Context. You can do"
    mistake = known_mistake(raised(message, USER))
    assert mistake is not None
    assert mistake.cause == "worker-raised"
    assert mistake.fix is not None
    assert "aggregation=" in mistake.fix.text
