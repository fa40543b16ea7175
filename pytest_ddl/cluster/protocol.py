"""Define the messages between the controller and a worker, what they contain, and their form as bytes.

Every request has an id and gets exactly one reply with that id. A notice may precede the reply. If the controller gets
a reply to an older request, it drops the reply and never uses that cluster again.
"""

from __future__ import annotations

import dataclasses
import os
import pickle
import traceback
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from pytest_ddl.cluster import relocating
from pytest_ddl.cluster.state.surroundings import Surroundings

_HERE = os.path.dirname(__file__)

UNEXPECTED_PASS = "ddl_unexpected_pass"
"""Attribute of the report of a test that passed although a strict ``xfail`` marker expects it to fail. pytest itself
says so only in the report's text."""


class RequestKind(str, Enum):
    """Kind of a request to a worker."""

    BOOT = "boot"
    """Build the strategy. Body: :class:`Boot`."""
    CALL = "call"
    """Call a shipped function. Body: :class:`pytest_ddl.cluster.ship.Job`."""
    OPEN_SESSION = "open-session"
    """Start a pytest session. Body: :class:`SessionPlan`."""
    SETUP = "setup"
    """Set up an item of the session. Body: ``(nodeid, nodeid of the next item or None)``."""
    BODY = "body"
    """Run the item's body once. Body: pickled keyword arguments of a Hypothesis example, or ``None``."""
    TEARDOWN = "teardown"
    """Tear down the item.

    Body: ``True`` to tear down also the fixtures that it does not share with the next item, ``False`` to tear down
    only its own."""
    SETTLE = "settle"
    """Restore the state from before the last use. The reply names the changes that cannot be undone.

    Body: seconds without a request after which the rank exits, or ``None``."""
    STAY = "stay"
    """Wait for the next request without a limit of time. This one has no reply."""
    END_SESSION = "end-session"
    """Tear down all fixtures that the items of the open session have left set up."""
    STOP = "stop"
    """End the process."""


@dataclass(frozen=True)
class Boot:
    """Body of a request to build the strategy of a rank."""

    definition: bytes
    """Pickled :class:`~pytest_ddl.strategies.base.StrategyDefinition`. Its class may be in a module of the user."""
    context: Any
    """:class:`~pytest_ddl.strategies.spec.BuildContext` of the process."""
    modules: Mapping[str, str] = field(default_factory=dict)
    """Name -> file of the modules that unpickling may need."""
    directory: str | None = None
    """Working directory of the controller. ``None`` keeps that of the worker."""
    path: tuple[str, ...] = ()
    """``sys.path`` of the controller."""
    argv: tuple[str, ...] = ()
    """First entry of the controller's ``sys.argv``."""
    restarted: bool = False
    """True if the rank joins a running cluster, so that no first all-reduce can check its connection."""


@dataclass(frozen=True)
class Request:
    id: int
    kind: RequestKind
    body: Any = None
    surroundings: Surroundings = field(default_factory=Surroundings)


@dataclass(frozen=True)
class Reply:
    id: int
    body: Any = None
    failure: Failure | None = None


@dataclass(frozen=True)
class EndNotice:
    """Message of a rank that its part of a request has ended with an exception. The reply follows.

    The report of an exception takes time: on a busy machine longer than the others wait for this rank.
    """

    id: int


@dataclass(frozen=True)
class Failure:
    """Exception in a worker as plain text, so that it can be read without the exception's class."""

    type: str
    message: str
    traceback: str
    skipped: bool = False
    """True if the exception is the one with which pytest or unittest skips a test."""
    classes: tuple[tuple[str, str], ...] = ()
    """Module and qualified name of the exception's class and of its base classes, in the order of resolution."""

    @classmethod
    def of(cls, error: BaseException) -> Failure:
        """Describe an exception, without the frames of this package's cluster modules."""
        kind = type(error)
        module = "" if kind.__module__ in ("builtins", "__main__") else f"{kind.__module__}."
        trace = traceback.TracebackException.from_exception(error)
        inner = [frame for frame in trace.stack if not frame.filename.startswith(_HERE)]
        if inner:
            trace.stack = traceback.StackSummary.from_list(inner)
        skipped = kind.__name__ in ("Skipped", "SkipTest")
        try:
            message = str(error)
        except Exception as unprintable:
            message = f"(its message cannot be shown: __str__ raised {type(unprintable).__name__})"
        classes = tuple((base.__module__, base.__qualname__) for base in kind.__mro__)
        return cls(module + kind.__qualname__, message, "".join(trace.format()), skipped, classes)


@dataclass(frozen=True)
class SessionPlan:
    """Information that a rank needs to collect the same items as the controller."""

    options: Mapping[str, Any]
    """Values of the controller's command line options, adapted for a rank."""
    args: tuple[str, ...]
    """Command line arguments such as ``--rootdir`` and ``-c``."""
    files: tuple[str, ...]
    """Test files to collect."""
    basetemp: str | None = None
    """Folder for ``tmp_path``. Each rank appends its number."""
    markers: tuple[str, ...] = ()
    """Registered markers. Tests may use markers of plugins that are switched off in a rank."""


@dataclass(frozen=True)
class PhaseResult:
    """Result of one phase of an item on a rank."""

    reports: tuple[Mapping[str, Any], ...]
    """Serialized reports: first those of subtests, then the phase's own report."""
    failed: bool
    entered: int = 0
    """Number of times that the test's body was entered in this phase. It proves that the rank ran the body."""
    finished: int = 0
    """Number of times that the body ended without an exception."""
    warnings: tuple[RankWarning, ...] = ()
    """Warnings that pytest has recorded since the last reply. Most come with the tear-down, at the end of the item."""
    parameters: Mapping[str, str] = field(default_factory=dict)
    """After the set-up, descriptions of the values of the item's parameters, which can be compared."""
    not_collected: str = ""
    """Reason why the rank has not set up the item, if its pytest did not collect it."""
    intact: bool = False
    """True if the phase has left the process as one that passes may leave it."""
    exit: tuple[str, int | None] | None = None
    """Reason and exit status, if ``pytest.exit`` ended the phase."""


@dataclass(frozen=True)
class ExampleResult(PhaseResult):
    """Result of one Hypothesis example on a rank."""

    failure: Failure | None = None
    """Exception that fails the example."""
    rejected: bool = False
    """True if the body called ``assume(False)`` or ``reject()``."""
    returned: str | None = None
    """Description of a value other than ``None`` that the body returned."""


@dataclass(frozen=True)
class RankWarning:
    """Warning that was recorded on a rank, by pytest or during a call."""

    message: bytes
    """Pickled warning, or its pickled text if the warning cannot be pickled."""
    filename: str
    lineno: int
    when: str = ""
    """Phase of the item, as pytest names it; empty for the warning of a call."""
    nodeid: str = ""


def encode(message: Request | Reply | EndNotice) -> bytes:
    """Pickle a message. If a reply cannot be pickled, pickle a failure that names the value to blame.

    :raises Exception: if a request cannot be pickled.
    """
    try:
        return relocating.dumps(message)
    except Exception as error:
        if not isinstance(message, Reply):
            raise
        where, value = _to_blame(message.body) or ("the reply", message.body)
        text = (
            f"{where} is {shown(value)}, which cannot be sent to the pytest process: {type(error).__name__}: {error}. "
            "Use plain values there: numbers, strings, lists and dictionaries of them"
        )
        return pickle.dumps(Reply(message.id, failure=Failure("UnsendableReply", text, "")), protocol=5)


def decode(data: bytes) -> Any:
    """Return the message that :func:`encode` has pickled.

    :raises UnreadableError: if it cannot be unpickled.
    """
    try:
        return pickle.loads(data)
    # A class of the user can raise any exception while it is unpickled, even an EOFError.
    except Exception as error:
        raise UnreadableError(f"{type(error).__name__}: {error}") from error


class UnreadableError(Exception):
    """A message cannot be unpickled in this process. The text describes the exception from unpickling."""


def _to_blame(value: Any, where: str = "") -> tuple[str, Any] | None:
    """Return the location and value of the innermost part that cannot be pickled, or ``None`` if there is none."""
    try:
        pickle.dumps(value, protocol=5)
        return None
    except Exception:
        causes = (_to_blame(part, name) for name, part in _parts(value, where))
        return next((blamed for blamed in causes if blamed is not None), (where or "the reply", value))


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
            # record_property() makes pairs, and the name in a pair is more helpful than its position.
            yield (f"{where}[{part[0]!r}]", part[1]) if pair else (f"{where}[{number}]", part)


def shown(value: Any) -> str:
    """Return the beginning of a value's ``repr``, or its class if it has none."""
    try:
        return f"{value!r:.200}"
    except Exception:
        return f"a {type(value).__name__}"
