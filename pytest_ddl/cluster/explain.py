"""Describe the answer of each rank to a request, and explain in words why ranks failed.

Equal failures appear once, and every failed rank is named.
"""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from pytest_ddl.cluster.obstacles import LONGER, limits
from pytest_ddl.cluster.protocol import Failure
from pytest_ddl.tracebacks import threads_in

_OWN_FRAMES = os.path.dirname(__file__)
MAX_STACK_LINES = 40
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")
MAX_OUTPUT_LINES = 30


class Fate(str, Enum):
    """Result of waiting for a rank: it replied, or the reason why it did not."""

    REPLIED = "replied"
    DIED = "died"
    STOPPED = "stopped because another rank had failed"
    DEADLINE = "deadline exceeded"
    INTERRUPTED = "was interrupted"
    STUCK = "stopped because it waited for a collective that the other ranks never started"


@dataclass(frozen=True)
class Answer:
    """Result of a request on one rank."""

    rank: int
    task: str
    fate: Fate
    body: Any = None
    failure: Failure | None = None
    stacks: str = ""
    """Stacks of all threads, if the rank did not answer and had to be stopped."""
    exit_status: int | None = None
    stdout: str = ""
    stderr: str = ""
    seconds: float = 0.0

    @property
    def ok(self) -> bool:
        return self.fate is Fate.REPLIED and self.failure is None

    def describe_end(self) -> str:
        """Describe how a rank that did not reply ended."""
        if self.fate is Fate.DIED:
            status = self.exit_status
            if status is None:
                return "closed its connection and did not end"
            # A rank that exceeds a memory limit may end by an exception, SIGABRT, SIGSEGV or status 127.
            cause = f" ({limits()})" if status and limits() else ""
            if status < 0:
                return f"was killed by {signal.Signals(-status).name}{cause}"
            return f"exited with status {status} before it had finished{cause}"
        return str(self.fate.value)


class RankError(Exception):
    """A call failed on a rank of a cluster. The message contains the traceback of every failed rank.

    ``answers`` contains the result of the call on each rank.
    """

    def __init__(self, message: str, answers: Sequence[Answer] = ()) -> None:
        super().__init__(message)
        self.answers = tuple(answers)


def name_ranks(ranks: Sequence[int], total: int) -> str:
    """Name some ranks in words, for example ``rank 1 of 2``, ``all 2 ranks`` or ``ranks 0, 2 of 4``."""
    if len(ranks) == total:
        return f"all {total} ranks" if total > 1 else "the rank"
    numbers = ", ".join(map(str, ranks))
    return f"rank{'s' if len(ranks) > 1 else ''} {numbers} of {total}"


def summarize(answers: Sequence[Answer], num_ranks: int | None = None) -> str:
    """Return one line with the first cause and the ranks that have it.

    :param num_ranks: number of ranks of the cluster, if not all of them were asked.
    """
    total = num_ranks or len(answers)
    failed = [answer for answer in answers if answer.failure is not None]
    if failed:
        same = [answer.rank for answer in failed if _key(answer) == _key(failed[0])]
        failure = failed[0].failure
        assert failure is not None
        first_line = failure.message.strip().splitlines()[0] if failure.message.strip() else ""
        return f"{failure.type} on {name_ranks(same, total)}: {first_line}"
    died = [answer for answer in answers if answer.fate is Fate.DIED]
    if died:
        return f"rank {died[0].rank} of {total} ({died[0].task}) {died[0].describe_end()}"
    silent = [answer.rank for answer in answers if answer.fate is not Fate.REPLIED]
    return f"deadline exceeded: no answer from {name_ranks(silent, total)}"


def explain(answers: Sequence[Answer], num_ranks: int | None = None) -> str:
    """Return the summary, followed by every rank that did not succeed, with traceback, stacks and output.

    :param num_ranks: number of ranks of the cluster, if not all of them were asked.
    """
    summary = summarize(answers, num_ranks)
    # If a rank ended without output, its section has only a title, which may repeat the summary.
    shown = [(title, text) for title, text in sections(answers, num_ranks) if text or title != summary]
    return "\n".join([summary, *(f"\n{title}\n{text}".rstrip() for title, text in shown)])


class ClusterError(RuntimeError):
    """A cluster could not be started, got a request after its end, or is busy with the request of another thread."""


class PortTakenError(ClusterError):
    """A cluster could not be started, because another program has taken one of its ports."""


def start_error(spec: str, answers: Sequence[Answer]) -> ClusterError:
    """Return the error of a cluster that could not be started."""
    lines = []
    for answer in answers:
        if not answer.ok:
            failure = answer.failure
            why = f"{failure.type}: {failure.message}" if failure else answer.describe_end()
            lines.append(f"{answer.task}: {why}")
    text = f"{spec} could not be started; " + "; ".join(lines)
    text += f"; {LONGER}" if is_late(answers) else ""
    output = "\n".join(answer.stderr for answer in answers)
    if any(words in text + output for words in ("Could not start gRPC server", "Address already in use")):
        return PortTakenError(text)
    traces = [answer.failure.traceback for answer in answers if answer.failure and answer.failure.traceback]
    ends = [f"{answer.task}, {part}" for answer in answers if answer.fate is not Fate.REPLIED for part in _last(answer)]
    return ClusterError("\n".join([text, *traces, *ends]).rstrip())


def is_late(answers: Sequence[Answer]) -> bool:
    """Return whether a rank had not answered by the deadline."""
    return any(answer.fate is Fate.DEADLINE for answer in answers)


def sections(answers: Sequence[Answer], num_ranks: int | None = None) -> list[tuple[str, str]]:
    """Return ``(title, text)`` for each different failure, and for each rank that did not reply.

    :param num_ranks: number of ranks of the cluster, if not all of them were asked.
    """
    total = num_ranks or len(answers)
    texts: list[tuple[str, str]] = []
    groups: dict[tuple[str, str], list[Answer]] = {}
    for answer in answers:
        if answer.failure is not None:
            groups.setdefault(_key(answer), []).append(answer)
    for group in groups.values():
        failure = group[0].failure
        assert failure is not None
        title = f"{name_ranks([answer.rank for answer in group], total)} raised {failure.type}"
        texts.append((title, (failure.traceback or failure.message).rstrip()))
    for answer in answers:
        if answer.fate is not Fate.REPLIED:
            title = f"rank {answer.rank} of {total} ({answer.task}) {answer.describe_end()}"
            texts.append((title, "\n".join(_last(answer))))
    return texts


def _last(answer: Answer) -> list[str]:
    """Return what is known about the end of a rank that did not reply: its stacks, or its last output if it died."""
    parts = []
    if answer.stacks:
        parts.append("stacks:\n" + shorten(main_thread_first(answer.stacks), MAX_STACK_LINES))
    if answer.fate is Fate.DIED and (answer.stdout or answer.stderr):
        parts.append("its last output:\n" + shorten_head(answer.stdout + answer.stderr, MAX_OUTPUT_LINES))
    return parts


def main_thread_first(stacks: str) -> str:
    """Move the main thread, which runs the test's body, before the other threads.

    The outer frames of the main thread are left out, from the first frame of this package on.
    """
    main, *others = threads_in(stacks)
    lines = main.splitlines()
    own = next((number for number, line in enumerate(lines) if f'File "{_OWN_FRAMES}' in line), len(lines))
    return "\n\n".join(["\n".join(lines[:own]), *others])


def shorten(text: str, lines: int) -> str:
    """Keep the first lines, and add the number of lines that were left out."""
    kept = text.rstrip().splitlines()
    if len(kept) <= lines:
        return "\n".join(kept)
    return "\n".join([*kept[:lines], f"… {len(kept) - lines} more lines"])


def shorten_head(text: str, lines: int) -> str:
    """Keep the last lines, and add the number of lines that were left out."""
    kept = text.rstrip().splitlines()
    if len(kept) <= lines:
        return "\n".join(kept)
    return "\n".join([f"… {len(kept) - lines} earlier lines", *kept[-lines:]])


def _key(answer: Answer) -> tuple[str, str]:
    assert answer.failure is not None
    return answer.failure.type, without_addresses(answer.failure.message)


def without_addresses(message: str) -> str:
    """Return a message without the addresses of objects in it, which are different in each process."""
    return _ADDRESS.sub("", message)
