"""Read the lines of a program from the stack, with the parts of TensorFlow that only have a private way to them.

Like :mod:`~pytest_ddl.training.adapter`, each function says which releases it was tried on, and reports less in others.
"""

from __future__ import annotations

import os
import sys
import threading
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any

from pytest_ddl.training import adapter, watching


def user_frames(most: int = 3) -> str:
    """Return ``file:line`` of the innermost frames of the program itself, joined; empty if there is none.

    A merge of replicas runs in the thread of ``strategy.run``. The frames of the replica that asked for it come first.
    """
    places = _of_program(_here())
    in_merge = bool(_MERGING) and _in_cross_replica_context()
    if not places and threading.current_thread() is not threading.main_thread():
        # TensorFlow issues eager collectives from its own thread, while the program waits in the main thread.
        places = _of_program(_frames(sys._current_frames().get(threading.main_thread().ident or 0)))
        in_merge = bool(_MERGING)
    if in_merge:
        places = [*next(iter([*_MERGING.values()]), ()), *places]
    return ", from ".join(places[:most])


_MERGING: dict[int, tuple[str, ...]] = {}
"""Thread of a replica that waits for a merge -> its frames of the program, the innermost first."""


@contextmanager
def merging() -> Iterator[None]:
    """Keep the frames of this thread, in which a replica runs, until the context ends."""
    thread = threading.get_ident()
    _MERGING[thread] = tuple(_of_program(_here()))
    try:
        yield
    finally:
        _MERGING.pop(thread, None)


def _in_cross_replica_context() -> bool:
    import tensorflow as tf

    return tf.distribute.get_replica_context() is None


def converted_lines() -> Mapping[Any, Any]:
    """Return AutoGraph's map from generated lines to lines of the program, as it holds in this thread.

    ``tf_stack._source_mapper_stacks`` (TF 2.1 to 2.21) has one stack of maps for each thread. So a replica, which has a
    thread of its own, does not know the lines of the function around it.
    """
    mapper = _mapper()
    return {} if mapper is None else dict(mapper.get_effective_source_map())


def add_converted_lines(lines: Mapping[Any, Any]) -> None:
    """Add lines to AutoGraph's map in this thread, until AutoGraph leaves the function that it runs now."""
    mapper = _mapper()
    if lines and mapper is not None:
        mapper.internal_map.update_to(tuple({**mapper.get_effective_source_map(), **lines}.items()))


def _mapper() -> Any:
    stacks = getattr(adapter.module_of("util.tf_stack"), "_source_mapper_stacks", None)
    mapper = stacks[threading.get_ident()][-1] if stacks is not None else None
    return mapper if hasattr(mapper, "get_effective_source_map") and hasattr(mapper, "internal_map") else None


def line_of(tensor: Any) -> str:
    """Return ``file:line`` of the program at which the operation of a tensor was added to a graph; empty if unknown.

    ``Operation.traceback`` (public, TF 2.1 to 2.21) has the lines of the program, also if AutoGraph converted it.
    """
    if not hasattr(tensor, "graph"):
        return ""
    frames = [(frame.filename, frame.lineno) for frame in tensor.op.traceback]
    return next(iter(_of_program(frames)), "")


def is_made_in(tensor: Any, function: str) -> bool:
    """Return whether a function of a framework added the operation of a tensor to a graph; see :func:`line_of`."""
    frames = tensor.op.traceback if hasattr(tensor, "graph") else ()
    return any(frame.name == function and frame.filename.startswith(frameworks()) for frame in frames)


def _here() -> list[tuple[str, int]]:
    """Return the stack of this thread as ``(file, line)``, the innermost last.

    ``tf_stack.extract_stack`` (TF 2.1 to 2.21): it maps lines of AutoGraph's generated code back to lines
    of the program, and ``traceback`` does not.
    """
    tf_stack = adapter.module_of("util.tf_stack", "extract_stack")
    if tf_stack is None:
        return _frames(sys._getframe())
    return [(frame.filename, frame.lineno) for frame in tf_stack.extract_stack()]


def _frames(frame: FrameType | None) -> list[tuple[str, int]]:
    return [(entry.f_code.co_filename, line) for entry, line in traceback.walk_stack(frame)][::-1]


def _of_program(frames: Sequence[tuple[str, int]]) -> list[str]:
    """Return the frames of the program as ``file:line``, the innermost first."""
    foreign = frameworks()
    places = [
        f"{name}:{line}"
        for name, line in reversed(frames)
        if name != "<string>"  # the command of a zygote, which its ranks keep as their outermost frame
        and not name.startswith(foreign)
        and not (name.startswith(_STANDARD) and "site-packages" not in name)
        and "__autograph_generated_file" not in name  # a line of another thread that AutoGraph did not map
    ]
    # The program itself may be an installed package. Otherwise a library stands between it and the framework.
    return [frame for frame in places if _INSTALLED not in frame] or places


_STANDARD = os.path.dirname(os.__file__) + os.sep
_INSTALLED = f"{os.sep}site-packages{os.sep}"


def frameworks() -> tuple[str, ...]:
    """Return prefixes of the file names of code that does not belong to the program."""
    folders = tuple(map(_package, ("tensorflow", "keras", "tf_keras", "pytest_ddl")))
    return (*(folder for folder in folders if folder), "<frozen")


def _package(name: str) -> str:
    """Return the folder of an imported package, with a separator at its end; empty if it is not imported."""
    module = sys.modules.get(name)
    return os.path.dirname(module.__file__) + os.sep if module and module.__file__ else ""


def is_called_by_program(past_frameworks: bool = False) -> bool:
    """Return whether the program called the watched method whose replacement calls this function.

    This looks at the caller only, and so is fast.

    :param past_frameworks: true to go on to the caller of TensorFlow or Keras if one of them called the method, also if
        this package called that for the program.
    """
    frame: FrameType | None = sys._getframe(1)
    method, foreign = frame.f_code.co_filename if frame else "", frameworks()
    while frame is not None:
        file = frame.f_code.co_filename
        if file != method and not any(part in file for part in _BETWEEN):
            if not file.startswith(foreign):
                return True
            if not past_frameworks or file == watching.__file__:  # which sets learning rates to 0 for a probe
                return False
        frame = frame.f_back
    return False


_BETWEEN = (f"{os.sep}python{os.sep}autograph{os.sep}", f"{os.sep}contextlib.py")
"""Parts of the names of files whose frames are between the frames of the program."""


def called_by_program() -> str:
    """Return ``file:line`` of the caller of a watched method, or an empty string if the caller is a framework.

    AutoGraph's frames, which are between the frames of the program, are skipped.
    """
    frames = _here()
    here = os.path.dirname(__file__) + os.sep
    for name, line in reversed(frames):
        if name.startswith(here) or any(part in name for part in _BETWEEN):
            continue
        return "" if name.startswith(frameworks()) else f"{name}:{line}"
    return ""
