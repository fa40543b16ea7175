"""What the controller and a worker say to each other, and how it crosses the pipe.

Every request has an id and gets exactly one reply with that id. A reply to an older request is
stale: the controller drops it and never uses that cluster again.
"""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from multiprocessing.connection import Connection
from typing import Any


class Kind(str, Enum):
    """What a worker can be asked."""

    BOOT = "boot"
    """Build the strategy. Body: :class:`Boot`."""
    CALL = "call"
    """Call a shipped function. Body: :class:`pytest_ddl.cluster.ship.Job`."""
    OPEN_SESSION = "open-session"
    """Start a pytest session. Body: :class:`SessionPlan`."""
    SETUP = "setup"
    """Set an item of the session up. Body: ``(nodeid, nodeid of the next item or None)``."""
    BODY = "body"
    """Run the item's body once. Body: pickled keyword arguments of a Hypothesis example, or ``None``."""
    TEARDOWN = "teardown"
    """Tear the item down. Body: ``False`` to tear down what later items share as well."""
    STOP = "stop"
    """End the process."""


@dataclass(frozen=True)
class Boot:
    """How to build the strategy of a rank."""

    definition: bytes
    """Pickled: the :class:`~pytest_ddl.strategies.base.StrategyDefinition`, which may be of the user's own module."""
    context: Any
    """The :class:`~pytest_ddl.strategies.spec.BuildContext`."""
    modules: Mapping[str, str] = field(default_factory=dict)
    """Name -> file of the modules that unpickling may need."""
    restarted: bool = False
    """The rank joins a cluster that is running, so that no first all-reduce can prove its connection."""


@dataclass(frozen=True)
class Request:
    id: int
    kind: Kind
    body: Any = None


@dataclass(frozen=True)
class Reply:
    id: int
    body: Any = None
    failure: Failure | None = None


@dataclass(frozen=True)
class Failure:
    """An exception in a worker, in words that need none of its classes to be read."""

    type: str
    message: str
    traceback: str
    skipped: bool = False
    """True where the exception was pytest's or unittest's way of skipping."""


@dataclass(frozen=True)
class SessionPlan:
    """What a rank needs to collect the same items as the controller."""

    options: Mapping[str, Any]
    """Values of the controller's command line options, made fit for a rank."""
    args: tuple[str, ...]
    """``--rootdir``, ``-c`` and the like."""
    files: tuple[str, ...]
    """The test files to collect."""
    basetemp: str | None = None
    """Where ``tmp_path`` folders lie; each rank adds its number."""


@dataclass(frozen=True)
class PhaseResult:
    """What one phase of an item left on a rank."""

    reports: tuple[Mapping[str, Any], ...]
    """Serialised reports: those of subtests, then the phase's own as the last."""
    failed: bool
    entered: int = 0
    """How often the test's body was entered in this phase: the rank's proof that it ran it."""
    finished: int = 0
    """How often the body was left without an exception."""
    warnings: tuple[RankWarning, ...] = ()
    """What pytest recorded since the last phase; with the tear-down, all of the item's."""


@dataclass(frozen=True)
class ExampleResult:
    """What became of one Hypothesis example on a rank."""

    failure: Failure | None = None
    rejected: bool = False
    """The body called ``assume(False)`` or ``reject()``."""
    notes: tuple[str, ...] = ()

    @property
    def failed(self) -> bool:
        return self.failure is not None


@dataclass(frozen=True)
class RankWarning:
    """A warning that pytest recorded on a rank."""

    message: bytes
    """Pickled: the warning, or its text where its class cannot be pickled."""
    filename: str
    lineno: int
    when: str
    nodeid: str


def send(connection: Connection, message: Request | Reply) -> None:
    connection.send_bytes(pickle.dumps(message, protocol=5))


def receive(connection: Connection) -> Any:
    """Return the next message.

    :raises EOFError: when the other side has gone.
    """
    return pickle.loads(connection.recv_bytes())
