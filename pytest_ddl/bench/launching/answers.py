"""What the ranks of a measurement answered: all of it, or an error that says which rank failed first, and why."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pytest_ddl.cluster.cluster import Answer

PARTING = 60.0
"""Seconds that ranks may need after the first of them is done. All end with the same step, but giving up a
distributed iterator took one of two workers up to 30 s on a busy machine (TF 2.21)."""
GIVEN_UP = 5.0
"""Seconds that ranks have after one of them has ended too early: they wait for it in vain, and one may yet say why."""
_FRAMEWORKS = ("site-packages", f"{os.sep}pytest_ddl{os.sep}", "<frozen")
_CALLS = 4
"""Calls of the program that an error shows of a rank that was stopped."""
_OUTPUT = 3000
"""Characters of each stream that an error shows."""


class BenchError(RuntimeError):
    """A measurement that gave no numbers; the message says which rank, why, and what to do."""


def all_of(answers: Sequence[Answer], doing: str, refusal: Callable[[Any], str] = lambda _result: "") -> list[Any]:
    """What every rank returned.

    :param doing: what went wrong where a rank failed: ``while it was measured``.
    :param refusal: says why what a rank returned is none, as it ended too early; empty where it is one.
    :raises BenchError: where a rank failed: what the one says that failed by itself, and not because of another.
    """
    from pytest_ddl.cluster import ship
    from pytest_ddl.cluster.cluster import Fate

    results = [ship.unpack(answer.body) for answer in answers if answer.ok]
    failed = sorted((answer for answer in answers if not answer.ok), key=_is_consequence)
    if not failed or _is_consequence(failed[0]) >= _FOLLOWS:
        refused = next(filter(None, map(refusal, results)), "")
        if refused:
            waited = ", ".join(answer.task for answer in failed)
            raise BenchError(refused + (f"\n{waited} waited for it in vain" if waited else ""))
    if not failed:
        return results
    first = failed[0]
    if _is_silent(first):
        silent = [answer for answer in answers if _is_silent(answer)]
        ended = [answer.task for answer in answers if answer.ok]
        is_late = first.fate is Fate.STOPPED  # no rank has failed: others had ended, and no deadline had passed
        after = f" {PARTING:.0f} s after {', '.join(ended)} had" if is_late else ""
        what = "" if is_late else f"{first.describe_end()}\n"
        what += "\n".join(f"{answer.task} had not ended{after}{_place(answer.stacks)}" for answer in silent)
        tasks = ", ".join(answer.task for answer in silent)
    else:
        failure, tasks = first.failure, first.task
        what = f"{failure.type}: {failure.message}\n{failure.traceback}" if failure else first.describe_end()
    output = "\n".join(filter(None, (_shortened(first.stdout), _shortened(first.stderr))))
    raise BenchError(f"{tasks} failed {doing}: {what}" + (f"\n{output}" if output else ""))


def _is_silent(answer: Answer) -> bool:
    from pytest_ddl.cluster.cluster import Fate

    return answer.fate not in (Fate.REPLIED, Fate.DIED)


def _place(stacks: str) -> str:
    """Where a rank was: the innermost call of its main thread, and those of the program."""
    threads = [text for text in stacks.split("\n\n") if "File " in text]
    main = next((text for text in threads if text.startswith("Current thread")), threads[-1] if threads else "")
    calls = [line.strip() for line in main.splitlines() if line.strip().startswith("File ")]
    ours = [line for line in calls[1:] if not any(part in line for part in _FRAMEWORKS)]
    return "".join(f"\n  {line}" for line in [*calls[:1], *ours[:_CALLS]])


def _shortened(output: str) -> str:
    """The ends of a long output: TensorFlow says why it aborts before the stacks of all threads follow."""
    output = output.strip()
    if len(output) <= _OUTPUT:
        return output
    half = _OUTPUT // 2
    return f"{output[:half]}\n[… {len(output) - 2 * half} characters …]\n{output[-half:]}"


_FOLLOWS = 2


def _is_consequence(answer: Answer) -> int:
    """How likely a rank failed because another one did: TensorFlow's own error may tell of a peer that is gone.

    From ``_FOLLOWS`` on it may also be because another one ended.
    """
    from pytest_ddl.cluster.cluster import Fate

    if answer.failure is not None:
        return _FOLLOWS if answer.failure.type.startswith("tensorflow.") else 0
    return {Fate.DIED: 1, Fate.STOPPED: 4}.get(answer.fate, 3)
