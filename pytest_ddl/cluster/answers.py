"""Describe the result of a request on one rank: its reply, or how the rank ended without a reply."""

from __future__ import annotations

import signal
from dataclasses import dataclass
from enum import Enum
from typing import Any

from pytest_ddl.cluster.obstacles import limits
from pytest_ddl.cluster.protocol import Failure


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
