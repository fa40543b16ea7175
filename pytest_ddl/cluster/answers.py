"""What became of a request on one rank: its reply, or how the rank ended without one."""

from __future__ import annotations

import signal
from dataclasses import dataclass
from enum import Enum
from typing import Any

from pytest_ddl.cluster.obstacles import limits
from pytest_ddl.cluster.protocol import Failure


class Fate(str, Enum):
    """Why a rank has no reply, or that it has one."""

    REPLIED = "replied"
    DIED = "died"
    STOPPED = "stopped because another rank had failed"
    DEADLINE = "deadline exceeded"
    INTERRUPTED = "was interrupted"
    STUCK = "stopped because it waited for what the other ranks never did"


@dataclass(frozen=True)
class Answer:
    """What became of a request on one rank."""

    rank: int
    task: str
    fate: Fate
    body: Any = None
    failure: Failure | None = None
    stacks: str = ""
    """Stacks of all threads, where the rank had to be stopped."""
    exit_status: int | None = None
    stdout: str = ""
    stderr: str = ""
    seconds: float = 0.0

    @property
    def ok(self) -> bool:
        return self.fate is Fate.REPLIED and self.failure is None

    def describe_end(self) -> str:
        """How a rank that did not reply ended, in words."""
        if self.fate is Fate.DIED:
            status = self.exit_status
            if status is None:
                return "closed its connection and did not end"
            # A rank that runs into a limit ends in many ways: by an exception, SIGABRT, SIGSEGV or status 127.
            cause = f" ({limits()})" if status and limits() else ""
            if status < 0:
                return f"was killed by {signal.Signals(-status).name}{cause}"
            return f"exited with status {status} before it had finished{cause}"
        return str(self.fate.value)
