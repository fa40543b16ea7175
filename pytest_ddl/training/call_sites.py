"""Record the calls by which a program trains, and whether they could still run a step before the limit of steps."""

from __future__ import annotations

import inspect
import os
import traceback
from typing import Any

from pytest_ddl.records import CallSite
from pytest_ddl.run_facts import RunFacts

_HERE = os.path.dirname(__file__) + os.sep
_CALLS_THE_PROGRAM = _HERE + "execute.py"


class CallSites:
    """Collection of the places in a program that called ``run.steps``, ``run.batches`` or ``run.fit`` in one run.

    A place that is executed repeatedly, for example in a loop over epochs, counts once. It ran if any of its calls
    could run.
    """

    def __init__(self) -> None:
        self._ran: dict[CallSite, bool] = {}
        self._fitted: dict[str, bool] = {}

    def add(self, method: str, trains: Any, limit: int, may_run: bool) -> None:
        """Add a call, whose place is read from the stack of this thread.

        :param trains: step function or model that was passed. The same line counts as another place if it passes a
            different one.
        :param may_run: true if the limit of steps was not reached before the call.
        """
        site = CallSite(method, _code_of(trains), _frames(), limit)
        self._ran[site] = self._ran.get(site, False) or may_run

    def fitted(self, model: Any) -> list[Any]:
        """Note whether a model that ``run.fit`` trains has a ``train_step`` or a loss function of the program.

        Return the loss functions of the program.
        """
        losses = getattr(model, "loss", None)
        given = losses.values() if isinstance(losses, dict) else losses if isinstance(losses, list) else [losses]
        functions = [function for function in given if _is_of_program(function)]
        for name, own in (
            ("train_step", _is_of_program(getattr(type(model), "train_step", None))),
            ("loss_function", bool(functions)),
        ):
            self._fitted[name] = self._fitted.get(name, False) or own
        return functions

    def facts(self) -> RunFacts:
        """Return the facts ``call_sites`` and ``fitted`` of the run."""
        facts: RunFacts = {"call_sites": self._ran} if self._ran else {}
        if self._fitted:
            facts["fitted"] = self._fitted
        return facts


def _is_of_program(function: Any) -> bool:
    """Return whether a function, perhaps a ``tf.function``, is neither one of Keras nor the name of one."""
    function = getattr(function, "python_function", function)
    return inspect.isfunction(function) and function.__module__.split(".")[0] not in ("keras", "tf_keras")


def _frames() -> tuple[tuple[str, int, int], ...]:
    """Return ``(file, line, instruction)`` of the frames between this package and the training function, inner first.

    One line may contain several calls, which differ by their instruction.
    """
    frames = []
    for frame, line in traceback.walk_stack(inspect.currentframe()):
        file = frame.f_code.co_filename
        if file == _CALLS_THE_PROGRAM:
            break
        if not file.startswith(_HERE):
            frames.append((file, line, frame.f_lasti))
    return tuple(frames)


def _code_of(given: Any) -> str:
    """Return ``file:line`` of a function, or the class of another object: equal for all that one line creates."""
    code = getattr(inspect.unwrap(given), "__code__", None)
    return f"{code.co_filename}:{code.co_firstlineno}" if code is not None else type(given).__qualname__
