"""What the controller and a worker say to each other, and how it crosses the pipe.

Every request has an id and gets exactly one reply with that id. A reply to an older request is
stale: the controller drops it and never uses that cluster again.
"""

from __future__ import annotations

import dataclasses
import pickle
from collections.abc import Iterator, Mapping
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
    """Tear the item down.

    Body: ``True`` to tear down also what the next item does not share, ``False`` to tear down nothing but the item."""
    SETTLE = "settle"
    """Put back what the last use left behind. The answer names what cannot be put back.

    Body: seconds after which a rank ends if nobody asks it for anything, or ``None``."""
    END_SESSION = "end-session"
    """Tear down everything that the items of the open session have left set up."""
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
class Surroundings:
    """What changed around the controlling process since the last request; it holds in the ranks from this one on."""

    environ: Mapping[str, str | None] = field(default_factory=dict)
    """Environment variables with their new values; ``None`` for those that were removed."""
    directory: str | None = None
    """The new working directory."""
    path: tuple[str, ...] | None = None
    """The new ``sys.path``."""

    def __bool__(self) -> bool:
        return bool(self.environ) or self.directory is not None or self.path is not None


@dataclass(frozen=True)
class Request:
    id: int
    kind: Kind
    body: Any = None
    surroundings: Surroundings = field(default_factory=Surroundings)


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
    markers: tuple[str, ...] = ()
    """The registered markers: those of plugins that a rank leaves out are used in its tests all the same."""


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
    parameters: Mapping[str, str] = field(default_factory=dict)
    """With the set-up: the values of the item's parameters, in words that compare."""


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
    """Send a message; a reply that cannot be pickled is sent as a failure that names the value to blame."""
    try:
        data = pickle.dumps(message, protocol=5)
    except Exception as error:
        if isinstance(message, Request):
            raise
        where, value = _to_blame(message.body) or ("the reply", message.body)
        text = (
            f"{where} is {_shown(value)}, which cannot be sent to the pytest process: {type(error).__name__}: {error}. "
            "Use plain values there: numbers, strings, lists and dictionaries of them"
        )
        data = pickle.dumps(Reply(message.id, failure=Failure("UnsendableReply", text, "")), protocol=5)
    connection.send_bytes(data)


def receive(connection: Connection) -> Any:
    """Return the next message.

    :raises EOFError: when the other side has gone.
    :raises UnreadableError: if the message arrived and unpickling it raises.
    """
    data = connection.recv_bytes()
    try:
        return pickle.loads(data)
    # A class of the user can raise anything while it is unpickled, also an EOFError.
    except Exception as error:
        raise UnreadableError(f"{type(error).__name__}: {error}") from error


class UnreadableError(Exception):
    """A message cannot be unpickled in this process; the text is the exception that this raised."""


def _to_blame(value: Any, where: str = "") -> tuple[str, Any] | None:
    """Find the innermost part of a value that cannot be pickled, and say where it is."""
    try:
        pickle.dumps(value, protocol=5)
        return None
    except Exception:
        found = (_to_blame(part, name) for name, part in _parts(value, where))
        return next((blamed for blamed in found if blamed is not None), (where or "the reply", value))


def _parts(value: Any, where: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        for key, part in value.items():
            yield f"{where}[{key!r}]" if where else str(key), part
    elif dataclasses.is_dataclass(value):
        for entry in dataclasses.fields(value):
            yield f"{where}.{entry.name}" if where else entry.name, getattr(value, entry.name)
    elif isinstance(value, (list, tuple)):
        for number, part in enumerate(value):
            pair = isinstance(part, (list, tuple)) and len(part) == 2 and isinstance(part[0], str)
            # Pairs are what record_property() makes: its name says more than a position.
            yield (f"{where}[{part[0]!r}]", part[1]) if pair else (f"{where}[{number}]", part)


def _shown(value: Any) -> str:
    try:
        return f"{value!r:.200}"
    except Exception:
        return f"a {type(value).__name__}"
