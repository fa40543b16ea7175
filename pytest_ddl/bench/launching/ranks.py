"""Lease fresh processes of a variant for a measurement, call functions on all ranks, and collect their answers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from pytest_ddl.tracebacks import frames_in, is_own, threads_in

if TYPE_CHECKING:
    from pytest_ddl.cluster.cluster import Answer, Cluster
    from pytest_ddl.cluster.protocol import Failure
    from pytest_ddl.harness import Harness
    from pytest_ddl.strategies.spec import StrategySpec


PARTING = 60.0
"""Seconds that the other ranks get after the first one is done. All end with the same step, but releasing a distributed
iterator took one of two workers up to 30 s on a busy machine (TF 2.21)."""
GIVEN_UP = 5.0
"""Seconds that the other ranks get after one has ended too early. They cannot continue without it, but may still
report a reason."""
_CALLS = 4
"""Number of the program's calls that an error shows for a rank that was stopped."""
_OUTPUT = 3000
"""Number of characters of each stream that an error shows."""


class BenchError(RuntimeError):
    """Error of a measurement that gave no numbers; the message names the rank, the reason, and what to do."""

    def __init__(self, message: str, failure: Failure | None = None) -> None:
        super().__init__(message)
        self.failure = failure
        """Exception of the rank, if it raised one."""


class EndedEarlyError(BenchError):
    """Error of a measurement whose program ended by itself before it did."""


def all_of(answers: Sequence[Answer], doing: str, refusal: Callable[[Any], str] = lambda _result: "") -> list[Any]:
    """Return the results of all ranks.

    :param doing: text for the error if a rank failed, for example ``while it was measured``.
    :param refusal: returns why a result is invalid, because its rank ended too early; empty if it is valid.
    :raises EndedEarlyError: if a result is invalid, and no rank failed by itself.
    :raises BenchError: if a rank failed. The error is that of the rank that failed by itself,
        and not because of another rank.
    """
    from pytest_ddl.cluster import ship
    from pytest_ddl.cluster.cluster import Fate

    results = [ship.unpack(answer.body) for answer in answers if answer.ok]
    failed = sorted((answer for answer in answers if not answer.ok), key=_is_consequence)
    if not failed or _is_consequence(failed[0]) >= _FOLLOWS:
        refused = next(filter(None, map(refusal, results)), "")
        if refused:
            waited = ", ".join(answer.task for answer in failed)
            raise EndedEarlyError(refused + (f"\n{waited} was still waiting for it" if waited else ""))
    if not failed:
        return results
    first = failed[0]
    if _is_silent(first):
        silent = [answer for answer in answers if _is_silent(answer)]
        ended = [answer.task for answer in answers if answer.ok]
        is_late = first.fate is Fate.STOPPED  # no failure and no deadline: the other ranks had ended
        after = f" {PARTING:.0f} s after {', '.join(ended)} had" if is_late else ""
        what = "" if is_late else f"{first.describe_end()}\n"
        what += "\n".join(f"{answer.task} had not ended{after}{_place(answer.stacks)}" for answer in silent)
        tasks = ", ".join(answer.task for answer in silent)
    else:
        failure, tasks = first.failure, first.task
        what = f"{failure.type}: {failure.message}\n{failure.traceback}" if failure else first.describe_end()
    output = "\n".join(filter(None, (_shortened(first.stdout), _shortened(first.stderr))))
    raise BenchError(f"{tasks} failed {doing}: {what}" + (f"\n{output}" if output else ""), first.failure)


def _is_silent(answer: Answer) -> bool:
    from pytest_ddl.cluster.cluster import Fate

    return answer.fate not in (Fate.REPLIED, Fate.DIED)


def _place(stacks: str) -> str:
    """Return the place at which a rank was: the innermost call of its main thread, and the calls of the program."""
    calls = next(filter(None, map(frames_in, threads_in(stacks))), [])
    ours = [frame for frame in calls[1:] if is_own(frame.file)]
    return "".join(f"\n  {frame}" for frame in [*calls[:1], *ours[:_CALLS]])


def _shortened(output: str) -> str:
    """Keep both ends of a long output: TensorFlow prints why it aborts before the stacks of all threads."""
    output = output.strip()
    if len(output) <= _OUTPUT:
        return output
    half = _OUTPUT // 2
    return f"{output[:half]}\n[… {len(output) - 2 * half} characters …]\n{output[-half:]}"


_FOLLOWS = 2


def _is_consequence(answer: Answer) -> int:
    """Return how likely it is that a rank failed because another one did.

    TensorFlow's own error may only report that a peer is gone. From ``_FOLLOWS`` on, the rank may also have failed
    because another one ended.
    """
    from pytest_ddl.cluster.cluster import Fate

    if answer.failure is not None:
        return _FOLLOWS if answer.failure.type.startswith("tensorflow.") else 0
    return {Fate.DIED: 1, Fate.STOPPED: 4}.get(answer.fate, 3)


class Ranks:
    """All ranks of a cluster that is used for one measurement."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.number = cluster.num_ranks
        self.num_replicas = cluster.num_replicas

    def call(
        self,
        function: Callable[..., Any],
        *arguments: Any,
        deadline: float,
        doing: str,
        patience: Callable[[Any], float | None] | None = None,
        refusal: Callable[[Any], str] = lambda _result: "",
    ) -> list[Any]:
        """Call a function on all ranks and return the results in the order of the ranks.

        :param deadline: in seconds of :func:`time.monotonic`.
        :param doing: text for the error if a rank failed, for example ``while it was measured``.
        :param patience: function of the first result; how many more seconds the other ranks get, ``None`` for all.
        :param refusal: returns why a result is invalid, because its rank ended too early; empty if it is valid.
        :raises BenchError: if a rank failed or its result is invalid.
        """
        from pytest_ddl.cluster import ship
        from pytest_ddl.cluster.protocol import RequestKind

        wait = None if patience is None else lambda body: patience(ship.unpack(body))
        job = ship.pack(function, arguments)
        answers = self._cluster.ask(RequestKind.CALL, job, deadline=deadline, patience=wait)
        return all_of(answers, doing, refusal)


@contextmanager
def fresh_ranks(
    harness: Harness,
    spec: StrategySpec,
    device: str = "cpu",
    *,
    environ: Mapping[str, str] | None = None,
    arguments: Mapping[str, Callable[[], Mapping[str, Any]]] | None = None,
) -> Iterator[Ranks]:
    """Lease new processes, which nobody uses afterwards: what a measurement leaves in them would change the next one.

    :param environ: additional environment variables of the processes.
    :param arguments: functions that make arguments of the strategy's constructor, as for the ``ddl`` marker.
    :raises BenchError: if the variant cannot run on this machine.
    """
    from pytest_ddl.items.selection import DdlMark

    mark = DdlMark(device=device, isolation="fresh", arguments=dict(arguments or {}))
    if reason := harness.unavailable(spec, mark):
        raise BenchError(f"{spec} cannot run here: {reason}")
    with harness.cluster(spec, mark, fresh=True, environ=environ, exclusive=True) as cluster:
        cluster.retired = cluster.retired or "it was measured in"
        yield Ranks(cluster)


@contextmanager
def scratch_folder(parent: Path, prefix: str) -> Iterator[Path]:
    """Yield a folder for the files of a measurement, and remove it afterwards."""
    with TemporaryDirectory(prefix=prefix, dir=parent, ignore_cleanup_errors=True) as folder:
        yield Path(folder)
