"""Skip tests that are marked with ``gpu`` or ``tpu`` on a machine without enough of these devices."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from pytest_ddl.items.selection import fail_collection
from pytest_ddl.messages import no_such_argument

if TYPE_CHECKING:
    from pytest_ddl.harness import Harness


def check_accelerator(harness: Harness, name: str, mark: pytest.Mark) -> None:
    """Skip a test if its ``gpu`` or ``tpu`` marker asks for more devices than this machine has."""
    machine = harness.machine
    if name == "tpu":
        if not machine.tpus:
            pytest.skip(f"needs a TPU: {machine.tpu_reason}")
        return
    wanted = gpus_wanted(mark)
    if machine.gpus < wanted:
        reason = machine.gpu_reason if machine.gpus == 0 else f"this machine has {machine.gpus}"
        pytest.skip(f"needs {wanted} GPU{'s' if wanted > 1 else ''}: {reason}")


def check_accelerator_marks(definition: Any) -> None:
    """Fail the collection if a ``gpu`` or ``tpu`` marker has wrong arguments."""
    try:
        for mark in definition.iter_markers("gpu"):
            gpus_wanted(mark)
        for mark in definition.iter_markers("tpu"):
            if mark.args or mark.kwargs:
                raise ValueError(f"@pytest.mark.tpu takes no arguments, not {mark.args or mark.kwargs}")
    except ValueError as error:
        fail_collection(definition, error)


def gpus_wanted(mark: pytest.Mark) -> int:
    """Return the number of GPUs that a ``gpu`` marker asks for.

    :raises ValueError: if an argument is wrong. The message is one line.
    """
    unknown = sorted(set(mark.kwargs) - {"min"})
    if unknown:
        raise ValueError(no_such_argument("@pytest.mark.gpu", unknown[0], ["min"]))
    if len(mark.args) + len(mark.kwargs) > 1:
        raise ValueError(f"@pytest.mark.gpu takes only min=1, not {mark.args}")
    wanted: int = mark.kwargs.get("min", mark.args[0] if mark.args else 1)
    if not isinstance(wanted, int) or isinstance(wanted, bool) or wanted < 1:
        raise ValueError(f"@pytest.mark.gpu: min={wanted!r} must be a whole number, at least 1")
    return wanted
