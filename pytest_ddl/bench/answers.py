"""What the ranks of a measurement answered: all of it, or an error that says which rank failed first, and why."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pytest_ddl.cluster.cluster import Answer

PARTING = 60.0
"""Seconds that ranks may need after the first of them is done. All end with the same step, but giving up a
distributed iterator took one of two workers up to 30 s on a busy machine (TF 2.21)."""
_OUTPUT = 3000
"""Characters of each stream that an error shows."""


class BenchError(RuntimeError):
    """A measurement that gave no numbers; the message says which rank, why, and what to do."""


def all_of(answers: Sequence[Answer], doing: str) -> list[Any]:
    """What every rank returned.

    :param doing: what went wrong where a rank failed: ``while it was measured``.
    :raises BenchError: where a rank failed: what the one says that failed by itself, and not because of another.
    """
    from pytest_ddl.cluster import ship

    failed = [answer for answer in answers if not answer.ok]
    if not failed:
        return [ship.unpack(answer.body) for answer in answers]
    first = min(failed, key=_is_consequence)
    failure = first.failure
    what = f"{failure.type}: {failure.message}\n{failure.traceback}" if failure else first.describe_end()
    output = "\n".join(filter(None, (_shortened(first.stdout), _shortened(first.stderr))))
    raise BenchError(f"{first.task} failed {doing}: {what}" + (f"\n{output}" if output else ""))


def _shortened(output: str) -> str:
    """The ends of a long output: TensorFlow says why it aborts before the stacks of all threads follow."""
    output = output.strip()
    if len(output) <= _OUTPUT:
        return output
    half = _OUTPUT // 2
    return f"{output[:half]}\n[… {len(output) - 2 * half} characters …]\n{output[-half:]}"


def _is_consequence(answer: Answer) -> int:
    """How likely a rank failed because another one did: TensorFlow's own error may tell of a peer that is gone."""
    from pytest_ddl.cluster.cluster import Fate

    if answer.failure is not None:
        return 2 if answer.failure.type.startswith("tensorflow.") else 0
    return {Fate.DIED: 1, Fate.STOPPED: 4}.get(answer.fate, 3)
