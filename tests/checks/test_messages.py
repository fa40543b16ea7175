"""Messages and tracebacks are cut to what a person needs; nothing that says what happened is lost."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_ddl.messages import LINE, WHOLE, shortened, summary
from pytest_ddl.tracebacks import folded, frames_in, is_own, own_frame, own_frame_of_stacks, package_of

AUTOGRAPH = """in user code:

    File "/project/train.py", line 4, in step  *
        helper(x)
    File "/project/helpers.py", line 2, in helper  *
        raise ValueError("first")

    ValueError: first
    second
"""
KERAS = """Exception encountered when calling Dense.call().

\x1b[1mInput 0 has shape (None, 6)\x1b[0m

Arguments received by Dense.call():
  • inputs=tf.Tensor(shape=(None, 6), dtype=float32)
  • training=None"""
UNBUILT = f"""Unable to automatically build the model. {"Please build it yourself. " * 9}
Exception encountered:
'Exception encountered when calling GAN.call().

Model GAN does not have a `call()` method implemented.

Arguments received by GAN.call():
  • args=('tf.Tensor(shape=(12, 3), dtype=float32)',)'"""
GRAPH = """Graph execution error:

Detected at node PyFunc defined at (most recent call last):
  File "<frozen runpy>", line 198, in _run_module_as_main

  File "/project/train.py", line 74, in
2 root error(s) found.
  (0) UNKNOWN:  KeyError: 'missing'
Traceback (most recent call last):

  File "/venv/site-packages/tensorflow/python/ops/script_ops.py", line 269, in __call__
    ret = func(*args)
          ^^^^^^^^^^^

  File "/project/data.py", line 15, in look
    return table[key]

KeyError: 'missing'

\t [[{{node PyFunc}}]]
\t [[PyFunc_1/_41]]
  (1) CANCELLED:  Function was cancelled
0 successful operations.
0 derived errors ignored. [Op:__inference_train_step_543]"""


@pytest.mark.parametrize(
    ("kind", "message", "told"),
    [
        ("ValueError", AUTOGRAPH, "ValueError: first second"),
        ("tensorflow.python.autograph.impl.api.StagingError", "in user code:\n\n    Odd: one", "Odd: one"),
        ("ValueError", KERAS, "ValueError: Input 0 has shape (None, 6)"),
        ("RuntimeError", UNBUILT, "RuntimeError: Model GAN does not have a `call()` method implemented."),
        ("tensorflow.python.framework.errors_impl.UnknownError", GRAPH, "UnknownError: KeyError: 'missing'"),
        ("RuntimeError", "", "RuntimeError"),
        ("project.errors.OwnError", "  \n", "OwnError"),
        ("KeyError", "'x'", "KeyError: 'x'"),
        (
            "ValueError",
            "not: <tf.Variable 'a/b:0' shape=(2, 2) dtype=float32, numpy=\narray([[1., 2.],\n [3., 4.]], dtype=int8)>",
            "ValueError: not: <tf.Variable 'a/b:0' shape=(2, 2) dtype=float32>",
        ),
        ("ValueError", "wrong sizes:\n  12\n  13", "ValueError: wrong sizes: 12 13"),
    ],
)
def test_the_last_line_of_an_exception(kind: str, message: str, told: str) -> None:
    assert summary(kind, message) == told


STATEFUL = f"""Exception encountered when calling LSTM.call().

If an RNN is stateful, its batch size must be that of its state.
- Expected batch size: 12
- Received batch size: 6
{"One more line of shapes. " * 6}

Arguments received by LSTM.call():
  • initial_state=None"""
PER_REPLICA = """in user code:

    File "/project/train.py", line 21, in step  *
        loss = model(x)

    ValueError: Only input tensors may be positional. This one should be a keyword argument: PerReplica:{
      0: Tensor("x:0", shape=(6, 5), dtype=float32),
      1: Tensor("x_1:0", shape=(6, 5), dtype=float32)
    } (of type <class 'tensorflow.python.distribute.values.PerReplica'>)
"""
NOT_LOADED = f"""2 objects could not be loaded. An example is <Dense name=dense>:

Layer 'dense' expected 2 variables.

List of objects:
[{", ".join(f"<Dense name=dense_{number}, built=True>" for number in range(9))}]"""
OF_KERAS_2 = f"""Exception encountered when calling layer "dense" (type Dense).

in user code:

    File "/project/train.py", line 3, in call  *
        return tf.matmul(x, w)

    ValueError: Dimensions must be equal.
    {"Shapes are listed here. " * 9}

Call arguments received by layer "dense" (type Dense):
  • x=tf.Tensor(shape=(6, 3), dtype=float32)"""
CAUGHT_AGAIN = f"""the shard is not there
Traceback (most recent call last):
  File "/project/train.py", line 3, in load
    raise KeyError(name)
KeyError: 'shard-3'
{"Hint: look at the list of shards. " * 6}"""


@pytest.mark.parametrize(
    ("message", "told"),
    [
        (STATEFUL, "If an RNN is stateful, its batch size must be that of its state."),
        (PER_REPLICA, "Only input tensors may be positional. This one should be a keyword argument: PerReplica:{"),
        (
            NOT_LOADED,
            "2 objects could not be loaded. An example is <Dense name=dense>: Layer 'dense' expected 2 variables.",
        ),
        (OF_KERAS_2, "Dimensions must be equal."),
        (CAUGHT_AGAIN, "KeyError: 'shard-3'"),
        ("\n".join(["no shard", *(f"line {number} of help" for number in range(30))]), "no shard"),
    ],
    ids=["stateful", "per replica", "not loaded", "Keras 2", "caught again", "help"],
)
def test_a_long_message_keeps_the_line_that_says_what_happened(message: str, told: str) -> None:
    assert summary("ValueError", message) == f"ValueError: {told}"


def test_a_long_line_loses_its_middle() -> None:
    told = summary("ValueError", "word " * 2000)
    assert told.startswith("ValueError: word ")
    assert len(told) <= LINE + len("ValueError: ")


@pytest.mark.parametrize(
    ("message", "told"),
    [
        (f"bad {[[float(i), 1e-7] for i in range(500)]} end", "bad [0.0 1e-07 1.0 ... 1000 values] end"),
        (f"got array({list(range(99))}, dtype=int32)", "got array([0 1 2 ... 99 values], dtype=int32)"),
        ("x = [[0.1 -2.5e-3 nan]\n [1. 2. 3.]\n ...\n [7. 8. 9.]]", "x = [0.1 -2.5e-3 nan ...]"),
        (f"masks {[True, False] * 20}", "masks [True False True ... 40 values]"),
        ("shapes [12, 3] and [5, 2]", "shapes [12, 3] and [5, 2]"),
        ("names ['a', 'b'] of [batch, time]", "names ['a', 'b'] of [batch, time]"),
    ],
)
def test_tensors_in_messages_are_cut(message: str, told: str) -> None:
    assert shortened(message) == told


def test_a_long_text_loses_its_middle() -> None:
    told = shortened("begin " + "word " * 3000 + "end")
    assert told.startswith("begin ")
    assert told.endswith(" end")
    assert "characters left out" in told
    assert len(told) <= WHOLE


def test_numbers_of_a_huge_tensor_are_found_at_once() -> None:
    huge = "[" + ", ".join(map(str, range(200_000))) + " and no end"
    assert len(shortened(huge)) <= WHOLE


TRACE = f"""Traceback (most recent call last):
  File "{Path(frames_in.__code__.co_filename)}", line 3, in run
    own()
  File "/project/train.py", line 5, in train
    model.fit(data)
    ^^^^^^^^^^^^^^^
  File "/venv/lib/python3.11/site-packages/keras/src/a.py", line 7, in fit
    return deep()
  File "/venv/lib/python3.11/site-packages/tensorflow/b.py", line 8, in deep
    raise e
  File "/project/step.py", line 9, in train_step
    raise ValueError("no")
ValueError: no"""


def test_library_frames_are_folded_and_the_own_ones_kept() -> None:
    assert folded(TRACE).splitlines() == [
        "Traceback (most recent call last):",
        '  File "/project/train.py", line 5, in train',
        "    model.fit(data)",
        "    ^^^^^^^^^^^^^^^",
        "  [2 frames in keras, tensorflow]",
        '  File "/project/step.py", line 9, in train_step',
        '    raise ValueError("no")',
        "ValueError: no",
    ]


def test_an_installed_program_is_the_programs_own() -> None:
    package = package_of("/venv/lib/python3.11/site-packages/keras/src/trainer.py")
    assert is_own("/venv/lib/python3.11/site-packages/keras/src/a.py", package)
    assert not is_own("/venv/lib/python3.11/site-packages/keras_hub/a.py", package)
    assert not is_own("/venv/lib/python3.11/site-packages/keras/src/a.py")
    assert "in fit" in folded(TRACE, package)


def test_a_file_that_cython_compiled_is_not_the_programs_own() -> None:
    assert not is_own("h5py/h5f.pyx")
    assert package_of("/project/train.py") == ""


def test_the_main_thread_of_stacks_comes_first() -> None:
    stacks = (
        'Thread 0x1 (most recent call first):\n  File "/project/feeder.py", line 2 in feed\n\n'
        'Current thread 0x2 (most recent call first):\n  File "/venv/site-packages/keras/a.py", line 1 in wait\n'
        '  File "/project/train.py", line 7 in step\n  File "/project/train.py", line 9 in train\n'
    )
    frame = own_frame_of_stacks(stacks)
    assert frame is not None
    assert (frame.file, frame.line, frame.function) == ("/project/train.py", 7, "step")
    outermost = 'Current thread 0x2 (most recent call first):\n  File "<string>", line 10 in <module>\n'
    assert own_frame_of_stacks(outermost) is None


def test_the_frame_that_raised_is_found_through_causes() -> None:
    def inner() -> None:
        raise KeyError("inner")

    def outer() -> None:
        try:
            inner()
        except KeyError as error:
            raise ValueError("outer") from error

    with pytest.raises(ValueError, match="outer") as caught:
        outer()
    frame = own_frame(caught.value)
    assert frame is not None
    assert (frame.function, frame.source) == ("outer", 'raise ValueError("outer") from error')


def test_the_frame_of_a_cause_that_a_library_wraps_is_found() -> None:
    def refuse(_value: object) -> None:
        raise KeyError("not that one")

    namespace: dict[str, object] = {}
    source = (
        "def wrap(function):\n try:\n  function(1)\n except KeyError as e:\n  raise RuntimeError('wrapped') from None\n"
    )
    library = source.replace(" from None", "")
    exec(compile(library, "/venv/site-packages/library/wrap.py", "exec"), namespace)
    with pytest.raises(RuntimeError) as caught:
        namespace["wrap"](refuse)  # type: ignore[operator]
    frame = own_frame(caught.value)
    assert frame is not None
    assert frame.function == "refuse"
